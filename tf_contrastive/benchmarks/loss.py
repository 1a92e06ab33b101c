"""Value and gradient of the losses, at growing batches.

Ours compare blocks of embeddings and need memory that grows with the batch;
the others keep the matrix of all similarities, N^2 numbers, several times.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import losses
from tf_contrastive.benchmarks import measure
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark, LossBenchmark

# Largest errors, relative to ours.
_VALUE_ERROR = 1e-4
_GRADIENT_ERROR = 1e-3

# N x N float32 matrices that a dense loss holds at its peak, about: logits,
# their exponentials, masks, gradients. By measurement 3 to 11.
_DENSE_MATRICES = 5

# Stands for minus infinity in a masked logit: an empty row stays finite.
_MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss and its input: `size` embeddings, two of each image."""

    loss: str
    size: int
    dimension: int
    classes: int
    temperature: float
    block_size: int

    def __str__(self) -> str:
        return f"{self.loss} of {self.size:,} embeddings"

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Projections float32 [size / 2, 2, dimension] and labels [size / 2].

        Every class has as many images as another, give or take one.
        """
        draws = np.random.default_rng(0)
        images = self.size // 2
        shape = (images, 2, self.dimension)
        projections = draws.standard_normal(shape, np.float32)
        return projections, draws.permutation(images) % self.classes


def run(options: Benchmark, say: Callable[[str], None]) -> measure.Report:
    """Measures every loss at every size.

    Args:
      options: validated.
      say: is told what is being done.
    """
    chosen = options.loss
    results = []
    passed = True
    # TensorFlow's own start is nobody's graph building.
    dense(Case("ntxent", 4, 2, 2, 1.0, 0))()
    for case in _cases(chosen):
        makers = IMPLEMENTATIONS[case.loss]
        if options.benchmarking.only_ours:
            makers = {"ours": makers["ours"]}
        found = measure.side_by_side(
            makers,
            case,
            errors=_errors,
            skipped=_skipped(makers, case, chosen.dense_limit),
            repeats=options.benchmarking.repeats,
            memory=options.benchmarking.memory,
            say=say,
        )
        passed &= not any(result.failed for result in found)
        results += [
            {**dataclasses.asdict(case), **dataclasses.asdict(result)}
            for result in found
        ]
    return measure.Report(results, _tables(results), passed)


def _cases(chosen: LossBenchmark) -> list[Case]:
    return [
        Case(
            loss=loss,
            size=int(size),
            dimension=chosen.dimension,
            classes=chosen.classes,
            temperature=chosen.temperature,
            block_size=chosen.block_size,
        )
        for loss in fields.split_list(chosen.losses)
        for size in fields.split_list(chosen.sizes)
    ]


def _skipped(
    makers: dict[str, measure.Make], case: Case, limit: int
) -> dict[str, str]:
    """Why the implementations that keep N^2 numbers are not run."""
    if case.size <= limit:
        return {}
    gib = _DENSE_MATRICES * 4 * case.size**2 / 2**30
    return {
        name: f"needs about {gib:.3g} GiB" for name in makers if name != "ours"
    }


def _errors(
    outputs: tuple[np.ndarray, np.ndarray], ours: tuple[np.ndarray, np.ndarray]
) -> dict[str, measure.Error]:
    """Relative errors of the value, and of the gradient in its norm."""
    value, gradient = (
        float(np.linalg.norm(theirs - our) / np.linalg.norm(our))
        for theirs, our in zip(outputs, ours, strict=True)
    )
    return {
        "value": measure.Error(value, _VALUE_ERROR),
        "gradient": measure.Error(gradient, _GRADIENT_ERROR),
    }


def _tables(results: list[dict[str, Any]]) -> list[str]:
    columns = {
        "loss": "{loss}",
        "N": "{size}",
        "implementation": "{implementation}",
        "ms": "{milliseconds:.1f}",
        "times ours": "{times_ours:.2f}",
        "peak growth MiB": "{peak_growth_mib:.0f}",
        "peak total MiB": "{peak_total_mib:.0f}",
        "graph building s": "{graph_building_seconds:.2f}",
        "note": "{note}",
    }
    tables = [measure.table(columns, results)]
    if rows := growth(results):
        columns = {
            "memory by N (ours)": "{loss}",
            "N": "{size}",
            "peak growth MiB": "{peak_growth_mib:.0f}",
            "KiB per added embedding": "{kib_per_added:.2f}",
        }
        tables.append(measure.table(columns, rows))
    return tables


def growth(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours with `kib_per_added`: KiB per embedding more than in the row above.

    As many KiB in every row is memory that is linear in N. The memory of the
    graph itself, which has one size, is not in them.
    """
    measured = [
        result
        for result in results
        if result["implementation"] == "ours"
        and result["peak_growth_mib"] is not None
    ]
    rows = []
    for before, row in zip([None, *measured], measured, strict=False):
        added = None
        if before and before["loss"] == row["loss"]:
            mib = row["peak_growth_mib"] - before["peak_growth_mib"]
            added = 1024 * mib / max(row["size"] - before["size"], 1)
        rows.append({**row, "kib_per_added": added})
    return rows


# ---- Implementations ---------------------------------------------------------


