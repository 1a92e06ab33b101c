"""What host and step do with the views of a run, as its options say."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors, views
from tf_contrastive.config.views import Views
from tf_contrastive.views.mixup_cutmix import Mixing
from tf_contrastive.views.pixel_dtype import to_wire


def policy(options: Views) -> views.Policy:
    """Returns the augmentation policy of resolved options."""
    return views.build(
        options.augmentation, image_size=options.side, **options.options()
    )


def on_host(
    options: Views,
) -> tuple[Callable[..., tf.Tensor], Callable[[tf.Tensor, tf.Tensor], Any]]:
    """Returns what the host does: `views.geometric`, then the rest.

    The rest makes what the step takes, with seeds if it augments or mixes.
    """
    count = options.views
    on_device = options.augment_on == "device"
    color = views.photometric(policy(options), count, static=False)

    @tf.autograph.experimental.do_not_convert
    def finish(pixels: tf.Tensor, seeds: tf.Tensor) -> Any:
        seeds = views.prng.fold(seeds, count)
        if not on_device:
            pixels = color(pixels, seeds)
        if options.wire_dtype != "auto":
            pixels = to_wire(pixels, options.wire_dtype)
        return (pixels, seeds) if on_device or options.mixed else pixels

    return views.geometric(policy(options), count), finish


def halvings(
    options: Views, decode_scale: str
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None:
    """Returns `views.halvings`; None where images are decoded as they are."""
    if decode_scale == "full":
        return None
    return views.halvings(policy(options), options.views)


def on_device(options: Views) -> Callable[..., tf.Tensor] | None:
    """Returns the photometric augmentation in the step, if it is there."""
    if options.augment_on != "device":
        return None
    color = views.photometric(policy(options), options.views, static=True)
    # Compiled, since one kernel replaces dozens.
    return tf.function(color, jit_compile=True)


def mixing(options: Views, num_classes: int | None) -> Mixing | None:
    """Returns what mixes views of several images in the step, if anything."""
    if not options.mixed:
        return None
    if num_classes is None:
        raise errors.UserError(
            "mixing views needs labels: use a labelled dataset"
        )
    return Mixing(num_classes, options.mixup_alpha, options.cutmix_alpha)
