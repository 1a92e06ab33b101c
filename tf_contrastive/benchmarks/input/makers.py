"""Everything that makes the views of a case: this package, and others."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, training
from tf_contrastive import views as views_module
from tf_contrastive.config import fields
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.pretrain import Pretrain

# Implementations that are told apart from others'.
FLOOR = "crop"
HOST_SHARE = "ours, host share of device"
_VIEWS = 2
# Options of our own policies, measured where a policy has use for them.
VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, linear colours": {"color_jitter_style": "linear"},
    "ours, linear, no warp": {
        "color_jitter_style": "linear",
        "warp_probability": 0.0,
    },
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A policy, where and how large its views are made."""

    policy: str
    image_size: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.policy} at {self.image_size} pixels"


# A data source, case -> batches without end.
Make = Callable[[datasets.Source, Case], tf.data.Dataset]


def implementations(case: Case, *, only_ours: bool) -> dict[str, Make]:
    """Everything that makes the views of a case; the floor first."""
    found: dict[str, Make] = {FLOOR: _floor}
    if case.policy != FLOOR:
        found |= _variants(case)
        found[HOST_SHARE] = _host_share
    if only_ours:
        return found
    return found | PEERS.get(case.policy, {})


# ---- Ours --------------------------------------------------------------------


def _batches(
    source: datasets.Source, case: Case, **options: Any
) -> tf.data.Dataset:
    """What `pretrain` would read."""
    values = {
        "augmentation": case.policy,
        "image_size": case.image_size,
        "batch_size": case.batch_size,
        "augment_on": "host",
        "views": _VIEWS,
        # So that files are read and decoded, as of a dataset of any size.
        "cache": "none",
        **options,
    }
    if case.image_size <= CIFAR_STEM_MAX_SIDE:
        values.update(blur=False, color_jitter_strength=0.5)
    chosen = fields.replace(Pretrain(), **values)
    return training.batches(source, tf.distribute.get_strategy(), chosen, 0)


def _variants(case: Case) -> dict[str, Make]:
    """This package's policy, wholly on the host, in forms that differ."""
    found: dict[views_module.Policy, str] = {}
    for name, options in VARIANTS.items():
        policy = views_module.build(
            case.policy, image_size=case.image_size, **options
        )
        found.setdefault(policy, name)
    return {
        name: functools.partial(_batches, **VARIANTS[name])
        for name in found.values()
    }


def _floor(source: datasets.Source, case: Case) -> tf.data.Dataset:
    return _batches(source, case, augmentation=FLOOR)


def _host_share(source: datasets.Source, case: Case) -> tf.data.Dataset:
    return _batches(source, case, augment_on="device")


# ---- Others' -----------------------------------------------------------------


def _with(
    augment: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[datasets.Source, Case], tf.data.Dataset]:
    """Another library's operations on batches of framed views.

    The framing is ours for everyone, so that only what follows is compared.
    """

    def make(source: datasets.Source, case: Case) -> tf.data.Dataset:
        framed = _batches(source, case, augmentation=FLOOR)
        side = case.image_size
        return framed.map(
            lambda pixels, labels: (
                augment(tf.reshape(pixels, [-1, side, side, 3])),
                labels,
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        ).prefetch(tf.data.AUTOTUNE)

    return make


def _keras_cv_layers() -> Any:
    # It prints its backend, where the table is to stand.
    with contextlib.redirect_stdout(sys.stderr):
        from keras_cv import layers
    return layers


def _keras_cv_simclr(source, case):
    layers = _keras_cv_layers()
    jitter = layers.RandomColorJitter(
        value_range=(0, 1),
        brightness_factor=0.8,
        contrast_factor=0.8,
        saturation_factor=0.8,
        hue_factor=0.2,
    )
    steps = [
        layers.RandomApply(jitter, rate=0.8, batchwise=False),
        layers.RandomColorDegeneration((0.0, 1.0)),
    ]
    if case.image_size > CIFAR_STEM_MAX_SIDE:
        side = case.image_size // 10 // 2 * 2 + 1
        steps.append(layers.RandomGaussianBlur(side, (0.1, 2.0)))

    def augment(pixels):
        for step in steps:
            pixels = step(pixels, training=True)
        return pixels

    return _with(augment)(source, case)


def _keras_cv_randaugment(source, case):
    layer = _keras_cv_layers().RandAugment(
        value_range=(0, 1), augmentations_per_image=2, magnitude=0.5
    )
    return _with(lambda pixels: layer(pixels, training=True))(source, case)


def _official(name: str) -> Make:
    """tf-models-official's class of that name, image by image."""

    def make(source, case):
        from official.vision.ops import augment

        policy = {
            "AutoAugment": augment.AutoAugment,
            "RandAugment": augment.RandAugment,
        }[name]()

        def distort(pixels):
            levels = tf.cast(tf.round(255 * pixels), tf.uint8)
            levels = tf.map_fn(policy.distort, levels)
            return tf.cast(levels, tf.float32) / 255

        return _with(distort)(source, case)

    return make


# Policy -> implementations by others.
PEERS: dict[str, dict[str, Make]] = {
    "simclr": {"keras-cv": _keras_cv_simclr},
    "autoaugment": {"tf-models-official": _official("AutoAugment")},
    "randaugment": {
        "keras-cv": _keras_cv_randaugment,
        "tf-models-official": _official("RandAugment"),
    },
}
