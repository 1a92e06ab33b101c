"""An export's signatures against the bare encoder and `keras.Model.predict`.

All get the same images, as they would come: bytes of pixels at the encoder's
own size, floats, or JPEG files. They are called in turns, in this process; a
server adds its own transport. Preprocessing, the check of ranges and empty
batches, and decoding are what a signature does beyond the bare function.
"""

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import encoders, errors, exporting, heads
from tf_contrastive.benchmarks import measure
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark, ServingBenchmark
from tf_contrastive.config.encoder import resolve_stem

BARE = "bare tf.function"
PREDICT = "keras.Model.predict"
# Calls before anything is timed.
_WARM_UP = 3
# Largest difference of an embedding, as a share of the largest |value|.
_ALLOWED = 1e-5

_COLUMNS = {
    "implementation": "{implementation}",
    "images": "{batch_size}",
    "p50 ms": "{p50_milliseconds:.2f}",
    "p99 ms": "{p99_milliseconds:.2f}",
    "images/s": "{images_per_second:.1f}",
    "over bare": "{over_bare:.1%}",
    "difference": "{largest_difference:.1e}",
    "peak growth MiB": "{peak_growth_mib:.0f}",
    "peak MiB": "{peak_total_mib:.0f}",
    "note": "{note}",
}


class Case(NamedTuple):
    """An implementation, and how many images it gets."""

    path: str  # Of the export.
    implementation: str
    batch_size: int


def run(options: Benchmark, say: Callable[[str], None]) -> measure.Report:
    """Measures every signature of an export at every batch size.

    Args:
      options: validated.
      say: is told what is being done.

    Raises:
      UserError: for no export of three channels.
    """
    chosen, how = options.serving, options.benchmarking
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.serving_model or _export(chosen, folder)
        path = exporting.find(path) or path
        names = [BARE, PREDICT, *_details(path)["signatures"]]
        for size in map(int, fields.split_list(chosen.serving_batch_sizes)):
            cases = [Case(path, name, size) for name in names]
            if how.only_ours:
                cases = [case for case in cases if case[1] != PREDICT]
            say(f"{size} images: {', '.join(case[1] for case in cases)}")
            results += _measure(cases, chosen.serving_seconds, how.memory)
    passed = not any(row["note"] for row in results)
    return measure.Report(results, [measure.table(_COLUMNS, results)], passed)


def _details(path: str) -> dict[str, Any]:
    _load(path)  # Says what is wrong with it.
    details = exporting.details(path)
    if details["channels"] != 3:
        raise errors.UserError(
            f"serving_model={path} takes {details['channels']} channels: give"
            " an export that takes images of three"
        )
    return details


def _export(chosen: ServingBenchmark, folder: str) -> str:
    """Exports an encoder with random weights, a projection and a probe."""
    size = chosen.serving_image_size
    encoder = encoders.build(
        chosen.serving_encoder,
        stem=resolve_stem("auto", size),
        image_shape=(size, size, 3),
        synchronized=False,
        # Switched off, the residual branches would count for nothing.
        zero_init_residual=False,
    )
    features = encoder.output_shape[-1]
    projection = heads.build("mlp", synchronized=False)
    projection.build(tf.TensorShape([None, features]))
    kernel = np.random.default_rng(0).normal(size=[features, 10])
    parts = exporting.Parts(exporting.plain_encoder(encoder), projection)
    head = exporting.ProbeHead(kernel, np.zeros([10]))
    return exporting.export(parts, folder, head=head)


def make(case: Case) -> measure.Call:
    """Loads what a case needs; calling it does what is measured.

    Args:
      case: can be pickled, for a process of its own.

    Returns:
      () -> embeddings [n, D], or whatever else the signature gives.
    """
    path, name, count = case
    size = exporting.details(path)["image_size"]
    files = exporting.as_jpeg(exporting.photographs(count, size))
    images = np.stack([tf.io.decode_jpeg(file).numpy() for file in files])
    floats = (images / 255.0).astype(np.float32)
    if name in (BARE, PREDICT):
        encoder = tf.keras.models.load_model(
            os.path.join(path, exporting.KERAS_FILE), compile=False
        )
        if name == PREDICT:
            return lambda: encoder.predict(floats, count, verbose=0)
        bare = tf.function(
            lambda images: encoder(
                tf.cast(images, tf.float32) * (1 / 255), training=False
            )
        )
        given = tf.constant(images)
        return lambda: bare(given).numpy()
    signature = _load(path).signatures[name]
    key, value = {
        "serving_bytes": ("bytes", files),
        "serving_float": ("images", floats),
    }.get(name, ("images", images))
    given = {key: tf.constant(value)}
    gives = {"project": "projection", "classify": "probabilities"}
    output = gives.get(name, "embedding")

    return lambda: signature(**given)[output].numpy()


@functools.cache
def _load(path: str) -> Callable:
    """Loads an export once, and holds it: signatures do not."""
    return exporting.load(path)


def _measure(
    cases: list[Case], seconds: float, memory: bool
) -> list[dict[str, Any]]:
    calls = {case.implementation: make(case) for case in cases}
    outputs = {name: call() for name, call in calls.items()}
    times = _in_turns(calls, seconds * len(calls))
    rows = []
    for case in cases:
        name, count = case.implementation, case.batch_size
        spent = times[name]
        difference = _difference(name, outputs)
        growth, total = (
            measure.peak_memory(make, case) if memory else (None,) * 2
        )
        rows.append(
            {
                "implementation": name,
                "batch_size": count,
                "p50_milliseconds": 1000 * statistics.median(spent),
                "p99_milliseconds": 1000 * float(np.quantile(spent, 0.99)),
                "images_per_second": count * len(spent) / sum(spent),
                # Of each turn by itself: a machine that slows down slows both.
                "over_bare": statistics.median(
                    mine / bare - 1
                    for mine, bare in zip(spent, times[BARE], strict=True)
                ),
                "largest_difference": difference,
                "peak_growth_mib": growth,
                "peak_total_mib": total,
                "calls": len(spent),
                "note": ""
                if difference is None or difference <= _ALLOWED
                else "differs from the bare encoder",
            }
        )
    return rows


def _difference(name: str, outputs: Mapping[str, np.ndarray]) -> float | None:
    """How far embeddings are from the bare encoder's; None: no embeddings."""
    if name in ("project", "classify"):
        return None
    return exporting.compare(outputs[name], outputs[BARE])[0]


def _in_turns(
    calls: Mapping[str, measure.Call], seconds: float
) -> dict[str, list[float]]:
    """Seconds of each call, one after the other, for so long in all."""
    for _ in range(_WARM_UP):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or not times[BARE]:
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - before)
    return times
