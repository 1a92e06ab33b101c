"""Views a second: this package's input against others', and against the floor.

At more than 64 pixels views are made of JPEG files, scikit-learn's two sample
photographs (427 x 640 pixels), below of arrays. The floor is what every policy
needs: decode, random crop, resize and flip. What of a policy a device would do
is compared with the forward and backward pass of an encoder.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sklearn.datasets
import tensorflow as tf

from tf_contrastive import config, datasets, encoders, training
from tf_contrastive import views as views_module
from tf_contrastive.benchmarks import measure

_PHOTOGRAPHS = ("china.jpg", "flower.jpg")
# Files, or arrays, of which an epoch consists.
_FILES, _ARRAYS = 512, 4096
_VIEWS = 2
FLOOR = "crop"
# What a device does beside changing colours, and with how many views.
_ENCODER = "resnet50"
_ENCODED = 16
# Options of our own policies, measured where a policy has use for them.
_VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, linear colours": {"color_jitter_style": "linear"},
    "ours, linear, no warp": {
        "color_jitter_style": "linear",
        "warp_probability": 0.0,
    },
}
_HOST_SHARE = "ours, host share of device"


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


def run(
    options: config.Benchmark, say: Callable[[str], None]
) -> measure.Report:
    """Measures every policy at every size.

    Args:
      options: validated.
      say: is told what is being done.
    """
    chosen, how = options.input, options.benchmarking
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, config.split_list(chosen.image_sizes)):
            source = _source(size, folder)
            small = size <= config.CIFAR_STEM_MAX_SIDE
            batch = chosen.input_batch_size or (512 if small else 64)
            cases = [
                Case(policy, size, batch)
                for policy in config.split_list(chosen.policies)
            ]
            results += _measure(cases, source, how, chosen.seconds, say)
    tables = [_table(results)]
    policies = config.split_list(chosen.policies)
    for wanted, measured, table in (
        (chosen.profile, profile, _profile_table),
        (chosen.device_share, device_shares, _device_table),
    ):
        if wanted:
            rows = []
            for size in map(int, config.split_list(chosen.image_sizes)):
                say(f"{measured.__name__} at {size} pixels")
                rows += measured(policies, size, how.repeats)
            results += rows
            tables.append(table(rows))
    return measure.Report(results, tables, passed=True)


def _measure(
    cases: list[Case],
    source: datasets.Source,
    how: config.Benchmarking,
    seconds: float,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """All implementations of all cases, in turns with the floor."""
    results = []
    for case in cases:
        makers = implementations(case, only_ours=how.only_ours)
        say(f"{case}: {', '.join(makers)}")
        rates, first, notes = _in_turns(
            makers, source, case, seconds, how.repeats
        )
        floor = rates.get(FLOOR)
        for name in makers:
            rate = rates.get(name)
            results.append(
                {
                    **dataclasses.asdict(case),
                    "implementation": name,
                    "examples_per_second": rate,
                    "of_floor": rate / floor if rate and floor else None,
                    "times_peer": (
                        rates["ours"] / rate
                        if rate
                        and name != FLOOR
                        and name not in _VARIANTS
                        and name != _HOST_SHARE
                        else None
                    ),
                    "first_batch_seconds": first.get(name),
                    "note": notes.get(name, ""),
                }
            )
    return results


def _in_turns(
    makers: Mapping[str, Make],
    source: datasets.Source,
    case: Case,
    seconds: float,
    repeats: int,
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Medians of examples/s, seconds to the first batch, and what failed.

    Every measurement has an iterator of its own, which works for nobody while
    another is measured.
    """
    rates: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    notes: dict[str, str] = {}
    for _ in range(repeats):
        for name, make in makers.items():
            if name in notes:
                continue
            try:
                start = time.perf_counter()
                batches = iter(make(source, case))
                next(batches)
                first.setdefault(name, time.perf_counter() - start)
            except ImportError:
                notes[name] = "not installed"
                continue
            rates.setdefault(name, []).append(
                _rate(batches, case.batch_size, seconds)
            )
            del batches
    medians = {name: statistics.median(r) for name, r in rates.items()}
    return medians, first, notes


def _rate(batches: Iterator[Any], batch_size: int, seconds: float) -> float:
    """Examples a second, once what was made ahead is used up."""
    for _ in range(2):
        next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or count < 2:
        next(batches)
        count += 1
    return count * batch_size / (time.perf_counter() - start)


# ---- What is read ------------------------------------------------------------


