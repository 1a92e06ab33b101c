"""Alignment to views and to a prior: the generalized contrastive losses."""

from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config import loss as declared
from tf_contrastive.losses import base, matrix_products, similarity

# Explicit, since the automatic choice differs between devices.
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
    """scale * (alignment + weight * distribution), not a mean over anchors."""

    weight: float
    scale: float = 1.0

    def __call__(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        del labels
        projections = base.check_projections(projections)
        projections = tf.cast(projections, tf.float32)
        if self.normalize:
            projections = similarity.l2_normalize(projections)
        return self.scale * (
            alignment(projections)
            + self.weight * self._distribution(projections, seed)
        )

    def per_anchor(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Raises `TypeError`: the loss is not a mean over anchors."""
        raise TypeError(f"{type(self).__name__} has no loss for each view")

    def _distribution(
        self, projections: tf.Tensor, seed: tf.Tensor | None
    ) -> tf.Tensor:
        """L_distribution of (normalised) projections [B, V, P], []."""
        raise NotImplementedError


class AlignUniform(declared.AlignUniform, _Generalized):
    """Alignment, and uniformity on the hypersphere by a log-sum-exp.

    Chen et al. 2021 (Intriguing Properties), table 1, row 1, for projections of
    size d and n images:

        scale * (1/(n d) sum |z_i - z_j|^2
            + weight * mean_i log sum_j exp(z_i . z_j / t))

    j runs over all embeddings including i, as in the table and the authors'
    code (which subtracts the constant ln d, and halves the first term);
    `include_self=False` excludes i, as NT-Xent does. Ignores labels.

    It is the paper's decoupled NT-Xent, with temperature 1, weight 0.1 and
    scale 1000: 2 / d times `DecoupledNTXent` of weight * d / 2, up to a
    constant and i's own term.
    """

    def _distribution(
        self, projections: tf.Tensor, seed: tf.Tensor | None
    ) -> tf.Tensor:
        del seed
        # The projections are normalised already.
        batch = similarity.gather(
            projections,
            normalize=False,
            split=matrix_products.use_split(self.similarity_products),
            block_size=self.block_size,
        )
        batch = batch._replace(normalized=self.normalize)
        bounded = batch.bounded(self.temperature)

        def log_sums(block: similarity.Block) -> tf.Tensor:
            return similarity.log_sum_exp(
                block.similarities / self.temperature,
                None if self.include_self else block.others,
                bounded=bounded,
            )

        anchors = tf.shape(batch.anchors.image_ids)
        # A single embedding has nothing to be spread among.
        counted = self.include_self or tf.size(batch.candidates.image_ids) > 1
        weight = tf.cast(counted, tf.float32) / tf.cast(anchors[0], tf.float32)
        rows = similarity.Rows(log_sums, batch)
        return rows.total(tf.fill(anchors, weight))


class SlicedWasserstein(declared.SlicedWasserstein, _Generalized):
    """Alignment, and the sliced Wasserstein distance to a prior.

    Chen et al. 2021 (Intriguing Properties), table 1, rows 2 to 4, and
    Algorithm 1: the embeddings [b, d] of the global batch and as many samples
    of the prior are projected by one random orthogonal matrix, and the distance
    is that of the sorted columns:

        scale * (1/(n d) sum |z_i - z_j|^2 + weight * sum_k |sort(H W)_k -
            sort(P W)_k|^2 / (d * d'))

    Ignores labels. Without a `seed`, each call draws other samples.

    Args:
      normalization: "paper": over d * d', d' = d, as printed, which grows with
        the batch; "mean": over b * d', as in the authors' code.
      scale: of the whole loss (the paper: 1000 on the hypersphere).
      similarity_products: as of `AnchorLoss`, for the projected embeddings.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Counts the calls without a seed.
        self._calls = tf.Variable(
            0,
            dtype=tf.int32,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def _distribution(
        self, projections: tf.Tensor, seed: tf.Tensor | None
    ) -> tf.Tensor:
        size = projections.shape[-1]
        h = distribution.cross_replica_concat(projections)
        h = tf.reshape(h, [-1, size])
        if seed is None:
            if distribution.num_replicas() > 1:
                raise ValueError(
                    f"{type(self).__name__} on several replicas needs a seed"
                    " int32 [2], the same on all of them"
                )
            seed = tf.stack([self._calls.assign_add(1), 0])
        seeds = tf.random.split(seed, 2, alg=_ALGORITHM)
        # A random orthogonal matrix. It is not uniform (Mezzadri 2007), but the
        # signs of its columns, by which it differs, do not change the distance.
        directions, _ = tf.linalg.qr(_normal([size, size], seeds[0]))
        prior = self._prior(seeds[1], tf.shape(h))
        split = matrix_products.use_split(self.similarity_products)
        distance = sliced_wasserstein(h, prior, directions, split=split)
        rows = tf.cast(tf.shape(h)[0], tf.float32)
        per_row = self.normalization == "mean"
        return distance / (size * (rows if per_row else size))

    @staticmethod
    def _prior(seed: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        """Samples the prior, float32 of `shape`."""
        raise NotImplementedError


def sliced_wasserstein(
    h: tf.Tensor, prior: tf.Tensor, directions: tf.Tensor, split: bool = False
) -> tf.Tensor:
    """Algorithm 1 before its division: [b, d], [b, d], [d, d'] -> []."""
    rows = tf.transpose(directions)
    h, prior = (
        tf.sort(matrix_products.dot_products(rows, x, split=split))
        for x in (h, prior)
    )
    return tf.reduce_sum((h - prior) ** 2)


def _uniform(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Uniform numbers in (0, 1), float32 of `shape`."""
    # From integers, which XLA draws as TensorFlow's kernels do. Its floats and
    # normal numbers differ from theirs, whatever the algorithm.
    integers = tf.random.stateless_uniform(
        shape, seed, None, None, tf.int32, alg=_ALGORITHM
    )
    # The upper 23 bits: with more of them, 1 would be possible.
    upper = tf.bitwise.right_shift(tf.bitcast(integers, tf.uint32), 9)
    return (tf.cast(tf.cast(upper, tf.int32), tf.float32) + 0.5) * 2.0**-23


def _normal(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    return tf.math.ndtri(_uniform(shape, seed))


class SWDHypersphere(declared.SWDHypersphere, SlicedWasserstein):
    """Table 1, row 2: the prior is uniform on the unit hypersphere."""

    @staticmethod
    def _prior(seed: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        return similarity.l2_normalize(_normal(shape, seed))


class SWDNormal(declared.SWDNormal, SlicedWasserstein):
    """Table 1, row 4: the prior is a standard normal."""

    @staticmethod
    def _prior(seed: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        return _normal(shape, seed)


class SWDHypercube(declared.SWDHypercube, SlicedWasserstein):
    """Table 1, row 3: the prior is uniform in [-1, 1]^d."""

    @staticmethod
    def _prior(seed: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        return 2 * _uniform(shape, seed) - 1
