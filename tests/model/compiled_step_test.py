"""Several training steps per call of the host: the same run, traced once."""

import pytest
import small

from tf_contrastive import callbacks, checkpoints
from tf_contrastive import train as training
from tf_contrastive.tensorboard import scalars

pytestmark = pytest.mark.usefixtures("small_encoder")


def _options(workdir, **changes):
    return small.run(
        batch_size=16,
        epochs=3,
        learning_rate=0.5,
        projection_output=8,
        validation_fraction=0.25,
        checkpoint_every_steps=8,
        log_every_steps=5,
        keep_checkpoints=100,
        workdir=str(workdir),
        **changes,
    )


def _watched(monkeypatch):
    """Notes the steps at which the host looks, each with its model.

    By the clock of `AdaptiveStepsPerExecution`, each step takes one second.
    """
    looks = {}
    keep = callbacks.CheckpointCallback.on_train_batch_end
    pacer = callbacks.AdaptiveStepsPerExecution

    def look(self, batch, logs):
        keep(self, batch, logs)
        looks[self._checkpoints.step] = self.model

    def paced(kept, *args):
        return pacer(kept, *args, clock=lambda: 1.0 * kept.step)

    monkeypatch.setattr(
        callbacks.CheckpointCallback, "on_train_batch_end", look
    )
    monkeypatch.setattr(callbacks, "AdaptiveStepsPerExecution", paced)
    return looks


def _points(workdir):
    """Step -> loss of the points in TensorBoard."""
    return scalars.read(str(workdir / "events"))["loss/contrastive"]


def _saved(workdir):
    return [*map(checkpoints.step_of, checkpoints.saved(str(workdir)))]


@pytest.mark.slow
def test_several_steps_at_a_time_are_the_same_run(tmp_path, monkeypatch):
    one, several = tmp_path / "one", tmp_path / "several"
    expected = training.pretrain(_options(one, steps_per_execution=1))
    looks = _watched(monkeypatch)
    result = training.pretrain(_options(several))
    # 36 steps, of which a point is due at each fifth, a checkpoint at each
    # eighth, and validation at the end of each epoch of 12.
    due = {*range(5, 36, 5), *range(8, 36, 8), 12, 24, 36}
    assert [*looks] == sorted({1, 2, 4} | due)
    traced = looks[36].train_tf_function.experimental_get_tracing_count()
    assert traced == 1
    assert _points(several) == _points(one)
    assert _saved(several) == _saved(one) == [8, 16, 24, 32, 36]
    for step in _saved(one):
        expected_weights = small.weights(one, step)
        small.check_equal(expected_weights, small.weights(several, step))
    # Validation takes all of its batches, whatever the pace.
    assert result.metrics == expected.metrics
    assert result.metrics["val_loss"] > 0
