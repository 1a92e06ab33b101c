"""Alignment to views and to a prior: the generalized contrastive losses."""

from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config.loss import NORMALIZATIONS
from tf_contrastive.losses import base, similarity

# Named, since the automatic choice differs between devices.
_ALGORITHM = "philox"


def alignment(projections: tf.Tensor) -> tf.Tensor:
    """Mean squared distance of an image's views over P, [B, V, P] -> [].

    Chen et al. 2021 (Intriguing Properties), table 1, L_align.
    """
    views = projections.shape[1]
    gaps = [
        tf.reduce_mean((projections - tf.roll(projections, k, axis=1)) ** 2)
        for k in range(1, views)
    ]
    return tf.add_n(gaps) / len(gaps) if gaps else tf.zeros([])


class _Generalized(base.ContrastiveLoss):
    """alignment + weight * distribution; no mean over anchors.

    Args:
      weight: lambda, at least 0.
      **options: those of `ContrastiveLoss`.
    """

    def __init__(self, *, weight: float, **options) -> None:
        super().__init__(**options)
        base.check_at_least("weight", weight, 0.0)
        self._weight = weight

    def __call__(self, projections, labels=None, seed=None):
        """Computes the loss; see `ContrastiveLoss`."""
        del labels
        projections = base.check_projections(projections)
        projections = tf.cast(projections, tf.float32)
        if self.normalize:
            projections = similarity.l2_normalize(projections)
        return alignment(projections) + self._weight * self._distribution(
            projections, seed
        )

    def per_anchor(self, projections, labels=None):
        """Raises `TypeError`: the loss is no mean over anchors."""
        raise TypeError(
            f"{type(self).__name__} is no mean over anchors, and has no loss of"
            " each"
        )

    def _distribution(self, projections, seed) -> tf.Tensor:
        """L_distribution of (normalised) projections [B, V, P], []."""
        raise TypeError(f"{type(self).__name__} defines no _distribution")


class AlignUniform(_Generalized):
    """Alignment, and uniformity on the hypersphere by a log-sum-exp.

    Chen et al. 2021 (Intriguing Properties), table 1, row 1, d being the size
    P of a projection, n the images:

        1/(n d) sum |z_i - z_j|^2
            + weight * mean_i log sum_j exp(z_i . z_j / t)

    j runs over all embeddings, i among them, as the table and the authors'
    code have it (which subtracts the constant ln d, and halves the first
    term). Labels are ignored.

    Args:
      include_self: False: leave i out, as NT-Xent does.
      **options: `weight`, and those of `ContrastiveLoss`.
    """

    def __init__(self, *, include_self: bool, **options) -> None:
        super().__init__(**options)
        self._include_self = include_self

    def _distribution(self, projections, seed):
        del seed
        # Normalised already, where they are to be.
        batch = similarity.gather(projections, normalize=False)
        batch = batch._replace(normalized=self.normalize)
        rows = similarity.LogSumExp(
            batch,
            self.temperature,
            include_self=self._include_self,
            block_size=self.block_size,
        )
        anchors = tf.shape(batch.anchors.images)
        # An embedding that is alone has nothing to be spread among.
        spread = self._include_self or tf.size(batch.candidates.images) > 1
        share = tf.cast(spread, tf.float32) / tf.cast(anchors[0], tf.float32)
        return rows.total(tf.fill(anchors, share))


