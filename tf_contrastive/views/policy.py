"""A policy: how the pixels of a view follow from an image and a seed."""

import dataclasses
from typing import Protocol

import tensorflow as tf

from tf_contrastive import config
from tf_contrastive.views import draws


class Framing(Protocol):
    """Cuts views of one size from images of any size."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes, by stream."""

    def __call__(
        self, images: tf.Tensor, owners: tf.Tensor, unit: draws.Unit
    ) -> tf.Tensor:
        """Makes float32 [m, S, S, 3] of uint8 [n, h, w, 3] and int32 [m]."""


class Photometric(Protocol):
    """Changes the colours of views."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes, by stream."""

    def __call__(self, planes: tf.Tensor, unit: draws.Unit) -> tf.Tensor:
        """Acts on colour planes float32 [3, m, S, S]."""


def as_images(images: tf.Tensor, rank: int) -> tf.Tensor:
    """Returns uint8 images of three channels as a tensor.

    Raises:
      UserError: for another dtype, rank or number of channels.
    """
    images = tf.convert_to_tensor(images)
    wanted = "[h, w, 3]" if rank == 3 else "[n, h, w, 3]"
    fits = images.shape.rank == rank and images.shape[-1] in (3, None)
    if images.dtype != tf.uint8 or not fits:
        raise config.UserError(
            f"images are {images.dtype.name} {images.shape}: give uint8"
            f" {wanted}, pixels in 0..255"
        )
    return tf.ensure_shape(images, [*images.shape[:-1], 3])


def indices(images: tf.Tensor) -> tf.Tensor:
    """0..n-1 of images [n, h, w, 3], of static shape where n is known."""
    return tf.range(images.shape[0] or tf.shape(images)[0])


def _to_planes(pixels: tf.Tensor) -> tf.Tensor:
    return tf.stack(tf.unstack(pixels, axis=-1))


def _from_planes(planes: tf.Tensor) -> tf.Tensor:
    size = planes.shape[-1]
    flat = tf.reshape(tf.stack(tf.unstack(planes), axis=1), [-1, 3, size**2])
    # The identity matrix interleaves channels, exactly, in half the time of
    # tf.transpose.
    pixels = tf.matmul(flat, tf.eye(3), transpose_a=True)
    return tf.reshape(pixels, [-1, size, size, 3])


@dataclasses.dataclass(frozen=True)
class Policy:
    """Makes views; stateless, so equal in eager, in tf.data, on any worker.

    Attributes:
      name: its name in `views.POLICIES`.
      image_size: side of a view in pixels, S.
      framing: crop, resize and flip, from images of any size.
      operations: what follows, on views of S x S: static shapes that compile
        under XLA, so that it can also run on an accelerator.
    """

    name: str
    image_size: int
    framing: Framing
    operations: tuple[Photometric, ...] = ()

    # Converting this code, which has no Python control flow on tensors, would
    # take longer than all the rest of the first batch.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Makes one view.

        For small images `batch` is many times as fast: there, what costs is
        the dispatch of operations.

        Args:
          image: uint8 [h, w, 3].
          seed: int32 [2].

        Returns:
          float32 [S, S, 3] in [0, 1].

        Raises:
          UserError: for images of another dtype or shape.
        """
        image = as_images(image, 3)
        seed = tf.ensure_shape(tf.convert_to_tensor(seed, tf.int32), [2])
        return self.batch(image[tf.newaxis], seed[tf.newaxis])[0]

    @tf.autograph.experimental.do_not_convert
    def batch(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Makes one view of each image: the same pixels as one by one.

        Args:
          images: uint8 [n, h, w, 3].
          seeds: int32 [n, 2].

        Returns:
          float32 [n, S, S, 3] in [0, 1].

        Raises:
          UserError: for images of another dtype or shape.
        """
        images = as_images(images, 4)
        return self.views_of(images, indices(images), seeds)

    def views_of(
        self, images: tf.Tensor, owners: tf.Tensor, seeds: tf.Tensor
    ) -> tf.Tensor:
        """Makes m views float32 [m, S, S, 3] of n images.

        Args:
          images: uint8 [n, h, w, 3].
          owners: int32 [m], which image each view is of.
          seeds: int32 [m, 2].
        """
        unit = draws.uniform(
            seeds, self._streams(self.framing, *self.operations)
        )
        return self._colored(self.framing(images, owners, unit), unit)

    @tf.autograph.experimental.do_not_convert
    def photometric(self, pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Applies what follows the framing, on the host or on a device.

        Args:
          pixels: float32 [m, S, S, 3] in [0, 1].
          seeds: int32 [m, 2].

        Returns:
          float32 [m, S, S, 3] in [0, 1].
        """
        unit = draws.uniform(seeds, self._streams(*self.operations))
        return self._colored(pixels, unit)

    def _streams(self, *parts: Framing | Photometric) -> dict[str, int]:
        return {k: v for part in parts for k, v in part.streams.items()}

    def _colored(self, pixels: tf.Tensor, unit: draws.Unit) -> tf.Tensor:
        if not self.operations:
            return pixels
        planes = _to_planes(pixels)
        for operation in self.operations:
            planes = operation(planes, unit)
        return _from_planes(planes)
