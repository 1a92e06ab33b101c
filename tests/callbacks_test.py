"""What a run shows: the progress line, intervals, the grid of views."""

import io
import re
import time

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import callbacks, losses, training
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.tensorboard import histograms, scalars


class _Model(tf.keras.Model):
    """A model that only counts its steps, with a loss of its choice."""

    def __init__(self):
        super().__init__()
        self.input_wait_seconds = 0.0
        self.loss_of_step = tf.keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_of_step]

    def train_step(self, data):
        self.optimizer.iterations.assign_add(1)
        self.loss_of_step.update_state(data)
        return {"loss": self.loss_of_step.result()}


def _fit(losses, steps_per_epoch, watchers):
    model = _Model()
    model.compile(tf.keras.optimizers.SGD(jit_compile=False))
    data = tf.data.Dataset.from_tensor_slices(np.float32(losses))
    model.fit(
        data,
        epochs=len(losses) // steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        verbose=0,
        callbacks=watchers,
    )


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _progress(stream):
    return callbacks.Progress(
        epochs=2, steps_per_epoch=3, batch_size=10, stream=stream
    )


def test_elsewhere_than_on_a_terminal_it_is_a_line_per_epoch():
    stream = io.StringIO()
    _fit([1, 2, 3, 4, 5, 6], 3, [_progress(stream)])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/2  step 3/6  loss 2.0000  ")
    assert lines[1].startswith("epoch 2/2  step 6/6  loss 5.0000  ")
    for line in lines:
        assert re.search(r"images/s  input wait 0%  ETA \d:\d\d:\d\d$", line)
    assert lines[1].endswith("ETA 0:00:00")
    assert "\r" not in stream.getvalue()


def test_on_a_terminal_a_bar_is_rewritten():
    stream = _Terminal()
    _fit([1, 2, 3, 4, 5, 6], 3, [_progress(stream)])
    shown = stream.getvalue()
    assert "\r\x1b[K[====        ] epoch 1/2  step 1/6" in shown
    assert shown.count("\n") == 2


def _points(logdir, tag):
    return scalars.read(str(logdir)).get(tag, {})


def test_a_point_is_the_mean_over_its_own_steps(tmp_path):
    watcher = callbacks.Summaries(
        str(tmp_path),
        every_steps=2,
        batch_size=10,
        schedules={"optimizer/learning_rate": lambda step: 10.0 * step},
    )
    _fit([1, 3, 5, 9, 2, 4, 6, 8], 4, [watcher])
    assert _points(tmp_path, "loss/contrastive") == {2: 2, 4: 7, 6: 3, 8: 7}
    # The rate that the last step used, not that of the next.
    assert _points(tmp_path, "optimizer/learning_rate")[4] == 30


def test_the_grid_has_an_image_a_column_and_a_view_a_row():
    views = np.zeros([3, 2, 4, 5, 3], np.float32)
    views[2, 1] = 1.0
    shown = callbacks.grid(views).numpy()
    assert shown.shape == (1, 8, 15, 3)
    assert shown[0, 4:, 10:].min() == 1.0
    assert shown.sum() == 4 * 5 * 3


class _Slow:
    """Measures one number, which takes its time."""

    def measure(self):
        time.sleep(0.5)
        return histograms.Measured(
            {"similarity/positives": np.float32([0.1, 0.9])}, {"x": 2.0}
        )


def test_what_is_measured_aside_does_not_slow_the_rate_that_is_shown(tmp_path):
    watcher = callbacks.Summaries(
        str(tmp_path),
        every_steps=1,
        batch_size=10,
        schedules={},
        distributions=_Slow(),
        every_epochs=2,
    )
    stream = io.StringIO()
    progress = callbacks.Progress(
        epochs=5,
        steps_per_epoch=2,
        batch_size=10,
        aside=watcher.seconds_aside,
        stream=stream,
    )
    started = time.perf_counter()
    _fit([1.0] * 10, 2, [watcher, progress])
    took = time.perf_counter() - started
    # The start, every second epoch, and the end.
    assert list(_points(tmp_path, "x")) == [0, 4, 8, 10]
    assert watcher.seconds_aside() >= 2.0
    rates = _points(tmp_path, "system/steps_per_second")
    trained = sum(1 / rate for rate in rates.values())
    # Else it would be all but the part after the last point.
    assert trained < took - 1.9
    images = _points(tmp_path, "input/images_per_second")
    assert images[5] == pytest.approx(10 * rates[5])


def test_memory_is_what_this_process_holds():
    before = scalars.memory()["system/host_memory_gib"]
    held = np.ones([2**26])
    after = scalars.memory()["system/host_memory_gib"]
    assert held[-1] == 1
    assert 0.4 < after - before < 0.6


def _epochs_of(alarm, *logs):
    for epoch, (spread, loss) in enumerate(logs):
        alarm.on_epoch_end(epoch, {"embedding_std": spread, "loss": loss})


def test_collapse_is_told_once_after_three_epochs_in_a_row():
    stream = io.StringIO()
    alarm = callbacks.CollapseAlarm(None, stream=stream)
    _epochs_of(alarm, (0.01, 4), (0.01, 4), (0.5, 4), (0.01, 4), (0.01, 4))
    assert stream.getvalue() == ""
    _epochs_of(alarm, (0.01, 4), (0.01, 4), (0.01, 4))
    told = stream.getvalue()
    assert told.count("\n") == 1 and told.startswith("collapse: ")


def test_a_loss_that_stays_a_guess_is_told():
    stream = io.StringIO()
    alarm = callbacks.CollapseAlarm(4.844, stream=stream)
    _epochs_of(alarm, (0.9, 4.85), (0.9, 4.7), (0.9, 4.85), (0.9, 4.845))
    assert stream.getvalue() == ""
    _epochs_of(alarm, (0.9, 4.84))
    assert "nothing is learned: the loss has been 4.840" in stream.getvalue()


@pytest.mark.parametrize("loss", ["ntxent", "supcon", "supcon_in"])
def test_the_loss_of_a_guess_is_that_of_equal_embeddings(loss):
    run = fields.replace(Pretrain(), loss=loss, batch_size=8)
    equal = np.ones([8, 2, 4], np.float32)
    value = losses.build(loss)(equal, np.arange(8) // 2)
    assert training.loss_of_a_guess(run) == pytest.approx(float(value), 1e-5)


def test_what_is_no_softmax_over_all_views_has_no_such_loss():
    for options in ({"loss": "sincere"}, {"negatives": "other_view"}):
        run = fields.replace(Pretrain(), **options)
        assert training.loss_of_a_guess(run) is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
