"""Versions of an export: each is there whole, or not at all."""

import contextlib
import dataclasses
import json
import math
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_contrastive
from tf_contrastive import checkpoints, errors
from tf_contrastive.config.export import EXPORT_FORMATS, Exporting
from tf_contrastive.exporting import (
    model_card,
    portable,
    reading,
    samples,
    serving_files,
    serving_module,
    tflite_onnx,
)
from tf_contrastive.views import crops

# For users of the package: the encoder as a Keras model.
KERAS_FILE = os.path.join(reading.EXTRA, "encoder.keras")
# Its weights alone, where Keras cannot write the model down.
WEIGHTS_FILE = os.path.join(reading.EXTRA, "encoder.weights.h5")

# Folders that a version is written into.
_PARTIAL = re.compile("partial-[0-9a-f]{32}")
# Seconds without a change after which nobody writes to such a folder any more:
# an export takes minutes, and clocks of two machines differ by hours at most.
_ABANDONED_AFTER = 24 * 3600


@dataclasses.dataclass(frozen=True)
class Parts:
    """What is exported, in float32 and of Keras' own layers.

    Attributes:
      encoder: images [N, S, S, K] -> features [N, D].
      projection: features -> [N, P]; None where there is none.
      run: that it was read from; None for a model from Python.
    """

    encoder: tf.keras.Model
    projection: tf.keras.layers.Layer | None = None
    run: checkpoints.Run | None = None


def parts(
    model_or_workdir: Any,
    checkpoint: int = Exporting.checkpoint,
) -> Parts:
    """Reads what is to be exported.

    Args:
      model_or_workdir: see `export`.
      checkpoint: step of a run's checkpoint; -1: the newest.

    Raises:
      UserError: if there is no such checkpoint.
    """
    if isinstance(model_or_workdir, Parts):
        return model_or_workdir
    if isinstance(model_or_workdir, str | os.PathLike):
        run = _run(os.fspath(model_or_workdir), checkpoint)
        encoder = checkpoints.load_encoder(run)
        head = checkpoints.load_projection(run, encoder.output_shape[-1])
        encoder = portable.plain_encoder(encoder)
        return Parts(encoder, head and portable.plain_head(head), run)
    model = model_or_workdir
    encoder = portable.plain_encoder(getattr(model, "encoder", model))
    head = getattr(model, "projection_head", None)
    return Parts(encoder, head and portable.plain_head(head))


def _run(workdir: str, step: int) -> checkpoints.Run:
    run = checkpoints.load_run(workdir)
    if step < 0:
        return run
    known = {checkpoints.step_of(p): p for p in checkpoints.saved(workdir)}
    if step not in known:
        raise errors.UserError(
            f"checkpoint={step}: {workdir} has none of that step: it has"
            f" those of step {', '.join(map(str, known))}"
        )
    return run.at(known[step])


def export(
    model_or_workdir: Any,
    output_dir: str,
    *,
    checkpoint: int = Exporting.checkpoint,
    head: Callable | None = None,
    label_names: Sequence[str] = (),
    formats: Sequence[str] = (),
    images: np.ndarray | None = None,
    max_image_pixels: int = Exporting.max_image_pixels,
) -> str:
    """Writes the next version of a SavedModel that serves embeddings.

    Beside it lie a model card (`README.md`), files for TensorFlow Serving, the
    encoder as a Keras model and, if asked for, in other formats.

    Args:
      model_or_workdir: folder of a run, or a `ContrastiveModel`, or a Keras
        encoder, or what `parts` read.
      output_dir: folder of versions, made if missing; the first is 1.
      checkpoint: step of the run's checkpoint; -1: the newest.
      head: classifier behind the encoder, such as `ProbeHead`,
        `PrototypeHead` or `NeighborsHead`; None: no signature `classify`.
      label_names: of its classes; default: those of the run, or their ids.
      formats: "tflite" and "onnx", beside the SavedModel.
      images: float32 [n, S, S, K], as the encoder takes them: real ones, by
        which other formats are checked and calibrated and servers warmed up;
        None: cuttings of two photographs.
      max_image_pixels: of an encoded image; larger ones are not decoded.

    Returns:
      `<output_dir>/<version>`.

    Raises:
      UserError: if there is no checkpoint, the folder cannot be written, a
        package is missing, or another format differs too much.
    """
    for name in formats:
        if name not in EXPORT_FORMATS:
            raise errors.unknown("format", name, EXPORT_FORMATS)
    formats = [name for name in formats if name != "savedmodel"]
    tflite_onnx.check_installed(formats)
    output_dir = os.fspath(output_dir)
    made = parts(model_or_workdir, checkpoint)
    size, channels = portable.image_shape(made.encoder)[1:]
    if images is None:
        images = samples.photographs(32, size, channels)
    facts = _facts(made, head, label_names, max_image_pixels)
    try:
        with tempfile.TemporaryDirectory() as beside:
            names = ""
            if head is not None:
                names = os.path.join(beside, "label_names.txt")
                with open(names, "w", encoding="utf-8") as file:
                    file.writelines(f"{n}\n" for n in facts["label_names"])
            module = serving_module.ServingModule(
                made.encoder, made.projection, head, names, max_image_pixels
            )
            return _write(
                lambda path: _save(module, made, facts, formats, images, path),
                output_dir,
            )
    except (OSError, tf.errors.OpError) as error:
        raise errors.cannot_write(
            f"to {output_dir}", error, "give a folder that can be written"
        ) from error


