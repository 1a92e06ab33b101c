"""Views of images: V of each, in one step or in parts for host and device."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config import views as config
from tf_contrastive.config.data import Reading
from tf_contrastive.views import prng
from tf_contrastive.views.policies import Policy, build

_READING = Reading()
_without_autograph = tf.autograph.experimental.do_not_convert


class Views:
    """Makes V = `count` views of each image, by a policy.

    The seed of view v is the image's seed with v folded in: a view is the same
    for any V and n. `first` is the number of the first view.
    """

    def __init__(self, policy: Policy, count: int = 2, first: int = 0) -> None:
        if count < 1:
            raise errors.UserError(
                f"{errors.arg('views', count)}: must be at least 1"
            )
        self.policy, self.count, self._first = policy, count, first
        self._crops = 1 if policy.shares_crop else count

    @_without_autograph
    def __call__(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Makes float32 [n, V, S, S, 3] of images uint8, by seeds [n, 2]."""
        return self.finish(self.geometric(images, seeds), seeds)

    @_without_autograph
    def numbers(self, seeds: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draws the numbers of `geometric`, [n, V, k] of each stream."""
        seeds = prng.fold(seeds, self._crops, self._first)
        seeds = tf.reshape(seeds, [-1, 2])
        drawn = self.policy.numbers(seeds)
        return {
            stream: tf.reshape(u, [-1, self._crops, u.shape[1]])
            for stream, u in drawn.items()
        }

    @_without_autograph
    def geometric(
        self,
        images: tf.Tensor,
        seeds: tf.Tensor,
        numbers: dict[str, tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Makes the first part of the views: crop, resize and flip."""
        images = tf.convert_to_tensor(images)
        image_ids = tf.repeat(tf.range(tf.shape(images)[0]), self._crops)
        numbers = self.numbers(seeds) if numbers is None else numbers
        pixels = self.policy.crop(images, image_ids, _of_views(numbers))
        side = self.policy.image_size
        pixels = tf.reshape(
            pixels, [-1, self._crops, side, side, pixels.shape[-1]]
        )
        if self._crops < self.count:
            pixels = tf.repeat(pixels, self.count, axis=1)
        return tf.ensure_shape(pixels, [images.shape[0], *pixels.shape[1:]])

    @_without_autograph
    def finish(self, pixels: tf.Tensor, seeds: tf.Tensor) -> Any:
        """Makes the second part: `photometric`, by the images' seeds."""
        seeds = prng.fold(seeds, self.count, self._first)
        return self.photometric(pixels, seeds)

    @_without_autograph
    def photometric(
        self, pixels: tf.Tensor, seeds: tf.Tensor, static: bool = False
    ) -> tf.Tensor:
        """Applies the operations that follow the crop to [n, V, S, S, K].

        Channels after those of the policy are passed on. The seeds are int32
        [n, V, 2]; `static`: for a device, whose compiler needs known shapes.
        """
        own = self.policy.channels or 3
        colors = tf.reshape(pixels[..., :own], [-1, *pixels.shape[2:4], own])
        numbers = self._first + tf.range(self.count)
        number = tf.tile(numbers, [tf.shape(pixels)[0]])
        colors = self.policy.photometric(
            colors, tf.reshape(seeds, [-1, 2]), static=static, view=number
        )
        colors = tf.reshape(colors, [-1, *pixels.shape[1:4], own])
        colors = tf.ensure_shape(colors, [*pixels.shape[:4], own])
        if pixels.shape[-1] == own:
            return colors
        return tf.concat([colors, pixels[..., own:]], axis=-1)

    @_without_autograph
    def halvings(
        self, size: tf.Tensor, numbers: dict[str, tf.Tensor]
    ) -> tf.Tensor:
        """How often an image can be halved before it is cropped, int32 [].

        Each of its views is then still made of at least S x S pixels. Height
        and width are int32 [2], the numbers of the image's views [V, k].
        """
        # Most images are too small, whatever their crops.
        return tf.cond(
            tf.reduce_min(size) >= 2 * self.policy.image_size,
            lambda: self.policy.halvings(size[0], size[1], numbers),
            lambda: 0,
        )


def _of_views(numbers: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Numbers of views, [m, k], of those of their images, [n, C, k]."""
    return {k: tf.reshape(u, [-1, u.shape[2]]) for k, u in numbers.items()}


class RunViews:
    """The views of a run, by its resolved options.

    With small views, a pair of the large and the small ones takes the place of
    pixels and of numbers. Small views are numbered after the large ones.
    """

    def __init__(
        self, options: config.Views, reading: Reading = _READING
    ) -> None:
        name, arguments = options.policy.label, options.policy.arguments()
        arguments["channels"] = reading.float_channels
        arguments["colors"] = reading.colors
        policy = build(name, image_size=options.side, **arguments)
        self._options = options
        self._sizes = [Views(policy, options.views)]
        if options.small_views:
            arguments["max_crop_area"] = arguments["min_crop_area"]
            arguments["min_crop_area"] = config.SMALL_CROP_AREA
            policy = build(name, image_size=options.small_side, **arguments)
            small = Views(policy, options.small_views, options.views)
            self._sizes.append(small)

    @_without_autograph
    def numbers(self, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], ...]:
        """Draws the numbers of `geometric`, for views of each size."""
        return tuple(views.numbers(seeds) for views in self._sizes)

    @_without_autograph
    def geometric(
        self, images: tf.Tensor, seeds: tf.Tensor, numbers: Any = None
    ) -> Any:
        """Makes the first part of the views: crop, resize and flip."""
        numbers = numbers or self.numbers(seeds)
        made = tuple(
            views.geometric(images, seeds, drawn)
            for views, drawn in zip(self._sizes, numbers, strict=True)
        )
        return made if len(made) > 1 else made[0]

    @_without_autograph
    def halvings(self, size: tf.Tensor, numbers: Any) -> tf.Tensor:
        """How often an image can be halved before it is cropped, int32 []."""
        each = [
            views.halvings(size, drawn)
            for views, drawn in zip(self._sizes, numbers, strict=True)
        ]
        return tf.reduce_min(each)

    @_without_autograph
    def finish(self, pixels: Any, seeds: tf.Tensor) -> Any:
        """Makes what the step takes: with seeds, if it augments or mixes."""
        options = self._options
        counts = [views.count for views in self._sizes]
        seeds = prng.fold(seeds, sum(counts))
        on_device = options.augment_on == "device"
        sent = []
        parts = tf.nest.flatten(pixels), tf.split(seeds, counts, axis=1)
        for views, x, own in zip(self._sizes, *parts, strict=True):
            x = x if on_device else views.photometric(x, own)
            if options.wire_dtype != "auto":
                x = to_wire(x, options.wire_dtype)
            sent.append(x)
        if options.small_views:
            inputs = dict(zip(("views", "small_views"), sent, strict=True))
            return {**inputs, "seeds": seeds} if on_device else inputs
        return (sent[0], seeds) if on_device or options.mixed else sent[0]

    def on_device(self) -> Callable[..., tf.Tensor] | None:
        """Returns the photometric augmentation in the step, if it is there."""
        if self._options.augment_on != "device":
            return None
        of_side = {views.policy.image_size: views for views in self._sizes}

        @_without_autograph
        def augment(pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
            views = of_side[pixels.shape[2]]
            return views.photometric(pixels, seeds, static=True)

        # Compiled, since one kernel replaces dozens.
        return tf.function(augment, jit_compile=True)


def to_wire(pixels: tf.Tensor, dtype: str) -> tf.Tensor:
    """Converts float32 pixels in [0, 1] to a `wire_dtype`; uint8: levels."""
    if dtype == "uint8":
        return tf.saturate_cast(tf.round(pixels * 255.0), tf.uint8)
    return tf.cast(pixels, dtype)


def from_wire(pixels: tf.Tensor) -> tf.Tensor:
    """Converts the results of `to_wire` back to float32 in [0, 1]."""
    unit = tf.cast(pixels, tf.float32)
    return unit * (1 / 255) if pixels.dtype == tf.uint8 else unit
