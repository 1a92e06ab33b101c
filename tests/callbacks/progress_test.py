"""Progress line, warnings, and the points that TensorBoard gets."""

import io
import re
import time

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import callbacks, losses, tensorboard
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.tensorboard import scalars


class _Model(tf.keras.Model):
    """A model that only counts its steps; its loss is its input."""

    def __init__(self):
        super().__init__()
        self.input_wait_seconds = 0.0
        self.mean_loss = tf.keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean_loss]

    def train_step(self, data):
        self.optimizer.iterations.assign_add(1)
        self.mean_loss.update_state(data)
        return {"loss": self.mean_loss.result()}


def _fit(losses, steps_per_epoch, *callbacks):
    model = _Model()
    model.compile(tf.keras.optimizers.SGD(jit_compile=False))
    model.fit(
        tf.data.Dataset.from_tensor_slices(np.float32(losses)),
        epochs=len(losses) // steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        verbose=0,
        callbacks=list(callbacks),
    )


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _progress(stream, **options):
    return callbacks.Progress(
        epochs=2, steps_per_epoch=3, batch_size=10, stream=stream, **options
    )


def test_progress_is_a_line_per_epoch_in_a_file_and_a_bar_on_a_terminal():
    file, terminal = io.StringIO(), _Terminal()
    _fit([1, 2, 3, 4, 5, 6], 3, _progress(file), _progress(terminal))
    traced, first, last = file.getvalue().splitlines()
    assert traced == "step       being traced and compiled"
    assert first.startswith("epoch 1/2  step 3/6  loss 2.0000  ")
    assert last.startswith("epoch 2/2  step 6/6  loss 5.0000  ")
    assert re.search(r"images/s  input wait 0%  ETA \d:\d\d:\d\d$", first)
    assert last.endswith("ETA 0:00:00")
    assert "\r" not in file.getvalue()
    shown = terminal.getvalue()
    assert "\r\x1b[K[====        ] epoch 1/2  step 1/6" in shown
    assert shown.count("\n") == 2


def test_progress_of_a_long_epoch_is_written_to_a_file(monkeypatch):
    monkeypatch.setattr(callbacks.progress, "_INTERVAL", 0.0)
    file = io.StringIO()
    _fit([1, 2, 3, 4, 5, 6], 3, _progress(file))
    steps = re.findall(r"step (\d)/6", file.getvalue())
    assert steps == list("123456")


def _points(logdir, tag):
    return scalars.read(str(logdir)).get(tag, {})


def test_a_point_is_the_mean_over_the_steps_since_the_last(tmp_path):
    callback = tensorboard.TensorBoard(
        str(tmp_path),
        every_steps=2,
        batch_size=10,
        schedules={"optimizer/learning_rate": lambda step: 10.0 * step},
    )
    _fit([1, 3, 5, 9, 2, 4, 6, 8], 4, callback)
    assert _points(tmp_path, "loss/contrastive") == {2: 2, 4: 7, 6: 3, 8: 7}
    # The rate that the last step used, not that of the next.
    assert _points(tmp_path, "optimizer/learning_rate")[4] == 30


def test_the_grid_has_a_column_per_image_and_a_row_per_view():
    views = np.zeros([3, 2, 4, 5, 3], np.float32)
    views[2, 1] = 1.0
    grid = tensorboard.view_grid(views).numpy()
    assert grid.shape == (1, 8, 15, 3)
    assert grid[0, 4:, 10:].min() == 1.0
    assert grid.sum() == 4 * 5 * 3


class _SlowHistograms:
    """Measures one number, slowly."""

    def measure(self):
        time.sleep(0.3)
        return {"similarity/positives": np.float32([0.1, 0.9])}, {"x": 2.0}


def test_histograms_do_not_count_as_training_time(tmp_path):
    callback = tensorboard.TensorBoard(
        str(tmp_path),
        every_steps=1,
        batch_size=10,
        schedules={},
        histograms=_SlowHistograms(),
        histograms_every_epochs=2,
    )
    progress = _progress(
        io.StringIO(), excluded_seconds=callback.histogram_seconds
    )
    started = time.perf_counter()
    _fit([1.0] * 10, 2, callback, progress)
    seconds = time.perf_counter() - started
    # The start, every second epoch, and the end.
    assert list(_points(tmp_path, "x")) == [0, 4, 8, 10]
    assert callback.histogram_seconds() >= 1.2
    rates = _points(tmp_path, "system/steps_per_second")
    # All but the last histogram were measured before the last point.
    assert sum(1 / rate for rate in rates.values()) < seconds - 1.1
    images = _points(tmp_path, "input/images_per_second")
    assert images[5] == pytest.approx(10 * rates[5])


def test_memory_is_that_of_this_process():
    before = scalars.memory()["system/host_memory_gib"]
    array = np.ones([2**26])
    after = scalars.memory()["system/host_memory_gib"]
    assert array[-1] == 1
    assert 0.4 < after - before < 0.6


def _run_epochs(callback, *epochs):
    for epoch, (spread, loss) in enumerate(epochs):
        callback.on_epoch_end(epoch, {"embedding_std": spread, "loss": loss})


def test_collapse_and_chance_level_are_reported_once(capsys):
    callback = callbacks.CollapseWarning(4.844)
    # Two epochs in a row are not enough.
    _run_epochs(callback, (0.01, 4), (0.01, 4), (0.5, 4), (0.9, 4.85))
    _run_epochs(callback, (0.9, 4.7), (0.9, 4.85), (0.01, 4.845))
    assert capsys.readouterr().err == ""
    _run_epochs(callback, (0.9, 4.84))
    assert "stayed at 4.840, the chance level" in capsys.readouterr().err
    _run_epochs(callback, *[(0.01, 4)] * 5)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("collapse: ")


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("ntxent", {}),
        ("supcon", {}),
        ("supcon_in", {}),
        ("supcon", {"scale_by_temperature": True, "temperature": 0.2}),
    ],
)
def test_the_chance_loss_is_that_of_equal_embeddings(loss, options):
    run = fields.replace(Pretrain(), loss=loss, batch_size=8, **options)
    equal = np.ones([8, 2, 4], np.float32)
    value = losses.build(loss, **options)(equal, np.arange(8) // 2)
    assert run.loss.chosen().chance_level(2 * 8 - 1) == pytest.approx(
        float(value), 1e-5
    )


def test_other_losses_have_no_known_chance_loss():
    for options in ({"loss": "sincere"}, {"negatives": "other_view"}):
        run = fields.replace(Pretrain(), **options)
        assert run.loss.chosen().chance_level(511) is None
