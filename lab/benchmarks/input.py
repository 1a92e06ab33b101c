"""Views per second of this package's input, of alternatives, and of the floor.

Views above 64 pixels are made from JPEG files of 427 x 640 pixels, smaller ones
from arrays. The floor is what every policy needs: decoding, crop, resize, flip.
"""

import dataclasses
import functools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import sklearn.datasets
import tensorflow as tf

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Input
from tf_contrastive import datasets, train
from tf_contrastive.base import files, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.pretrain import Pretrain

FLOOR = "crop"
HOST_PART = "ours, host part of device"
# Examples of an epoch.
_FILES, _ARRAYS = 512, 4096

_COLUMNS = {
    "policy": "{policy}",
    "pixels": "{image_size}",
    "implementation": "{implementation}",
    "examples/s": "{examples_per_second:,.0f}",
    "of the floor": "{of_floor:.2f}",
    "ours times as fast": "{times_peer:.1f}",
    "note": "{note}",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A policy and the size of its views and batches."""

    policy: str
    image_size: int
    batch_size: int


# (source, case) -> batches without end.
Maker = Callable[[datasets.Source, Case], tf.data.Dataset]


def run(common: Common, options: Input) -> measure.Report:
    """Measures every policy at every size."""
    rows: list[measure.Row] = []
    with files.temporary_folder() as folder:
        for size in options.image_sizes:
            source = _source(size, folder)
            small = size <= CIFAR_STEM_MAX_SIDE
            batch_size = options.input_batch_size or (512 if small else 64)
            for policy in options.policies:
                case = Case(policy, size, batch_size)
                makers = implementations(case)
                terminal.info(f"{policy} at {size} pixels: {', '.join(makers)}")
                rows += _measure(
                    makers, source, case, common.repeats, options.seconds
                )
    return measure.Report(rows, measure.table(_COLUMNS, rows))


def _source(size: int, folder: str) -> datasets.Source:
    """Returns what views of a side are made from.

    It is a folder of photographs as files or, for small views, an array of
    random tiles of them.
    """
    photographs = sklearn.datasets.load_sample_images()
    if size <= CIFAR_STEM_MAX_SIDE:
        generator = np.random.default_rng(0)
        tiles = []
        for i in range(_ARRAYS):
            image = photographs.images[i % 2]
            top = generator.integers(image.shape[0] - size + 1)
            left = generator.integers(image.shape[1] - size + 1)
            tiles.append(image[top : top + size, left : left + size])
        return datasets.from_arrays(np.stack(tiles), np.arange(_ARRAYS) % 2)
    folder = os.path.join(folder, str(size))
    for label, path in enumerate(photographs.filenames):
        os.makedirs(os.path.join(folder, str(label)))
        for i in range(_FILES // 2):
            shutil.copy(path, os.path.join(folder, str(label), f"{i}.jpg"))
    return datasets.source(f"folder:{folder}", "train")


def _measure(
    makers: dict[str, Maker],
    source: datasets.Source,
    case: Case,
    repeats: int,
    seconds: float,
) -> list[measure.Row]:
    """Measures implementations in turns; each time with a new iterator.

    An iterator would prefetch while another implementation is measured.
    """
    rates: dict[str, list[float]] = {name: [] for name in makers}
    notes = dict.fromkeys(makers, "")
    for _ in range(repeats):
        for name in [name for name in makers if not notes[name]]:
            try:
                batches = iter(makers[name](source, case))
            except ImportError:
                notes[name] = "not installed"
                continue
            rates[name].append(case.batch_size * speed(batches, seconds))
            del batches
    medians = {n: statistics.median(r) for n, r in rates.items() if r}
    rows = []
    peers = PEERS.get(case.policy, {})
    for name in makers:
        rate = medians.get(name)
        times_peer = None
        if rate and name in peers:
            times_peer = medians["ours"] / rate
        rows.append(
            {
                **dataclasses.asdict(case),
                "implementation": name,
                "examples_per_second": rate,
                "of_floor": rate and rate / medians[FLOOR],
                "times_peer": times_peer,
                "note": notes[name],
            }
        )
    return rows


def speed(batches: Iterator[Any], seconds: float) -> float:
    """Returns the batches per second of a new iterator."""
    for _ in range(3):  # The first one, and prefetched ones.
        next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or count < 2:
        next(batches)
        count += 1
    return count / (time.perf_counter() - start)


# ---- Implementations ---------------------------------------------------------


def implementations(case: Case) -> dict[str, Maker]:
    """Returns everything that makes the views of a case; the floor first."""

    makers: dict[str, Maker] = {
        FLOOR: functools.partial(_batches, augmentation=FLOOR)
    }
    if case.policy != FLOOR:
        makers["ours"] = _batches
        makers[HOST_PART] = functools.partial(_batches, augment_on="device")
    return makers | PEERS.get(case.policy, {})


def _batches(
    source: datasets.Source, case: Case, **options: Any
) -> tf.data.Dataset:
    """The batches that `pretrain` reads."""
    values = {
        "augmentation": case.policy,
        "image_size": case.image_size,
        "batch_size": case.batch_size,
        "augment_on": "host",
        "views": 2,
        # Files are read and decoded, as in a dataset of any size.
        "cache": "none",
        "wire_dtype": "float32",
        "workdir": "none",
        **options,
    }
    if case.image_size <= CIFAR_STEM_MAX_SIDE:
        values.update(blur=False, color_jitter_strength=0.5)
    prepared = train.prepare(
        fields.replace(Pretrain(), **values),
        tf.distribute.get_strategy(),
        splits=train.Splits(source),
    )
    return prepared.batches()


def _augmented(
    source: datasets.Source,
    case: Case,
    augment: Callable[[tf.Tensor], tf.Tensor],
) -> tf.data.Dataset:
    """The floor's views, augmented by another library in batches."""
    side = case.image_size

    def apply(pixels: tf.Tensor, labels: tf.Tensor) -> tuple:
        return augment(tf.reshape(pixels, [-1, side, side, 3])), labels

    cropped = _batches(source, case, augmentation=FLOOR)
    augmented = cropped.map(apply, num_parallel_calls=tf.data.AUTOTUNE)
    return augmented.prefetch(tf.data.AUTOTUNE)


def _keras_cv_simclr(source: datasets.Source, case: Case) -> tf.data.Dataset:
    layers = measure.keras_cv().layers
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

    def augment(pixels: tf.Tensor) -> tf.Tensor:
        for step in steps:
            pixels = step(pixels, training=True)
        return pixels

    return _augmented(source, case, augment)


# Policy -> implementations by others.
PEERS: dict[str, dict[str, Maker]] = {"simclr": {"keras-cv": _keras_cv_simclr}}
