"""Value and gradient of the losses, at growing batches.

Our losses compare blocks of embeddings, so that their memory is linear in the
batch; the alternatives hold the N x N matrix of all similarities several times.
A row of its own shows the time of `similarity_products="split"`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import losses
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark, LossBenchmark
from tf_contrastive.lab.benchmarks import measure

# Largest errors, relative to ours.
_ALLOWED = {"value": 1e-4, "gradient": 1e-3}

# N x N float32 matrices that a dense loss holds at its peak: logits, their
# exponentials, masks, gradients. Between 3 and 11, as measured.
_DENSE_MATRICES = 5

# Replaces minus infinity in masked logits, so that an empty row stays finite.
_MASKED = -1e30

_COLUMNS = {
    "loss": "{loss}",
    "N": "{size}",
    "implementation": "{implementation}",
    "ms": "{milliseconds:.1f}",
    "times ours": "{times_ours:.2f}",
    "peak growth MiB": "{peak_growth_mib:.0f}",
    "peak total MiB": "{peak_total_mib:.0f}",
    "note": "{note}",
}


class Case(NamedTuple):
    """A loss of `size` embeddings, two of each image."""

    loss: str
    size: int
    options: LossBenchmark

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns projections float32 [size / 2, 2, P] and balanced labels."""
        generator = np.random.default_rng(0)
        images = self.size // 2
        shape = (images, 2, self.options.dimension)
        projections = generator.standard_normal(shape, np.float32)
        return projections, generator.permutation(images) % self.options.classes


def run(options: Benchmark) -> measure.Report:
    """Measures every loss at every size."""
    chosen = options.loss
    rows: list[measure.Row] = []
    for loss in fields.split_list(chosen.losses):
        for size in fields.read_counts(chosen.sizes):
            makers = IMPLEMENTATIONS[loss]
            skipped = {}
            if size > chosen.dense_limit:
                gib = _DENSE_MATRICES * 4 * size**2 / 2**30
                note = f"needs about {gib:.3g} GiB"
                others = [name for name in makers if name not in _OURS]
                skipped = dict.fromkeys(others, note)
            compared = measure.compare(
                f"{loss} of {size:,} embeddings",
                makers,
                Case(loss, size, chosen),
                options.benchmarking,
                _errors,
                skipped,
            )
            rows += [{"loss": loss, "size": size, **row} for row in compared]
    ratios = {
        f"{row['loss']} of {row['size']:,}: {row['implementation']}": ratio
        for row in rows
        if (ratio := row["times_ours"]) and row["implementation"] != "ours"
    }
    return measure.Report(rows, [measure.table(_COLUMNS, rows)], ratios)


def _errors(
    outputs: tuple[np.ndarray, np.ndarray], ours: tuple[np.ndarray, np.ndarray]
) -> dict[str, measure.Error]:
    """Relative errors of the value, and of the gradient in its norm."""
    return {
        name: measure.Error(
            float(np.linalg.norm(theirs - our) / np.linalg.norm(our)), allowed
        )
        for (name, allowed), theirs, our in zip(
            _ALLOWED.items(), outputs, ours, strict=True
        )
    }


# ---- Implementations ---------------------------------------------------------


def _in_tensorflow(
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], case: Case
) -> measure.Call:
    """Value and gradient of loss(projections, labels) as one graph."""
    projections, labels = map(tf.constant, case.inputs())

    @tf.function
    def value_and_gradient(
        projections: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(projections)
            value = loss(projections, labels)
        return value, tape.gradient(value, projections)

    def call() -> tuple[np.ndarray, np.ndarray]:
        value, gradient = value_and_gradient(projections, labels)
        return value.numpy(), gradient.numpy()

    return call


def ours(case: Case) -> measure.Call:
    """This package's loss, with the device's own products."""
    return _ours(case, "plain")


def ours_split(case: Case) -> measure.Call:
    """This package's loss, with products that are nearly float32."""
    return _ours(case, "split")


def _ours(case: Case, similarity_products: str) -> measure.Call:
    loss = losses.build(
        case.loss,
        temperature=case.options.temperature,
        block_size=case.options.block_size,
        similarity_products=similarity_products,
    )
    return _in_tensorflow(loss, case)


def dense(case: Case) -> measure.Call:
    """The whole matrix of similarities, with automatic differentiation."""
    temperature = case.options.temperature

    def loss(projections: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        z = tf.math.l2_normalize(projections, axis=-1)
        flat = tf.reshape(z, [-1, z.shape[-1]])
        logits = tf.matmul(flat, flat, transpose_b=True) / temperature
        logits = tf.linalg.set_diag(
            logits, tf.fill(tf.shape(flat)[:1], _MASKED)
        )
        if case.loss == "ntxent":
            positive = tf.reduce_sum(z[:, 0] * z[:, 1], axis=-1) / temperature
            total = tf.reduce_logsumexp(logits, axis=-1)
            return tf.reduce_mean(total) - tf.reduce_mean(positive)
        labels = tf.repeat(labels, 2)
        same = labels[:, tf.newaxis] == labels
        positives = tf.linalg.set_diag(same, tf.zeros_like(labels, tf.bool))
        count = tf.math.count_nonzero(positives, -1, dtype=tf.float32)

        def mean_of_positives(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.where(positives, values, 0.0), -1) / count

        if case.loss == "sincere":
            noise = tf.where(same, _MASKED, logits)
            noise = tf.reduce_logsumexp(noise, axis=-1, keepdims=True)
            return tf.reduce_mean(
                mean_of_positives(tf.nn.softplus(noise - logits))
            )
        total = tf.reduce_logsumexp(logits, axis=-1)
        if case.loss == "supcon":
            return tf.reduce_mean(total - mean_of_positives(logits))
        inside = tf.where(positives, logits, _MASKED)
        inside = tf.reduce_logsumexp(inside, axis=-1) - tf.math.log(count)
        return tf.reduce_mean(total - inside)

    return _in_tensorflow(loss, case)


def keras_cv(case: Case) -> measure.Call:
    """KerasCV's SimCLRLoss, which sums the means of both views: halved."""
    losses_of = measure.keras_cv().losses
    simclr = losses_of.SimCLRLoss(temperature=case.options.temperature)
    return _in_tensorflow(lambda z, _: simclr(z[:, 0], z[:, 1]) / 2, case)


def pytorch_metric_learning(case: Case) -> measure.Call:
    """PyTorch Metric Learning's SupConLoss."""
    import torch
    from pytorch_metric_learning import losses as torch_losses

    loss = torch_losses.SupConLoss(temperature=case.options.temperature)
    projections, labels = case.inputs()
    variable = torch.from_numpy(projections).requires_grad_()
    targets = torch.from_numpy(labels.repeat(2))

    def call() -> tuple[np.ndarray, np.ndarray]:
        value = loss(variable.flatten(0, 1), targets)
        (gradient,) = torch.autograd.grad(value, variable)
        return value.detach().numpy(), gradient.numpy()

    return call


# Loss -> its implementations; the first is ours.
_OURS: dict[str, measure.Maker] = {"ours": ours, "ours-split": ours_split}
_BOTH: dict[str, measure.Maker] = {**_OURS, "dense": dense}
IMPLEMENTATIONS: dict[str, dict[str, measure.Maker]] = {
    "ntxent": {**_BOTH, "keras-cv": keras_cv},
    "supcon": {**_BOTH, "pytorch-metric-learning": pytorch_metric_learning},
    "supcon_in": {**_BOTH},
    "sincere": {**_BOTH},
}
