"""Exports a SavedModel with its model card and other files."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

import tf_contrastive
from tf_contrastive import flags
from tf_contrastive.base import errors, files
from tf_contrastive.config.data import Reading
from tf_contrastive.config.export import EXPORT_FORMATS, Exporting
from tf_contrastive.exporting import model_card, tflite_onnx, versioning
from tf_contrastive.exporting.exported_networks import Parts, image_shape
from tf_contrastive.exporting.pytorch import file_for_pytorch
from tf_contrastive.exporting.serving_module import ServingModule

# Model servers ignore this folder.
DETAILS_FILE = "assets.extra/model.json"
KERAS_FILE = "assets.extra/encoder.keras"
_BATCHING = Path(__file__).with_name("batching_parameters.txt")


def export(
    model_or_workdir: Any,
    output_dir: str,
    *,
    checkpoint: int | None = Exporting.checkpoint,
    head: Callable[[tf.Tensor], tf.Tensor] | None = None,
    label_names: Sequence[str] = (),
    formats: Sequence[str] = (),
    max_image_pixels: int = Exporting.max_image_pixels,
) -> str:
    """Writes the next version of a SavedModel, with its card and other formats.

    Args:
      model_or_workdir: folder of a run, a `ContrastiveModel`, a Keras encoder,
        or `Parts`.
      output_dir: folder of versions, made if missing; the first is 1.
      checkpoint: step of the run's checkpoint; None: the newest.
      head: classifier behind the encoder, such as `ProbeHead` or
        `PrototypeHead`; None: no signature `classify`.
      label_names: of its classes; default: those of the run, or their ids.
      formats: "keras", "tflite", "onnx", "pytorch", as well as the SavedModel.
      max_image_pixels: limit of an encoded image that is decoded.

    Returns:
      `<output_dir>/<version>`.

    Raises:
      UserError: if there is no checkpoint, the folder cannot be written, a
        package is missing, PyTorch has no such network; or another format
        could not be converted or differs too much: what was written stays.
    """
    for name in formats:
        if name not in EXPORT_FORMATS:
            raise errors.unknown("format", name, EXPORT_FORMATS)
    tflite_onnx.check_installed(formats)
    output_dir = os.fspath(output_dir)
    parts = Parts.load(model_or_workdir, checkpoint)
    details = _details(parts, head, label_names, max_image_pixels)
    weights = []
    if "pytorch" in formats:
        weights.append(file_for_pytorch(parts.encoder))
    others = [x for x in formats if x in ("tflite", "onnx")]
    failures: list[errors.UserError] = []

    def save(path: str) -> None:
        """Writes all files of the version into a local folder."""
        signatures = module.signatures()
        tf.saved_model.save(module, path, signatures=signatures)
        batching = os.path.join(path, "assets.extra", _BATCHING.name)
        files.write(batching, _BATCHING.read_text("utf-8"))
        conversions: list[dict[str, Any]] = []
        for content, described in weights:
            files.write(os.path.join(path, described["file"]), content)
            conversions.append(described)
        try:
            if "keras" in formats:
                conversions.append(_save_keras(parts.encoder, path))
            for file in tflite_onnx.write(path, module, others):
                conversions.append(file)
        except errors.UserError as error:
            if errors.is_full_disk(error):
                raise
            failures.append(error)
        written = {"signatures": list(signatures), "formats": conversions}
        written = details | written
        files.write_json(os.path.join(path, DETAILS_FILE), written)
        card = model_card.text(written, parts.run)
        files.write(os.path.join(path, model_card.FILE), card)

    with (
        errors.write_errors(
            f"to {output_dir}", "choose a folder that can be written"
        ),
        files.temporary_folder() as assets,
    ):
        names_file = ""
        if head is not None:
            names_file = os.path.join(assets, "label_names.txt")
            names = "".join(f"{name}\n" for name in details["label_names"])
            files.write(names_file, names)
        networks = parts.encoder, parts.projection, head
        reading = parts.run.config.reading if parts.run else Reading()
        module = ServingModule(*networks, names_file, max_image_pixels, reading)
        path = versioning.write_version(save, output_dir)
    if failures:
        raise errors.UserError(f"{path} is written in part: {failures[0]}")
    return path


def _save_keras(encoder: tf.keras.Model, path: str) -> dict[str, Any]:
    """Writes a file of Keras; returns its description, as in `details`.

    Raises:
      UserError: for a network that Keras cannot serialize, as some of KerasCV.
    """
    version = getattr(tf.keras, "__version__", tf.__version__)
    file = os.path.join(path, KERAS_FILE)
    try:
        encoder.save(file)
    except (TypeError, NotImplementedError, ValueError) as error:
        raise errors.UserError(
            f"{errors.arg('format', 'keras')}: Keras cannot write this encoder"
            f" ({errors.first_line(error)}): leave it out"
        ) from error
    return {
        "format": "keras",
        "file": KERAS_FILE,
        "reader": f"Keras 2 of at least {version}, not Keras 3: tf-keras with"
        " TF_USE_LEGACY_KERAS=1",
        "bytes": os.path.getsize(file),
    }


def _details(
    parts: Parts,
    head: Callable | None,
    label_names: Sequence[str],
    max_image_pixels: int,
) -> dict[str, Any]:
    """Returns what is known before the export; see `details`."""
    _, size, channels = image_shape(parts.encoder)
    embedding_size = parts.encoder.output_shape[-1]
    projection_size = None
    if parts.projection is not None:
        shape = parts.projection.compute_output_shape([None, embedding_size])
        projection_size = int(shape[-1])
    if not label_names and parts.run:
        label_names = parts.run.metadata.get("label_names") or ()
    num_classes = getattr(head, "num_classes", None)
    if num_classes is not None and len(label_names) != num_classes:
        if label_names:
            raise errors.UserError(
                f"{len(label_names)} label names for a classifier of"
                f" {num_classes} classes: pass one for each class"
            )
        label_names = [str(label) for label in range(num_classes)]
    return {
        "image_size": size,
        "channels": channels,
        "embedding_size": embedding_size,
        "projection_size": projection_size,
        "head": getattr(head, "description", None),
        "num_classes": num_classes,
        "label_names": [str(name) for name in label_names],
        "step": parts.run.step if parts.run else None,
        "max_image_pixels": max_image_pixels,
        "flags": flags.record(parts.run.config) if parts.run else None,
        "package": tf_contrastive.__version__,
        "tensorflow": tf.__version__,
    }


def details(path: str) -> dict[str, Any]:
    """Reads the description in an export, `BASE/<version>`.

    Returns:
      {"image_size", "channels", "embedding_size", "projection_size" (or None),
      "signatures", "head" (or None), "num_classes" (or None), "label_names",
      "step" (of a run, or None), "formats": [{"format", "file", "reader",
      "bytes", "largest_difference", "least_cosine", "code"}, ...] (differences
      where they were compared, Python code that loads a file of PyTorch),
      "max_image_pixels", "flags" (of the run, or None), "package",
      "tensorflow"}.
    """
    return files.read_json(os.path.join(path, DETAILS_FILE))
