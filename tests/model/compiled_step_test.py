"""The training step as a whole: compiled, never traced again."""

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import callbacks, checkpoints
from tf_contrastive import train as training
from tf_contrastive.config import fields

pytestmark = pytest.mark.usefixtures("small_encoder")

_BATCH, _SIDE, _CLASSES = 8, 16, 3


# ---- Compiled by XLA ---------------------------------------------------------


# ---- One graph, several steps of it at a time --------------------------------


def _options(workdir, **changes):
    values = {
        "dataset": "digits",
        "split": "train[:256]",
        "augmentation": "crop",
        "encoder": "resnet10",
        "width": 0.125,
        "projection_output": 8,
        "loss": "supcon",
        "batch_size": 16,
        "epochs": 3,
        "learning_rate": 0.5,
        "validation_fraction": 0.25,
        "checkpoint_every_steps": 8,
        "log_every_steps": 5,
        "keep_checkpoints": 100,
        "workdir": str(workdir),
    }
    return fields.replace(small.RUN, **(values | changes))


def _watched(monkeypatch, seconds, stop_at=None):
    """Notes the models that are fitted, and the steps at which the host looks.

    Args:
      seconds: step -> what the pacer's clock shows after it.
      stop_at: step that ends the run, as a crash would.
    """
    fitted, looks = [], []
    fit, keep = training.fit, callbacks.CheckpointCallback.on_train_batch_end
    pacer = callbacks.AdaptiveStepsPerExecution

    def spy(run, model, *args):
        fitted.append(model)
        return fit(run, model, *args)

    def look(self, batch, logs):
        keep(self, batch, logs)
        looks.append(self._checkpoints.step)
        if stop_at is not None and self._checkpoints.step >= stop_at:
            raise InterruptedError

    def paced(kept, *args):
        return pacer(kept, *args, clock=lambda: seconds(kept.step))

    monkeypatch.setattr(training, "fit", spy)
    monkeypatch.setattr(
        callbacks.CheckpointCallback, "on_train_batch_end", look
    )
    monkeypatch.setattr(callbacks, "AdaptiveStepsPerExecution", paced)
    return fitted, looks


def _fast(step):
    return 1e-3 * step


def _points(workdir):
    """Step and loss of the points in TensorBoard."""
    return [
        (event.step, tf.make_ndarray(value.tensor).item())
        for path in sorted((workdir / "events").glob("events.out.*"))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss/contrastive"
    ]


def _saved(workdir):
    """Step -> the values of its checkpoint."""
    found = {}
    for path in (workdir / "checkpoints").glob("ckpt-*.index"):
        reader = tf.train.load_checkpoint(str(path.with_suffix("")))
        found[checkpoints.step_of(path.stem)] = {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if "CHECKPOINTABLE" not in name and "save_counter" not in name
        }
    return found


def _assert_same_run(workdir, reference):
    assert _points(workdir) == _points(reference)
    found, expected = _saved(workdir), _saved(reference)
    assert sorted(found) == sorted(expected) == [8, 16, 24, 32, 36]
    for number, values in expected.items():
        assert set(found[number]) == set(values)
        for name, value in values.items():
            np.testing.assert_array_equal(
                found[number][name], value, err_msg=f"{name} at step {number}"
            )


@pytest.mark.slow
def test_several_steps_at_a_time_are_the_same_run(tmp_path, monkeypatch):
    one, several = tmp_path / "one", tmp_path / "several"
    expected = training.pretrain(_options(one, steps_per_execution=1))
    fitted, looks = _watched(monkeypatch, lambda step: 1.0 * step)
    result = training.pretrain(_options(several))
    # 36 steps, of which a point is due at each fifth, a checkpoint at each
    # eighth, and validation at the end of each epoch of 12.
    due = {*range(5, 36, 5), *range(8, 36, 8), 12, 24, 36}
    assert looks == sorted({1, 2, 4} | due)
    assert result.run.options.runtime.steps_per_execution is None
    written = (several / "config.flags").read_text()
    assert "steps_per_execution" not in written  # It is auto.
    (model,) = fitted
    assert model.train_tf_function.experimental_get_tracing_count() == 1
    _assert_same_run(several, one)
    # Validation takes all of its batches, whatever the pace.
    assert result.metrics == expected.metrics
    assert result.metrics["val_loss"] > 0
