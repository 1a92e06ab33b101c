"""`export`: writes a run's encoder as a SavedModel, and in other formats."""

import os
from collections.abc import Callable

import numpy as np

from tf_contrastive import (
    datasets,
    embedding,
    errors,
    exporting,
    terminal,
    views,
)
from tf_contrastive.commands import extensions
from tf_contrastive.config import fields
from tf_contrastive.config.embed import Embedding
from tf_contrastive.config.export import Export, Exporting

_SIGNATURES = {
    "serving_default": (
        "images: uint8 [N, H, W, 3], any size",
        "embedding: float32 [N, {embedding_size}]",
    ),
    "serving_float": (
        "images: float32 [N, H, W, 3] in [0, 1], any size",
        "embedding: float32 [N, {embedding_size}]",
    ),
    "serving_bytes": (
        "bytes: string [N], JPEG, PNG, GIF or BMP",
        "embedding: float32 [N, {embedding_size}], ok: bool [N]",
    ),
    "project": (
        "images: as serving_default",
        "projection: float32 [N, {projection_size}]",
    ),
    "classify": (
        "images: as serving_default",
        "labels: int64 [N], probabilities: float32 [N, {num_classes}]",
    ),
}
_OF_CHANNELS = (
    "images: float32 [N, {image_size}, {image_size}, {channels}],"
    " colours in [0, 1]"
)
_NO_BYTES = (
    "(no serving_bytes: encoded images have no more channels than three)"
)
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
    """Exports a checkpoint and prints where, and how to call it.

    Args:
      options: validated.

    Returns:
      0.

    Raises:
      UserError: for no run, no such checkpoint, a classifier without its data,
        a format that differs from the SavedModel or lacks its package, or a
        folder that cannot be written.
    """
    extensions.add_papers()
    chosen = options.exporting
    formats = fields.split_list(chosen.format)
    others = set(formats) - {"savedmodel"}
    exporting.check_installed(formats)
    parts = exporting.parts(chosen.workdir, chosen.checkpoint)
    output_dir = chosen.output_dir or os.path.join(chosen.workdir, "export")
    path = exporting.export(
        parts,
        output_dir,
        head=_head(chosen, parts),
        formats=formats,
        images=_images(chosen, parts) if others else None,
        max_image_pixels=chosen.max_image_pixels,
    )
    base = output_dir if "://" in output_dir else os.path.abspath(output_dir)
    details = exporting.details(path)
    print(
        _TEXT.format(
            path=path,
            base=base,
            signatures=_signatures(details),
            formats=_formats(details),
        )
    )
    return 0


def _source(chosen: Exporting, parts: exporting.Parts) -> datasets.Source:
    """The split that the run was trained on."""
    data = parts.run.config.data
    return datasets.source(
        data.dataset,
        data.split,
        data_dir=chosen.data_dir or data.data_dir or None,
        max_bad_images=data.max_bad_images,
    )


def _batches(source: datasets.Source, parts: exporting.Parts):
    return datasets.evaluation_batches(
        source,
        views.evaluation(exporting.image_size(parts.encoder)),
        batch_size=Embedding.embedding_batch_size,
        extra_channels=exporting.extra(parts.encoder),
    )


def _head(chosen: Exporting, parts: exporting.Parts) -> Callable | None:
    """The classifier behind the encoder."""
    if chosen.head == "none":
        return None
    if chosen.head == "probe":
        size = parts.encoder.output_shape[-1]
        return exporting.probe_of(parts.run, size)
    source = _source(chosen, parts)
    if not source.info.has_labels:
        raise errors.UserError(
            f"--head={chosen.head} needs labels, and {source.info.name} has"
            " none: give --head=none"
        )
    terminal.info(
        f"embedding {source.info.num_examples:,} images of {source.info.name}"
    )
    embeddings, labels = embedding.embed(parts.encoder, _batches(source, parts))
    classes = source.info.num_classes
    if chosen.head == "knn":
        return exporting.NeighborsHead(
            embeddings, labels, classes, chosen.head_knn_k
        )
    return exporting.PrototypeHead(
        embeddings, labels, classes, chosen.head_temperature
    )


def _images(chosen: Exporting, parts: exporting.Parts) -> np.ndarray:
    """Images of the run's data, or of two photographs where it is not here."""
    count = chosen.calibration_images
    try:
        source = _source(chosen, parts)
    except errors.UserError as error:
        terminal.info(
            f"checking by photographs in the place of the run's data: {error}"
        )
        size, extra = (
            of(parts.encoder) for of in (exporting.image_size, exporting.extra)
        )
        return exporting.photographs(count, size, 3 + extra)
    # From all over the split, which may be sorted by class.
    total = source.info.num_examples
    rows = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int))
    batches = _batches(source.select(rows), parts)
    return np.concatenate([images.numpy() for images, _ in batches])


def _signatures(details: dict) -> str:
    lines = []
    for name in details["signatures"]:
        takes, gives = _SIGNATURES[name]
        if details["channels"] > 3 and name == "serving_default":
            takes = _OF_CHANNELS
        lines.append(f"  {name:<16} {takes.format(**details)}")
        lines.append(f"  {'':<16} -> {gives.format(**details)}")
    if details["channels"] > 3:
        lines.append(f"  {_NO_BYTES}")
    return "\n".join(lines)


def _formats(details: dict) -> str:
    if not details["formats"]:
        return ""
    width = max(len(one["file"]) for one in details["formats"])
    lines = [
        f"  {one['file']:<{width}}  {one['bytes']:>12,}"
        f" {one['largest_difference']:>12.1e} {one['least_cosine']:>9.6f}"
        for one in details["formats"]
    ]
    heading = (
        f"  {'file':<{width}}  {'bytes':>12} {'difference':>12} {'cosine':>9}"
    )
    return "\n".join(["", heading, *lines, ""])
