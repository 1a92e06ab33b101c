"""`export`: writes a run's encoder as a SavedModel, and in other formats."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    embedding,
    errors,
    exporting,
    terminal,
    views,
)
from tf_contrastive.config import fields
from tf_contrastive.config.embed import Embedding
from tf_contrastive.config.export import Export, Exporting

# Images of the run's training split that calibrate and check other formats.
_CHECK_IMAGES = 128
_TEXT = """\
exported: {path}

{signatures}
{formats}
In Python:
  model = tf.saved_model.load("{path}")
  model.signatures["serving_default"](images=images)["embedding"]
Serve every version (TensorFlow Serving in Docker):
  launch/serve {base}
Read more: {path}/README.md"""


def run(options: Export) -> int:
    """Exports a checkpoint, and prints where and how to call it."""
    settings = options.exporting
    formats = fields.split_list(settings.format)
    exporting.check_installed(formats)

    def load(
        saved: checkpoints.Run,
    ) -> tuple[checkpoints.Run, exporting.Parts, Callable | None]:
        parts = exporting.Parts.from_run(saved)
        if settings.head != "probe":
            return saved, parts, None
        features = parts.encoder.output_shape[-1]
        return saved, parts, exporting.ProbeHead.from_run(saved, features)

    saved, parts, probe = checkpoints.load(
        settings.workdir, load, settings.checkpoint
    )
    output_dir = settings.output_dir or os.path.join(settings.workdir, "export")
    path = exporting.export(
        parts,
        output_dir,
        head=probe or _head(settings, saved, parts.encoder),
        formats=formats,
        images=(
            _images(settings, saved, parts.encoder)
            if set(formats) - {"savedmodel", "keras"}
            else None
        ),
        max_image_pixels=settings.max_image_pixels,
    )
    details = exporting.details(path)
    print(
        _TEXT.format(
            path=path,
            base=output_dir
            if "://" in output_dir
            else os.path.abspath(output_dir),
            signatures=_signatures(details),
            formats=_formats(details),
        )
    )
    return 0


def _source(settings: Exporting, saved: checkpoints.Run) -> datasets.Source:
    """Opens the split that the run was trained on."""
    data = saved.config.data
    return datasets.source(
        data.dataset,
        data.split,
        data_dir=settings.data_dir or data.data_dir or None,
        reading=saved.config.reading,
    )


def _batches(
    source: datasets.Source, encoder: tf.keras.Model
) -> tf.data.Dataset:
    _, size, channels = exporting.image_shape(encoder)
    return datasets.evaluation_batches(
        source,
        views.evaluation(size),
        batch_size=Embedding.embedding_batch_size,
        extra_channels=channels - 3,
    )


def _head(
    settings: Exporting, saved: checkpoints.Run, encoder: tf.keras.Model
) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Makes the classifier behind the encoder, if it is of its embeddings."""
    if settings.head == "none":
        return None
    source = _source(settings, saved)
    if not source.info.has_labels:
        raise errors.UserError(
            f"{errors.arg('head', settings.head)} needs labels, and"
            f" {source.info.name} has none: use {errors.arg('head', 'none')}"
        )
    terminal.info(
        f"embedding {source.info.num_examples:,} images of {source.info.name}"
    )
    return exporting.PrototypeHead(
        *embedding.embed(encoder, _batches(source, encoder)),
        source.info.num_classes,
    )


def _images(
    settings: Exporting, saved: checkpoints.Run, encoder: tf.keras.Model
) -> np.ndarray:
    """Returns images of the run's data, or photographs if that is absent."""
    try:
        source = _source(settings, saved)
    except errors.UserError as error:
        terminal.info(
            f"checking with photographs instead of the run's data: {error}"
        )
        return exporting.photographs(
            _CHECK_IMAGES, *exporting.image_shape(encoder)[1:]
        )
    # From the whole split, which may be sorted by class.
    total = source.info.num_examples
    rows = np.unique(
        np.linspace(0, total - 1, min(_CHECK_IMAGES, total)).astype(int)
    )
    batches = _batches(source.select(rows), encoder)
    return np.concatenate([images.numpy() for images, _ in batches])


def _signatures(details: dict[str, Any]) -> str:
    lines = []
    for name, inputs, outputs in exporting.signature_rows(details):
        lines += [f"  {name:<16} {inputs}", f"  {'':<16} -> {outputs}"]
    if details["channels"] > 3:
        lines.append(
            "  (no serving_bytes: encoded images have at most three channels)"
        )
    return "\n".join(lines).replace("`", "")


def _formats(details: dict[str, Any]) -> str:
    if not details["formats"]:
        return ""
    rows = [
        (f"  {file}".replace("`", ""), *rest)
        for file, *rest in exporting.format_rows(details)
    ]
    return f"\n{terminal.format_table(rows, {0, 1})}\n"