def _facts(
    made: Parts,
    head: Callable | None,
    label_names: Sequence[str],
    max_image_pixels: int,
) -> dict[str, Any]:
    """What `reading.details` gives, and the card beside."""
    size, channels = portable.image_shape(made.encoder)[1:]
    embedding_size = made.encoder.output_shape[-1]
    projection_size = None
    if made.projection is not None:
        shape = made.projection.compute_output_shape([None, embedding_size])
        projection_size = int(shape[-1])
    run = made.run
    if not label_names and run:
        label_names = run.metadata.get("label_names") or ()
    num_classes = getattr(head, "num_classes", None)
    if head is not None and len(label_names) != num_classes:
        if label_names:
            raise errors.UserError(
                f"{len(label_names)} label names for a classifier of"
                f" {num_classes} classes: give one for each class"
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
        "step": run.step if run else None,
        "resized": crops.resize_target(size),
        "max_image_pixels": max_image_pixels,
        "package": tf_contrastive.__version__,
        "tensorflow": tf.__version__,
    }


def _save(
    module: serving_module.ServingModule,
    made: Parts,
    facts: dict[str, Any],
    formats: Sequence[str],
    images: np.ndarray,
    path: str,
) -> None:
    """Writes all files of a version into a local folder."""
    signatures = module.signatures()
    tf.saved_model.save(module, path, signatures=signatures)
    converted = []
    if formats:
        written = tf.saved_model.load(path)
        for one in tflite_onnx.convert(module, formats, images, written):
            with open(os.path.join(path, one.file), "wb") as file:
                file.write(one.content)
            converted.append(one.facts())
    facts = facts | {"signatures": list(signatures), "formats": converted}
    takes = signatures["serving_default"].input_signature[0].dtype
    serving_files.write(path, signatures, images, takes)
    _save_keras(made.encoder, path)
    for file, text in (
        (reading.DETAILS_FILE, json.dumps(facts, indent=2) + "\n"),
        (model_card.FILE, model_card.write(facts, made.run)),
    ):
        with open(os.path.join(path, file), "w", encoding="utf-8") as stream:
            stream.write(text)


def _save_keras(encoder: tf.keras.Model, path: str) -> None:
    file = os.path.join(path, KERAS_FILE)
    try:
        encoder.save(file)
    except TypeError:
        # Slices of tensors, as in some networks of KerasCV, have no JSON.
        if os.path.exists(file):
            os.remove(file)
        encoder.save_weights(os.path.join(path, WEIGHTS_FILE))


def _write(save: Callable[[str], None], output_dir: str) -> str:
    """Saves to the next version's folder, so that it is whole or not there.

    What a killed export has left is removed by the first one that comes a day
    later: whether its process lives cannot be asked of another machine, and
    folders in which something changed since may be those of a living one.
    """
    tf.io.gfile.makedirs(output_dir)
    # Only filesystems of the machine rename folders. Object stores copy file
    # by file: there `saved_model.pb`, which comes last, makes the version.
    if "://" not in output_dir:
        _remove_abandoned(output_dir)
        with _removed_if_broken(
            os.path.join(output_dir, f"partial-{uuid.uuid4().hex}")
        ) as path:
            save(path)
            return _renamed(path, output_dir)
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        with _removed_if_broken(_next(output_dir)) as path:
            _copy(folder, path, last=reading.GRAPH_FILE)
    return path


def _next(output_dir: str) -> str:
    """The folder of the next version, beyond those that never were whole."""
    newest = max(reading.versions(output_dir), default=0)
    return os.path.join(output_dir, str(newest + 1))


def _renamed(path: str, output_dir: str) -> str:
    """Makes a version of a folder; two exports at once get one number each."""
    while True:
        final = _next(output_dir)
        try:
            tf.io.gfile.rename(path, final)
        except (
            tf.errors.AlreadyExistsError,
            tf.errors.FailedPreconditionError,
        ):
            if not tf.io.gfile.exists(final):
                raise
        else:
            return final


def _remove_abandoned(output_dir: str) -> None:
    """Removes what killed exports have left; see `_write`."""
    oldest = time.time() - _ABANDONED_AFTER
    for name in tf.io.gfile.listdir(output_dir):
        if not _PARTIAL.fullmatch(name):
            continue
        path = os.path.join(output_dir, name)
        # Another export may be removing it, too, or another user own it.
        with contextlib.suppress(OSError, tf.errors.OpError):
            if _changed(path) < oldest:
                tf.io.gfile.rmtree(path)


def _changed(folder: str) -> float:
    """When anything in a folder changed last, in seconds of `time.time`."""
    times = [
        tf.io.gfile.stat(os.path.join(place, name)).mtime_nsec / 1e9
        for place, _, names in tf.io.gfile.walk(folder)
        for name in (".", *names)
    ]
    return max(times, default=math.inf)


@contextlib.contextmanager
def _removed_if_broken(path: str) -> Iterator[str]:
    try:
        yield path
    except BaseException:
        if tf.io.gfile.exists(path):
            tf.io.gfile.rmtree(path)
        raise


def _copy(folder: str, path: str, last: str) -> None:
    """Copies a local folder, one of its files after all others."""
    files = [
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    ]
    for file in sorted(files, key=lambda file: (file == last, file)):
        target = os.path.join(path, file)
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(os.path.join(folder, file), target)
