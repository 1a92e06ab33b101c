"""An export's signatures next to the bare encoder and `Model.predict`.

All get the same images, as bytes, floats or JPEG files, and are called in turns
in this process; a server adds its own transport.
"""

import functools
import os
import statistics
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Serving
from tf_contrastive import encoders, exporting, heads
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config import checks
from tf_contrastive.config.encoder import resolve_stem
from tf_contrastive.datasets import decoding

BARE = "bare tf.function"
PREDICT = "keras.Model.predict"
# Calls before anything is timed.
_WARM_UP = 3
# Largest difference of an embedding, relative to the largest |value|.
_ALLOWED = 1e-5
# Signature -> its output, where that is not the embedding.
_OUTPUTS = {"project": "projection", "classify": "probabilities"}

_COLUMNS = {
    "implementation": "{implementation}",
    "images": "{batch_size}",
    "p50 ms": "{p50_milliseconds:.2f}",
    "p99 ms": "{p99_milliseconds:.2f}",
    "images/s": "{images_per_second:.1f}",
    "overhead": "{overhead:.1%}",
    "difference": "{largest_difference:.1e}",
    "peak growth MiB": "{peak_growth_mib:.0f}",
    "peak MiB": "{peak_total_mib:.0f}",
    "note": "{note}",
}


class Case(NamedTuple):
    """An implementation and the number of images of a request."""

    path: str  # Of the export.
    implementation: str
    batch_size: int


def run(common: Common, options: Serving) -> measure.Report:
    """Measures every signature of an export at every batch size.

    Raises:
      UserError: if there is no export, or its images have not three channels.
    """
    rows: list[measure.Row] = []
    with files.temporary_folder() as folder:
        path = options.serving_model or _export(options, folder)
        path = exporting.find(path) or path
        _load(path)  # Reports a damaged export.
        details = exporting.details(path)
        if details["channels"] != 3:
            raise errors.UserError(
                f"{errors.arg('serving_model', path)} takes"
                f" {details['channels']} channels: choose an export for images"
                " of three"
            )
        if not tf.io.gfile.exists(os.path.join(path, exporting.KERAS_FILE)):
            raise errors.UserError(
                f"{errors.arg('serving_model', path)} has no"
                f" {exporting.KERAS_FILE} to compare with: export it with"
                f" {errors.arg('format', 'savedmodel')},keras"
            )
        names = [BARE, PREDICT, *details["signatures"]]
        if common.only_ours:
            names.remove(PREDICT)
        for size in checks.read_counts(options.serving_batch_sizes):
            terminal.info(f"{size} images: {', '.join(names)}")
            cases = [Case(path, name, size) for name in names]
            rows += _measure(cases, options.serving_seconds, common.memory)
    ratios = {
        f"{row['implementation']}, {row['batch_size']} images: {BARE}": 1
        / (1 + row["overhead"])
        for row in rows
        if row["implementation"] not in (BARE, PREDICT)
    }
    return measure.Report(rows, [measure.table(_COLUMNS, rows)], ratios)


def _export(options: Serving, folder: str) -> str:
    """Exports an encoder with random weights, a projection and a probe."""
    size = options.serving_image_size
    encoder = encoders.build(
        options.serving_encoder,
        stem=resolve_stem("auto", size),
        image_shape=(size, size, 3),
        synchronized=False,
        # With zeros, the residual branches would not be measured.
        zero_init_residual=False,
    )
    features = encoder.output_shape[-1]
    projection = heads.build("mlp", synchronized=False)
    projection.build(tf.TensorShape([None, features]))
    kernel = np.random.default_rng(0).normal(size=[features, 10])
    parts = exporting.Parts(exporting.plain_encoder(encoder), projection)
    head = exporting.ProbeHead(kernel, np.zeros([10]))
    return exporting.export(parts, folder, head=head, formats=["keras"])


def make(case: Case) -> measure.Call:
    """Returns () -> embeddings [n, D], or another output of the signature."""
    path, name, count = case
    size = exporting.details(path)["image_size"]
    files = exporting.as_jpeg(exporting.photographs(count, size))
    images = np.stack([decoding.decode_jpeg(file).numpy() for file in files])
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
        pixels = tf.constant(images)
        return lambda: bare(pixels).numpy()
    signature = _load(path).signatures[name]
    key, value = {
        "serving_bytes": ("bytes", files),
        "serving_float": ("images", floats),
    }.get(name, ("images", images))
    request = {key: tf.constant(value)}
    output = _OUTPUTS.get(name, "embedding")
    return lambda: signature(**request)[output].numpy()


@functools.cache
def _load(path: str) -> Any:
    """Loads an export once; its signatures do not keep it in memory."""
    return exporting.load(path)


def _measure(
    cases: list[Case], seconds: float, memory: bool
) -> list[measure.Row]:
    calls = {case.implementation: make(case) for case in cases}
    outputs = {name: call() for name, call in calls.items()}
    times = measure.in_turns(calls, seconds=seconds, warm_up=_WARM_UP)
    rows = []
    for case in cases:
        name, count = case.implementation, case.batch_size
        spent = times[name]
        difference, failed = None, False
        if name not in _OUTPUTS:
            difference = exporting.compare(outputs[name], outputs[BARE])[0]
            failed = not difference <= _ALLOWED
        peaks: tuple[float | None, ...] = (None, None)
        if memory:
            peaks = measure.peak_memory(make, case)
        rows.append(
            {
                "implementation": name,
                "batch_size": count,
                "p50_milliseconds": 1000 * statistics.median(spent),
                "p99_milliseconds": 1000 * float(np.quantile(spent, 0.99)),
                "images_per_second": count * len(spent) / sum(spent),
                # Per turn, since a machine that slows down slows both.
                "overhead": statistics.median(
                    mine / bare - 1
                    for mine, bare in zip(spent, times[BARE], strict=True)
                ),
                "largest_difference": difference,
                "peak_growth_mib": peaks[0],
                "peak_total_mib": peaks[1],
                "calls": len(spent),
                "note": "differs from the bare encoder" if failed else "",
                "failed": failed,
            }
        )
    return rows
