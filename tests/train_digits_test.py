"""Losses of each kind train an encoder on real images."""

import numpy as np
import pytest
import small

from tf_contrastive import checkpoints, datasets, embedding, evaluation, views
from tf_contrastive import train as training
from tf_contrastive.config import fields
from tf_contrastive.losses import contrastive_metrics
from tf_contrastive.tensorboard import scalars

pytestmark = [pytest.mark.usefixtures("small_encoder"), pytest.mark.early]

_OPTIONS = {
    "dataset": "digits",
    "min_crop_area": 0.4,
    "encoder": "resnet10",
    "width": 0.25,
    "projection_output": 64,
    "epochs": 10,
    "warmup_epochs": 1.0,
    "batch_size": 128,
    "learning_rate": 1.0,
    "weight_decay": 1e-4,
    "log_every_steps": 11,  # An epoch.
}
# The queue is full after the first epoch, since the loss grows until then. Keys
# follow the encoder within the run's 220 steps.
_MOCO = {"queue_size": 256, "key_momentum": 0.99, "epochs": 20}


def _embed(encoder, split):
    batches = datasets.evaluation_batches(
        datasets.source("digits", split), views.evaluation(8), batch_size=512
    )
    return embedding.embed(encoder, batches)


def _score(encoder):
    """Top-1 of a linear probe, and the effective rank, on the test split."""
    train, test = _embed(encoder, "train"), _embed(encoder, "test")
    probe = evaluation.linear_probe(*train, *test, epochs=30)
    return probe["top1"], float(contrastive_metrics.effective_rank(test[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "changes", "gain"),
    # SupCon learns in `examples/fit_arrays.py`. Gradients of all are compared
    # with oracles. The gain is of the linear probe's top-1.
    [("ntxent", {}, 0.1), ("moco", _MOCO, 0.05)],
)
def test_the_loss_falls_and_the_encoder_gets_better(
    loss, changes, gain, tmp_path
):
    options = {**_OPTIONS, "loss": loss, **changes}
    run = fields.replace(small.RUN, workdir=str(tmp_path), **options)
    training.pretrain(run)
    curves = scalars.read(str(tmp_path / "events"))
    history = list(curves["loss/contrastive"].values())
    saved = checkpoints.load_run(str(tmp_path))
    before, after = (
        _score(checkpoints.load_encoder(saved, trained=trained))
        for trained in (False, True)
    )
    print(f"{loss}: loss {history[1]} -> {history[-1]}, {before} -> {after}")
    assert np.all(np.isfinite(history))
    assert history[-1] < history[1]
    assert after[1] > before[1] / 2
    assert after[0] > before[0] + gain


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_a_collapse_is_noticed(weight, tmp_path, capsys):
    changes = {"loss": "decoupled_ntxent", "loss_weight": weight, "epochs": 8}
    # Which keeps embeddings apart for longer.
    changes["projection_batch_norm"] = False
    run = fields.replace(small.RUN, workdir=str(tmp_path), **_OPTIONS | changes)
    metrics = training.pretrain(run).metrics
    assert (metrics["embedding_std"] < 0.3) == (weight == 0)
    assert capsys.readouterr().err.count("collapse: ") == (weight == 0)