class SlicedWasserstein(_Generalized):
    """Alignment, and the sliced Wasserstein distance to a prior.

    Chen et al. 2021 (Intriguing Properties), table 1, rows 2 to 4, and
    Algorithm 1: all embeddings [b, d] of the global batch, and as many draws of
    the prior, are projected by one random orthogonal matrix, and the distance
    is that of the sorted columns:

        scale * (1/(n d) sum |z_i - z_j|^2 + weight * sum_k |sort(H W)_k -
            sort(P W)_k|^2 / (d * d'))

    Labels are ignored.

    Args:
      normalization: "paper": over d * d', d' = d, as printed, which grows with
        the batch; "mean": over b * d', as the authors' code has it.
      scale: of the whole loss (the paper: 1000 on the hypersphere).
      **options: `weight`, and those of `ContrastiveLoss`.
    """

    def __init__(self, *, normalization: str, scale: float, **options) -> None:
        super().__init__(**options)
        base.check_choice("normalization", normalization, NORMALIZATIONS)
        if not scale > 0:
            raise ValueError(f"scale={scale}: must be above 0")
        self._per_row = normalization == "mean"
        self._scale = scale
        # Counts the calls that bring no seed.
        self._calls = tf.Variable(
            0,
            dtype=tf.int32,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def __call__(self, projections, labels=None, seed=None):
        """Computes the loss; see `ContrastiveLoss`."""
        return self._scale * super().__call__(projections, labels, seed)

    def _distribution(self, projections, seed):
        size = projections.shape[-1]
        h = distribution.cross_replica_concat(projections)
        h = tf.reshape(h, [-1, size])
        if seed is None:
            seed = self._next_seed()
        seeds = tf.random.split(seed, 2, alg=_ALGORITHM)
        directions = _random_orthogonal(seeds[0], size)
        drawn = self._prior(seeds[1], tf.shape(h))
        distance = sliced_wasserstein(h, drawn, directions)
        rows = tf.cast(tf.shape(h)[0], tf.float32)
        return distance / (size * (rows if self._per_row else size))

    @staticmethod
    def _prior(seed, shape) -> tf.Tensor:
        """Draws from the prior, float32 of `shape`."""
        raise TypeError("SlicedWasserstein has no prior; its subclasses have")

    def _next_seed(self) -> tf.Tensor:
        if distribution.num_replicas() > 1:
            raise ValueError(
                f"{type(self).__name__} on several replicas needs a seed int32"
                " [2], the same on all of them"
            )
        return tf.stack([self._calls.assign_add(1), 0])


def sliced_wasserstein(
    h: tf.Tensor, prior: tf.Tensor, directions: tf.Tensor
) -> tf.Tensor:
    """Algorithm 1 before its division: [b, d], [b, d], [d, d'] -> [].

    The squared distance of sorted projections, summed over directions.
    """
    mine, theirs = (
        tf.sort(tf.matmul(directions, x, transpose_a=True, transpose_b=True))
        for x in (h, prior)
    )
    return tf.reduce_sum((mine - theirs) ** 2)


def _uniform(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Numbers in (0, 1), float32 of `shape`.

    Made of whole numbers, which XLA draws as TensorFlow's kernels do. Its
    fractions and normal numbers are others, whatever the algorithm.
    """
    drawn = tf.random.stateless_uniform(
        shape, seed, None, None, tf.int32, alg=_ALGORITHM
    )
    # The upper 23 bits: as many as keep 1 away.
    upper = tf.bitwise.right_shift(tf.bitcast(drawn, tf.uint32), 9)
    return (tf.cast(tf.cast(upper, tf.int32), tf.float32) + 0.5) * 2.0**-23


def _normal(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    return tf.math.ndtri(_uniform(shape, seed))


def _random_orthogonal(seed: tf.Tensor, size: int) -> tf.Tensor:
    """A uniformly random orthogonal matrix, float32 [size, size]."""
    q, r = tf.linalg.qr(_normal([size, size], seed))
    # The signs make the distribution uniform (Mezzadri 2007).
    return q * tf.sign(tf.linalg.diag_part(r))


class SWDHypersphere(SlicedWasserstein):
    """Table 1, row 2: the prior is uniform on the unit hypersphere."""

    @staticmethod
    def _prior(seed, shape):
        return similarity.l2_normalize(_normal(shape, seed))


class SWDNormal(SlicedWasserstein):
    """Table 1, row 4: the prior is a standard normal."""

    @staticmethod
    def _prior(seed, shape):
        return _normal(shape, seed)


class SWDHypercube(SlicedWasserstein):
    """Table 1, row 3: the prior is uniform in [-1, 1]^d."""

    @staticmethod
    def _prior(seed, shape):
        return 2 * _uniform(shape, seed) - 1
