"""Base class of the augmentation policies: from an image and a seed to a view.

A policy has a geometric part (crop, resize and flip, from images of any size)
and photometric operations on views of one size. Both act on whole batches with
parameters per view; the randomness of a view is a function of its seed alone.
"""

import dataclasses
from typing import Any, Protocol

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config import fields
from tf_contrastive.config.views import Views
from tf_contrastive.views import prng

_OPTIONS = {field.name: field for field in dataclasses.fields(Views)}
# Bytes of the views that the host changes at a time: the intermediate results
# of the operations then stay in the cache.
_GROUP_BYTES = 5_000_000


class Geometric(Protocol):
    """Cuts views of one size from images of any size."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""

    def __call__(
        self, images: tf.Tensor, image_ids: tf.Tensor, uniforms: prng.Uniforms
    ) -> tf.Tensor:
        """Makes float32 [m, S, S, 3] of uint8 [n, h, w, 3] and int32 [m]."""


class Photometric(Protocol):
    """Changes views that are cropped and resized."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels in [0, 1].

        Args:
          pixels: float32 [m, S, S, 3].
          uniforms: float32 [m, k] in [0, 1), by stream.
          static: whether to keep shapes independent of the random numbers, as
            XLA requires.
        """


def _check_images(images: tf.Tensor, rank: int) -> tf.Tensor:
    images = tf.convert_to_tensor(images)
    expected = "[h, w, 3]" if rank == 3 else "[n, h, w, 3]"
    fits = images.shape.rank == rank and images.shape[-1] in (3, None)
    if images.dtype != tf.uint8 or not fits:
        raise errors.UserError(
            f"images are {images.dtype.name} {images.shape}: pass uint8"
            f" {expected}, pixels in 0..255"
        )
    return tf.ensure_shape(images, [*images.shape[:-1], 3])


# Without AutoGraph: this code has no Python control flow on tensors, and its
# conversion would take longer than the rest of the first batch.
@tf.autograph.experimental.do_not_convert
def _random_numbers(
    seeds: tf.Tensor, *parts: Geometric | Photometric
) -> dict[str, tf.Tensor]:
    streams = {k: n for part in parts for k, n in part.streams.items()}
    return prng.uniform(seeds, streams)


@dataclasses.dataclass(frozen=True)
class Policy:
    """Augmentation policy; stateless, so the same in eager code and tf.data.

    Attributes:
      image_size: side of a view in pixels, S.

    Raises:
      UserError: for an option that is out of bounds.
    """

    image_size: int

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise errors.UserError(
                f"image_size={self.image_size}: must be at least 1 pixel"
            )
        for name, value in self.get_config().items():
            field = _OPTIONS.get(name)
            if field and (allowed := fields.problem(field, value)):
                raise errors.UserError(f"{name}={value}: must be {allowed}")

    @property
    def crop(self) -> Geometric:
        """Crop, resize and flip."""
        raise NotImplementedError

    @property
    def operations(self) -> tuple[Photometric, ...]:
        """Operations that follow, in order."""
        return ()

    @property
    def first_view_only(self) -> bool:
        """Whether the operations act on the first view of each image only."""
        return False

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Policy":
        """Builds the policy of a `get_config`."""
        return cls(**config)

    def __call__(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Makes one view. (`batch` is many times as fast for small images.)

        Args:
          image: uint8 [h, w, 3].
          seed: int32 [2].

        Returns:
          float32 [S, S, 3] in [0, 1].

        Raises:
          UserError: for images of another dtype or shape.
        """
        image = _check_images(image, 3)
        seed = tf.ensure_shape(tf.convert_to_tensor(seed, tf.int32), [2])
        return self.batch(image[tf.newaxis], seed[tf.newaxis])[0]

    @tf.autograph.experimental.do_not_convert
    def batch(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Makes one view of each image, with the pixels of `__call__`.

        Args:
          images: uint8 [n, h, w, 3].
          seeds: int32 [n, 2].

        Returns:
          float32 [n, S, S, 3] in [0, 1].

        Raises:
          UserError: for images of another dtype or shape.
        """
        images = tf.convert_to_tensor(images)
        image_ids = tf.range(images.shape[0] or tf.shape(images)[0])
        pixels = self.geometric(images, image_ids, seeds)
        return self.photometric(pixels, seeds, view=tf.zeros_like(image_ids))

    @tf.autograph.experimental.do_not_convert
    def geometric(
        self, images: tf.Tensor, image_ids: tf.Tensor, seeds: tf.Tensor
    ) -> tf.Tensor:
        """Crops, resizes and flips, on the host: the first part of a view.

        Args:
          images: uint8 [n, h, w, 3].
          image_ids: int32 [m], the image of each view.
          seeds: int32 [m, 2].

        Returns:
          float32 [m, S, S, 3] in [0, 1].

        Raises:
          UserError: for images of another dtype or shape.
        """
        images = _check_images(images, 4)
        uniforms = _random_numbers(seeds, self.crop)
        return self.crop(images, image_ids, uniforms)

    @tf.autograph.experimental.do_not_convert
    def photometric(
        self,
        pixels: tf.Tensor,
        seeds: tf.Tensor,
        static: bool = False,
        view: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Applies the operations, on the host or on a device.

        Args:
          pixels: float32 [m, S, S, 3] in [0, 1].
          seeds: int32 [m, 2], the seeds of `geometric`.
          static: whether to keep shapes independent of the random numbers, so
            that XLA can compile it; the pixels are the same to rounding.
          view: int32 [m], number of each view among those of its image;
            required if `first_view_only`.

        Returns:
          float32 [m, S, S, 3] in [0, 1].

        Raises:
          ValueError: if `view` is missing.
        """
        uniforms = _random_numbers(seeds, *self.operations)
        changed = self._in_groups(pixels, uniforms, static)
        if not self.first_view_only:
            return changed
        if view is None:
            raise ValueError(
                f"{self} changes only the first view of an image: pass view=,"
                " int32 [m], the number of each view"
            )
        first = tf.reshape(view, [-1, 1, 1, 1]) == 0
        return tf.where(first, changed, pixels)

    def _in_groups(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool
    ) -> tf.Tensor:
        """Applies the operations; on a host, to some views at a time."""

        def apply(pixels: tf.Tensor, uniforms: prng.Uniforms) -> tf.Tensor:
            for operation in self.operations:
                pixels = operation(pixels, uniforms, static)
            return pixels

        if static or not self.operations:
            return apply(pixels, uniforms)
        group = max(_GROUP_BYTES // (12 * self.image_size**2), 1)
        count = tf.maximum(tf.shape(pixels)[0], 1)

        def step(
            start: tf.Tensor, results: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.TensorArray]:
            rows = slice(start, start + group)
            part = {stream: u[rows] for stream, u in uniforms.items()}
            changed = apply(pixels[rows], part)
            return start + group, results.write(start // group, changed)

        results = tf.TensorArray(
            tf.float32,
            (count + group - 1) // group,
            infer_shape=False,
            element_shape=[None, *pixels.shape[1:]],
        )
        _, results = tf.while_loop(lambda i, _: i < count, step, (0, results))
        return tf.ensure_shape(results.concat(), pixels.shape)
