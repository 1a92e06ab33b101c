"""Value and gradient of the losses, at growing batches.

Our losses compare blocks of embeddings, so that their memory is linear in the
batch; the alternatives hold the N x N matrix of all similarities several times.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Loss
from tf_contrastive import losses

_TEMPERATURE = 0.1
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
    "note": "{note}",
}


class Case(NamedTuple):
    """A loss of `size` embeddings, two of each image."""

    loss: str
    size: int
    options: Loss

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns projections float32 [size / 2, 2, P] and balanced labels."""
        generator = np.random.default_rng(0)
        images = self.size // 2
        shape = (images, 2, self.options.dimension)
        projections = generator.standard_normal(shape, np.float32)
        return projections, generator.permutation(images) % self.options.classes


def run(common: Common, options: Loss) -> measure.Report:
    """Measures every loss at every size."""
    rows: list[measure.Row] = []
    for loss in options.losses:
        for size in options.sizes:
            peers = {"dense": dense} | PEERS.get(loss, {})
            skipped = {}
            if size > options.dense_limit:
                gib = _DENSE_MATRICES * 4 * size**2 / 2**30
                note = f"needs about {gib:.3g} GiB"
                skipped = dict.fromkeys(peers, note)
            compared = measure.compare(
                f"{loss} of {size:,} embeddings",
                {"ours": ours} | peers,
                Case(loss, size, options),
                common,
                _errors,
                skipped,
            )
            rows += [{"loss": loss, "size": size, **row} for row in compared]
    return measure.Report(rows, measure.table(_COLUMNS, rows))


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
    """This package's loss."""
    # "plain": with the products of the device, as those of the others.
    options = {"temperature": _TEMPERATURE, "similarity_products": "plain"}
    loss = losses.build(case.loss, **options)
    return _in_tensorflow(loss, case)


def dense(case: Case) -> measure.Call:
    """The whole matrix of similarities, with automatic differentiation."""
    formula = LOSSES[case.loss]

    def loss(projections: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        z = tf.math.l2_normalize(projections, axis=-1)
        pairs = tf.reduce_sum(z[:, 0] * z[:, 1], axis=-1) / _TEMPERATURE
        flat = tf.reshape(z, [-1, z.shape[-1]])
        logits = tf.matmul(flat, flat, transpose_b=True) / _TEMPERATURE
        logits = tf.linalg.set_diag(
            logits, tf.fill(tf.shape(flat)[:1], _MASKED)
        )
        labels, pairs = tf.repeat(labels, 2), tf.repeat(pairs, 2)
        return tf.reduce_mean(formula(logits, labels, pairs))

    return _in_tensorflow(loss, case)


# (Logits [N, N], masked where an anchor meets itself; labels [N]; logits of the
# two views of an image [N]) -> the loss of each anchor.
Formula = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def _ntxent(
    logits: tf.Tensor, labels: tf.Tensor, pairs: tf.Tensor
) -> tf.Tensor:
    return tf.reduce_logsumexp(logits, axis=-1) - pairs


def _supcon(
    logits: tf.Tensor, labels: tf.Tensor, pairs: tf.Tensor
) -> tf.Tensor:
    total = tf.reduce_logsumexp(logits, axis=-1)
    return total - _mean_of_positives(logits, labels)


def _sincere(
    logits: tf.Tensor, labels: tf.Tensor, pairs: tf.Tensor
) -> tf.Tensor:
    same = labels[:, tf.newaxis] == labels
    noise = tf.where(same, _MASKED, logits)
    noise = tf.reduce_logsumexp(noise, axis=-1, keepdims=True)
    return _mean_of_positives(tf.nn.softplus(noise - logits), labels)


def _mean_of_positives(values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Averages over the others of each anchor's class: [N, N] -> [N]."""
    same = labels[:, tf.newaxis] == labels
    positives = tf.linalg.set_diag(same, tf.zeros_like(labels, tf.bool))
    count = tf.math.count_nonzero(positives, -1, dtype=tf.float32)
    return tf.reduce_sum(tf.where(positives, values, 0.0), -1) / count


def keras_cv(case: Case) -> measure.Call:
    """KerasCV's SimCLRLoss, which sums the means of both views: halved."""
    losses_of = measure.keras_cv().losses
    simclr = losses_of.SimCLRLoss(temperature=_TEMPERATURE)
    return _in_tensorflow(lambda z, _: simclr(z[:, 0], z[:, 1]) / 2, case)


# Loss -> its formula in TensorFlow, of the whole matrix.
LOSSES: dict[str, Formula] = {
    "ntxent": _ntxent,
    "supcon": _supcon,
    "sincere": _sincere,
}
# Loss -> implementations by others.
PEERS: dict[str, dict[str, measure.Maker]] = {"ntxent": {"keras-cv": keras_cv}}