def _source(size: int, folder: str) -> datasets.Source:
    """Photographs as files, or, for small views, tiles of them as arrays."""
    photographs = sklearn.datasets.load_sample_images()
    if size <= config.CIFAR_STEM_MAX_SIDE:
        draws = np.random.default_rng(0)
        tiles = np.stack(
            [
                _tile(photographs.images[i % 2], size, draws)
                for i in range(_ARRAYS)
            ]
        )
        return datasets.from_arrays(tiles, np.arange(_ARRAYS) % 2)
    for kind, name in enumerate(_PHOTOGRAPHS):
        class_folder = os.path.join(folder, str(size), str(kind))
        os.makedirs(class_folder)
        path = next(p for p in photographs.filenames if p.endswith(name))
        for i in range(_FILES // len(_PHOTOGRAPHS)):
            shutil.copy(path, os.path.join(class_folder, f"{i}.jpg"))
    place = f"folder:{os.path.join(folder, str(size))}"
    return datasets.source(place, "train")


def _tile(
    image: np.ndarray, size: int, draws: np.random.Generator
) -> np.ndarray:
    top = draws.integers(image.shape[0] - size + 1)
    left = draws.integers(image.shape[1] - size + 1)
    return image[top : top + size, left : left + size]


# ---- Implementations ---------------------------------------------------------


def implementations(case: Case, *, only_ours: bool) -> dict[str, Make]:
    """Everything that makes the views of a case; the floor first."""
    found: dict[str, Make] = {FLOOR: _floor}
    if case.policy != FLOOR:
        found |= _variants(case)
        found[_HOST_SHARE] = _host_share
    if only_ours:
        return found
    return found | PEERS.get(case.policy, {})


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
    if case.image_size <= config.CIFAR_STEM_MAX_SIDE:
        values.update(blur=False, color_jitter_strength=0.5)
    chosen = config.replace(config.Pretrain(), **values)
    return training.batches(source, tf.distribute.get_strategy(), chosen, 0)


def _variants(case: Case) -> dict[str, Make]:
    """This package's policy, wholly on the host, in forms that differ."""
    found: dict[views_module.Policy, str] = {}
    for name, options in _VARIANTS.items():
        policy = views_module.build(
            case.policy, image_size=case.image_size, **options
        )
        found.setdefault(policy, name)
    return {
        name: functools.partial(_batches, **_VARIANTS[name])
        for name in found.values()
    }


def _floor(source: datasets.Source, case: Case) -> tf.data.Dataset:
    return _batches(source, case, augmentation=FLOOR)


def _host_share(source: datasets.Source, case: Case) -> tf.data.Dataset:
    return _batches(source, case, augment_on="device")


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
    if case.image_size > config.CIFAR_STEM_MAX_SIDE:
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


# ---- What an operation costs -------------------------------------------------


def _noise(count: int, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Views float32 [count, S, S, 3], and their seeds."""
    pixels = tf.random.stateless_uniform([count, size, size, 3], [0, 1])
    seeds = tf.random.stateless_uniform(
        [count, 2], [0, 2], None, None, tf.int32
    )
    return pixels, seeds


def _milliseconds(
    call: Callable[..., Any], inputs: tuple[tf.Tensor, ...], repeats: int
) -> float:
    """The median of some calls after the first, for each view."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        tf.nest.map_structure(lambda x: x[:1].numpy(), call(*inputs))
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds[1:]) / len(inputs[0])


def profile(
    policies: Sequence[str], size: int, repeats: int
) -> list[dict[str, Any]]:
    """Milliseconds a view of each operation of policies, each by itself."""
    inputs = _noise(512 if size <= config.CIFAR_STEM_MAX_SIDE else 32, size)
    rows = []
    for policy in policies:
        built = views_module.build(policy, image_size=size)
        for operation in built.operations:
            alone = dataclasses.replace(built, operations=(operation,))
            call = tf.function(alone.photometric, autograph=False)
            rows.append(
                {
                    "policy": policy,
                    "image_size": size,
                    "operation": type(operation).__name__,
                    "milliseconds_per_view": _milliseconds(
                        call, inputs, repeats
                    ),
                }
            )
    return rows


def device_shares(
    policies: Sequence[str], size: int, repeats: int
) -> list[dict[str, Any]]:
    """What policies cost a device, of an encoder's forward and backward pass.

    Colours are compiled as in training, the encoder is run as in training.
    """
    inputs = _noise(64, size)
    encoder = encoders.build(_ENCODER, stem="auto", image_shape=(size, size, 3))

    @tf.function(autograph=False)
    def step(pixels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(encoder(pixels, training=True))
        return tape.gradient(total, encoder.trainable_variables)

    encoding = _milliseconds(step, (inputs[0][:_ENCODED],), repeats)
    rows = []
    for policy in policies:
        built = views_module.build(policy, image_size=size)
        coloring = functools.partial(built.photometric, static=True)
        call = tf.function(coloring, jit_compile=True, autograph=False)
        milliseconds = _milliseconds(call, inputs, repeats)
        rows.append(
            {
                "policy": policy,
                "image_size": size,
                "encoder": _ENCODER,
                "compiled_milliseconds_per_view": milliseconds,
                "encoder_milliseconds_per_view": encoding,
                "device_share": milliseconds / encoding,
            }
        )
    return rows


def _table(results: list[dict[str, Any]]) -> str:
    return measure.table(
        {
            "policy": "{policy}",
            "pixels": "{image_size}",
            "implementation": "{implementation}",
            "examples/s": "{examples_per_second:,.0f}",
            "of the floor": "{of_floor:.2f}",
            "ours times as fast": "{times_peer:.1f}",
            "first batch s": "{first_batch_seconds:.2f}",
            "note": "{note}",
        },
        results,
    )


def _profile_table(rows: list[dict[str, Any]]) -> str:
    return measure.table(
        {
            "policy": "{policy}",
            "pixels": "{image_size}",
            "operation": "{operation}",
            "ms/view": "{milliseconds_per_view:.3f}",
        },
        rows,
    )


def _device_table(rows: list[dict[str, Any]]) -> str:
    return measure.table(
        {
            "policy": "{policy}",
            "pixels": "{image_size}",
            "compiled ms/view": "{compiled_milliseconds_per_view:.3f}",
            "encoder": "{encoder}",
            "its ms/view": "{encoder_milliseconds_per_view:.1f}",
            "share": "{device_share:.1%}",
        },
        rows,
    )
