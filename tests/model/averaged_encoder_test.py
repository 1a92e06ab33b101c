"""Averages of a run's weights, by NumPy from those after each step."""

import numpy as np
import pytest
import small
import tensorflow as tf

import tf_contrastive
from tf_contrastive import checkpoints, exporting, heads, train
from tf_contrastive.exporting.classifier_heads import ProbeHead

_DECAY = 0.2


def _by_numpy(workdir, **parts):
    """The average of a network over the steps, and its last weights."""
    (network,) = parts.values()
    average = None
    for step, path in enumerate(checkpoints.saved(workdir)):
        assert path.endswith(f"ckpt-{step + 1}")
        tf.train.Checkpoint(**parts).restore(path).expect_partial()
        weights = [w.astype(np.float64) for w in network.get_weights()]
        m = min(_DECAY, step / (step + 9))
        pairs = zip(average or weights, weights, strict=True)
        average = [m * a + (1 - m) * w for a, w in pairs]
    assert step == 5
    return average, weights


def _distance(weights, expected):
    pairs = zip(weights, expected, strict=True)
    return max(np.max(np.abs(a - b)) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.keras
def test_what_is_read_of_a_run_is_the_average(tmp_path):
    options = {"checkpoint_every_steps": 1, "keep_checkpoints": 9}
    options |= {"ema": _DECAY, "split": "train[:192]", "workdir": str(tmp_path)}
    train.pretrain(small.run(**options))
    run = checkpoints.load_run(str(tmp_path))
    encoder = tf_contrastive.load(str(tmp_path))
    head, _ = checkpoints.load_heads(run, encoder.output_shape[-1])
    read = ProbeHead.from_run(run, encoder.output_shape[-1])
    probe = heads.LinearProbe(10)
    probe.build([None, encoder.output_shape[-1]])
    model, _ = train.prepare(small.run(**options)).build()
    saved = tf.train.Checkpoint(**model.checkpointed())
    saved.restore(run.checkpoint).expect_partial()
    parts, last = exporting.Parts.load(model), model.encoder.get_weights()
    assert _distance(parts.encoder.get_weights(), last) > 1e-3
    for one, wanted in ((parts.encoder, encoder), (parts.projection, head)):
        assert _distance(one.get_weights(), wanted.get_weights()) == 0
    model.averages.use()
    assert _distance(model.encoder.get_weights(), encoder.get_weights()) == 0
    for part, found in (
        ({"encoder": checkpoints.load_encoder(run)}, encoder.get_weights()),
        ({"projection_head": head}, head.get_weights()),
        ({"probe": probe}, [read.kernel.numpy(), read.bias.numpy()]),
    ):
        average, last = _by_numpy(str(tmp_path), **part)
        assert _distance(found, average) < 1e-6
        assert _distance(last, average) > 1e-3
    with pytest.raises(ValueError, match=r"ema=1.0: must be in \[0, 1\)"):
        type(model).from_config(model.get_config() | {"ema": 1.0})
