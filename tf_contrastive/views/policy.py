"""A policy: how the pixels of a view follow from an image and a seed."""

import dataclasses
from typing import Protocol

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.views import prng


class Framing(Protocol):
    """Cuts views of one size from images of any size."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes, by stream."""

    def __call__(
        self, images: tf.Tensor, owners: tf.Tensor, unit: prng.Unit
    ) -> tf.Tensor:
        """Makes float32 [m, S, S, 3] of uint8 [n, h, w, 3] and int32 [m]."""


class Photometric(Protocol):
    """Changes views that are cropped and resized."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes, by stream."""

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels in [0, 1].

        Args:
          pixels: float32 [m, S, S, 3].
          unit: float32 [m, k] uniform in [0, 1), by stream.
          static: whether shapes must not depend on the draws, for XLA.
        """


# On a host, views are coloured in groups of so many bytes: what the operations
# hand to one another then stays in the cache.
_GROUP_BYTES = 5_000_000


def as_images(images: tf.Tensor, rank: int) -> tf.Tensor:
    """Returns uint8 images of three channels as a tensor.

    Raises:
      UserError: for another dtype, rank or number of channels.
    """
    images = tf.convert_to_tensor(images)
    wanted = "[h, w, 3]" if rank == 3 else "[n, h, w, 3]"
    fits = images.shape.rank == rank and images.shape[-1] in (3, None)
    if images.dtype != tf.uint8 or not fits:
        raise errors.UserError(
            f"images are {images.dtype.name} {images.shape}: give uint8"
            f" {wanted}, pixels in 0..255"
        )
    return tf.ensure_shape(images, [*images.shape[:-1], 3])


def indices(images: tf.Tensor) -> tf.Tensor:
    """0..n-1 of images [n, h, w, 3], of static shape where n is known."""
    return tf.range(images.shape[0] or tf.shape(images)[0])


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
    first_view_only: bool = False

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
        owners = indices(images)
        return self.views_of(images, owners, seeds, tf.zeros_like(owners))

    @tf.autograph.experimental.do_not_convert
    def views_of(
        self,
        images: tf.Tensor,
        owners: tf.Tensor,
        seeds: tf.Tensor,
        view: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Makes m views float32 [m, S, S, 3] of n images.

        The same as `frame` and then `photometric`, bit for bit.

        Args:
          images: uint8 [n, h, w, 3].
          owners: int32 [m], which image each view is of.
          seeds: int32 [m, 2].
          view: int32 [m], which of its image's views each is, for a policy of
            `first_view_only`.
        """
        pixels = self.frame(images, owners, seeds)
        return self.photometric(pixels, seeds, view=view)

    @tf.autograph.experimental.do_not_convert
    def frame(
        self, images: tf.Tensor, owners: tf.Tensor, seeds: tf.Tensor
    ) -> tf.Tensor:
        """Crops, resizes and flips, on the host: the first part of a view.

        Args:
          images: uint8 [n, h, w, 3].
          owners: int32 [m], which image each view is of.
          seeds: int32 [m, 2].

        Returns:
          float32 [m, S, S, 3] in [0, 1].
        """
        unit = prng.uniform(seeds, self._streams(self.framing))
        return self.framing(images, owners, unit)

    @tf.autograph.experimental.do_not_convert
    def photometric(
        self,
        pixels: tf.Tensor,
        seeds: tf.Tensor,
        static: bool = False,
        view: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Applies what follows the framing, on the host or on a device.

        Args:
          pixels: float32 [m, S, S, 3] in [0, 1].
          seeds: int32 [m, 2], those that the pixels were framed with.
          static: whether shapes must not depend on the draws, so that XLA
            compiles it; the pixels are the same to rounding.
          view: int32 [m], which of its image's views each is, for a policy of
            `first_view_only`.

        Returns:
          float32 [m, S, S, 3] in [0, 1].

        Raises:
          ValueError: without `view` where the policy needs it.
        """
        unit = prng.uniform(seeds, self._streams(*self.operations))
        colored = self._colored(pixels, unit, static)
        if not self.first_view_only:
            return colored
        if view is None:
            raise ValueError(
                f"{self.name} changes the first view of an image only: pass"
                " view=, int32 [m], the number of each view"
            )
        first = tf.reshape(view, [-1, 1, 1, 1]) == 0
        return tf.where(first, colored, pixels)

    def _streams(self, *parts: Framing | Photometric) -> dict[str, int]:
        return {k: v for part in parts for k, v in part.streams.items()}

    def _colored(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool
    ) -> tf.Tensor:
        if static or not self.operations:
            return self._operated(pixels, unit, static)
        group = max(_GROUP_BYTES // (12 * self.image_size**2), 1)
        count = tf.maximum(tf.shape(pixels)[0], 1)

        def color(start: tf.Tensor, done: tf.TensorArray):
            rows = slice(start, start + group)
            some = {stream: values[rows] for stream, values in unit.items()}
            views = self._operated(pixels[rows], some, static)
            return start + group, done.write(start // group, views)

        done = tf.TensorArray(
            tf.float32,
            (count + group - 1) // group,
            infer_shape=False,
            element_shape=[None, *pixels.shape[1:]],
        )
        _, done = tf.while_loop(lambda i, _: i < count, color, (0, done))
        return tf.ensure_shape(done.concat(), pixels.shape)

    def _operated(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool
    ) -> tf.Tensor:
        for operation in self.operations:
            pixels = operation(pixels, unit, static)
        return pixels
