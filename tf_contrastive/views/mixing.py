"""MixUp and CutMix: views mixed with those of another image, and their labels.

Layer 3. Both act on finished views, a batch at a time, in the training step:
with channels of feature `extra`, wherever colours were changed.

KerasCV has both as layers, which the tests take as references of the formulas.
They are not used here, since they draw from TensorFlow's global state: a
resumed run would go on otherwise, a view would depend on the batch around it,
and their gamma sampler has no XLA kernel. (Their CutMix also weighs labels by
the whole box where the image's edge cuts it off.) Here all that is drawn
follows from the seed of a view, as in every other operation.
"""

import dataclasses

import tensorflow as tf

from tf_contrastive.views import prng

# Halvings of [0, 1/2] in which a quantile is found: more would change nothing
# in float32.
_HALVINGS = 26
# A view's uniform numbers, whichever of the two operations it gets.
_BLEND, _BOX, _LEFT, _TOP, _CHOICE = range(5)


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Mixes each image with its neighbour in the batch: 0 with 1, 2 with 3.

    The order of a batch is random, so that a neighbour is as good as any other
    image; and it is the same one however many replicas share the batch, as long
    as each has an even number.

    Of the two images, a view's own is the one with the larger share. As
    neighbours could as well stand the other way round, shares below a half
    would give the same mixtures once more. So the image's own label stays the
    class that is most likely.

    Attributes:
      num_classes: C.
      mixup_alpha: of Beta(alpha, alpha), from which MixUp draws the share; 0:
        no MixUp.
      cutmix_alpha: the same of CutMix. With both, every view gets one of them,
        each with probability 1/2.
    """

    num_classes: int
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self, views: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mixes the views of a batch.

        Args:
          views: float32 [B, V, S, S, K], B even.
          labels: int [B], in [0, C).
          seeds: int32 [B, V, 2], of the views.

        Returns:
          (views, float32 [B, V, C]: the share of every class in each view).

        Raises:
          ValueError: for an odd number of images, or labels that are not [B].

        Zhang et al. 2018, eq. 1 and 2; Yun et al. 2019, eq. 1 to 3.
        """
        if labels.shape.rank != 1:
            raise ValueError(
                f"labels of shape {labels.shape}: must be int [B] to be mixed"
            )
        if (views.shape[0] or 0) % 2:
            raise ValueError(
                f"{views.shape[0]} images cannot be mixed in pairs: give an"
                " even number (and batch with drop_remainder=True)"
            )
        flat = tf.reshape(seeds, [-1, 2])
        unit = prng.uniform(flat, {"mixing": 5})["mixing"]
        unit = tf.reshape(unit, [-1, *views.shape[1:2], 5])
        own = self._own(unit, views.shape[2:4])  # [B, V, S or 1, S or 1]
        share = tf.reduce_mean(own, axis=[2, 3])[..., tf.newaxis]
        own = own[..., tf.newaxis]
        mixed = own * views + (1 - own) * _neighbours(views)
        classes = tf.one_hot(labels, self.num_classes)[:, tf.newaxis]
        return mixed, share * classes + (1 - share) * _neighbours(classes)

    def _own(self, unit: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        """The weight of a view's own image at each pixel."""
        if not self.cutmix_alpha:
            return self._blend(unit)
        if not self.mixup_alpha:
            return self._cut(unit, size)
        blended = unit[..., _CHOICE, tf.newaxis, tf.newaxis] < 0.5
        return tf.where(blended, self._blend(unit), self._cut(unit, size))

    def _blend(self, unit: tf.Tensor) -> tf.Tensor:
        """One weight for all pixels, at least 1/2: [B, V, 1, 1]."""
        own = beta_quantile(unit[..., _BLEND], self.mixup_alpha)
        own = tf.maximum(own, 1 - own)
        return own[..., tf.newaxis, tf.newaxis]

    def _cut(self, unit: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        """1 outside of a box, 0 inside, or the other way round: [B, V, S, S].

        The box has the image's aspect and a centre anywhere in it; what is
        beyond the edge is cut off.
        """
        box = tf.sqrt(1 - beta_quantile(unit[..., _BOX], self.cutmix_alpha))
        rows = _inside(size[0], box, unit[..., _TOP])
        columns = _inside(size[1], box, unit[..., _LEFT])
        own = 1 - rows[..., tf.newaxis] * columns[..., tf.newaxis, :]
        larger = tf.reduce_mean(own, axis=[2, 3], keepdims=True) >= 0.5
        return tf.where(larger, own, 1 - own)


def _inside(side: int, share: tf.Tensor, center: tf.Tensor) -> tf.Tensor:
    """1 for the pixels of an axis that a box covers, else 0: [B, V, side]."""
    length = tf.floor(share * side)[..., tf.newaxis]
    start = tf.floor(center * side)[..., tf.newaxis] - length / 2
    pixels = tf.range(side, dtype=tf.float32)
    covered = (pixels >= start) & (pixels < start + length)
    return tf.cast(covered, tf.float32)


def _neighbours(x: tf.Tensor) -> tf.Tensor:
    """Rows 1, 0, 3, 2, ... of `x`."""
    pairs = tf.reshape(x, [-1, 2, *x.shape[1:]])
    return tf.reshape(tf.reverse(pairs, [1]), [-1, *x.shape[1:]])


def beta_quantile(unit: tf.Tensor, alpha: float) -> tf.Tensor:
    """Quantiles of Beta(alpha, alpha): uniform numbers become draws of it.

    By halving, since TensorFlow samples gammas, of which such draws are made,
    from one seed a batch and not under XLA.

    Args:
      unit: float32 in [0, 1], of any shape.
      alpha: above 0.

    Returns:
      float32 in [0, 1], of the same shape.
    """
    # Beta(alpha, alpha) is symmetric; near 0 floats are dense.
    tail = tf.minimum(unit, 1 - unit)
    parameter = tf.ones_like(tail) * alpha

    def halve(step, low, high):
        middle = (low + high) / 2
        above = tf.math.betainc(parameter, parameter, middle) < tail
        low, high = tf.where(above, middle, low), tf.where(above, high, middle)
        return step + 1, low, high

    # A loop, since XLA takes long to compile each copy of this function.
    _, low, high = tf.while_loop(
        lambda step, *_: step < _HALVINGS,
        halve,
        (0, tf.zeros_like(tail), 0.5 * tf.ones_like(tail)),
    )
    found = (low + high) / 2
    return tf.where(unit < 0.5, found, 1 - found)