def _in_tensorflow(
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], case: Case
) -> measure.Call:
    """Value and gradient of loss(projections, labels) as one graph."""
    projections, labels = map(tf.constant, case.inputs())

    @tf.function
    def value_and_gradient(projections, labels):
        with tf.GradientTape() as tape:
            tape.watch(projections)
            value = loss(projections, labels)
        return value, tape.gradient(value, projections)

    def call():
        value, gradient = value_and_gradient(projections, labels)
        return value.numpy(), gradient.numpy()

    return call


def ours(case: Case) -> measure.Call:
    """This package's loss."""
    loss = losses.build(
        case.loss, temperature=case.temperature, block_size=case.block_size
    )
    return _in_tensorflow(loss, case)


def dense(case: Case) -> measure.Call:
    """The loss of `DENSE`."""

    def loss(projections, labels):
        return DENSE[case.loss](projections, labels, case.temperature)

    return _in_tensorflow(loss, case)


def keras_cv(case: Case) -> measure.Call:
    """KerasCV's SimCLRLoss, the sum of both views' means: halved."""
    # It prints its backend, where the table is to stand.
    with contextlib.redirect_stdout(sys.stderr):
        from keras_cv import losses as keras_cv_losses

    simclr = keras_cv_losses.SimCLRLoss(temperature=case.temperature)

    def loss(projections, labels):
        del labels
        return simclr(projections[:, 0], projections[:, 1]) / 2

    return _in_tensorflow(loss, case)


def pytorch_metric_learning(case: Case) -> measure.Call:
    """PyTorch Metric Learning's SupConLoss."""
    import torch
    from pytorch_metric_learning import losses as torch_losses

    loss = torch_losses.SupConLoss(temperature=case.temperature)
    projections, labels = case.inputs()
    projections = torch.from_numpy(projections).requires_grad_()
    labels = torch.from_numpy(labels.repeat(2))

    def call():
        value = loss(projections.flatten(0, 1), labels)
        (gradient,) = torch.autograd.grad(value, projections)
        return value.detach().numpy(), gradient.numpy()

    return call


# Loss -> implementations of it; the first is ours.
IMPLEMENTATIONS: dict[str, dict[str, measure.Make]] = {
    "ntxent": {"ours": ours, "dense": dense, "keras-cv": keras_cv},
    "supcon": {
        "ours": ours,
        "dense": dense,
        "pytorch-metric-learning": pytorch_metric_learning,
    },
    "supcon_in": {"ours": ours, "dense": dense},
    "sincere": {"ours": ours, "dense": dense},
}

# ---- The dense losses --------------------------------------------------------


def _logits(projections: tf.Tensor, temperature: float) -> tf.Tensor:
    """Cosines over temperature [N, N]; an embedding is no match for itself."""
    z = tf.reshape(projections, [-1, projections.shape[-1]])
    z = tf.math.l2_normalize(z, axis=-1)
    logits = tf.matmul(z, z, transpose_b=True) / temperature
    return tf.linalg.set_diag(logits, tf.fill(tf.shape(z)[:1], _MASKED))


def _positives_and_negatives(labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Bool [N, N]: of one class, but not the same; of another class."""
    labels = tf.repeat(labels, 2)
    same = labels[:, tf.newaxis] == labels
    return tf.linalg.set_diag(same, tf.zeros_like(labels, tf.bool)), ~same


def _log_sum_exp(logits: tf.Tensor) -> tf.Tensor:
    """Of each row, [N], with its maximum taken out."""
    largest = tf.stop_gradient(tf.reduce_max(logits, axis=-1, keepdims=True))
    total = tf.reduce_sum(tf.exp(logits - largest), axis=-1)
    return tf.math.log(total) + largest[:, 0]


def _mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Of each row's values in the mask, [N]."""
    total = tf.reduce_sum(tf.where(mask, values, 0.0), axis=-1)
    return total / _count(mask)


def _count(mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)


def _dense_ntxent(projections, labels, temperature):
    del labels
    logits = _logits(projections, temperature)
    first, second = tf.unstack(
        tf.math.l2_normalize(projections, axis=-1), axis=1
    )
    positives = tf.reduce_sum(first * second, axis=-1) / temperature
    return tf.reduce_mean(_log_sum_exp(logits)) - tf.reduce_mean(positives)


def _dense_supcon(projections, labels, temperature):
    logits = _logits(projections, temperature)
    positives, _ = _positives_and_negatives(labels)
    return tf.reduce_mean(_log_sum_exp(logits) - _mean(logits, positives))


def _dense_supcon_in(projections, labels, temperature):
    logits = _logits(projections, temperature)
    positives, _ = _positives_and_negatives(labels)
    inside = _log_sum_exp(tf.where(positives, logits, _MASKED))
    inside -= tf.math.log(_count(positives))
    return tf.reduce_mean(_log_sum_exp(logits) - inside)


def _dense_sincere(projections, labels, temperature):
    logits = _logits(projections, temperature)
    positives, negatives = _positives_and_negatives(labels)
    noise = _log_sum_exp(tf.where(negatives, logits, _MASKED))
    terms = tf.nn.softplus(noise[:, tf.newaxis] - logits)
    return tf.reduce_mean(_mean(terms, positives))


# Loss -> (projections [B, 2, P], labels [B], temperature) -> []. Plain
# TensorFlow, differentiated by itself.
DENSE = {
    "ntxent": _dense_ntxent,
    "supcon": _dense_supcon,
    "supcon_in": _dense_supcon_in,
    "sincere": _dense_sincere,
}
