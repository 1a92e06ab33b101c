"""What an evaluation leaves behind: arrays, plots, points in TensorBoard.

`<folder>/<encoder>-<protocol>.npz` holds, for every variant of a protocol,
which test examples were right, and what is needed to tell whether another
evaluation was of the same examples; `<encoder>-<protocol>-<plot>.png` are its
plots.
"""

import hashlib
import io
import json
import os
import tempfile
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.evaluation.subject import Subject

# Dots per inch of the plots.
_DPI = 120
# The entry of an npz file that says what the others are.
_ABOUT = "about"


class Recorder:
    """Keeps what protocols measured; the `record` of `protocols.run`.

    Args:
      folder: of arrays and plots; None: none are kept.
      events: folder of TensorBoard's files; None: none are written.

    Attributes:
      step: of the checkpoint that is evaluated; to be set.
    """

    def __init__(self, folder: str | None, events: str | None = None) -> None:
        self._folder = folder
        self._events = events
        self.step = 0
        self._writer = None

    def __call__(
        self,
        subject: Subject,
        rows: list[dict[str, Any]],
        parts: list[dict[str, Any]],
    ) -> None:
        """Keeps one protocol's results.

        Args:
          subject: what was measured.
          rows: of the results, a variant each.
          parts: the measurements that they are of.

        Raises:
          UserError: if something cannot be written.
        """
        images = {}
        for row, part in zip(rows, parts, strict=True):
            for name, figure in part.get("plots", {}).items():
                whole = "-".join(filter(None, (row["variant"], name)))
                images[whole] = _png(figure)
        name = f"{subject.name}-{rows[0]['protocol']}"
        if self._folder:
            self._write(name, _arrays(subject, rows, parts), images)
        if self._events:
            with self._board().as_default(step=self.step):
                for row in rows:
                    for tag, value in scalars(row).items():
                        tf.summary.scalar(tag, value)
                for plot, encoded in images.items():
                    tag = f"{subject.name}/{rows[0]['protocol']}/{plot}"
                    pixels = tf.io.decode_png(encoded, channels=3)
                    tf.summary.image(tag, pixels[tf.newaxis])
            self._writer.flush()

    def _board(self) -> tf.summary.SummaryWriter:
        # Made when there is something to write.
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._events)
        return self._writer

    def _write(
        self,
        name: str,
        arrays: dict[str, np.ndarray],
        images: dict[str, bytes],
    ) -> None:
        path = os.path.join(self._folder, f"{name}.npz")
        try:
            tf.io.gfile.makedirs(self._folder)
            # An npz is written with seeks, which object stores do not have.
            with tempfile.TemporaryDirectory() as local:
                file = os.path.join(local, "arrays.npz")
                np.savez_compressed(file, **arrays)
                tf.io.gfile.copy(file, f"{path}.part", overwrite=True)
            tf.io.gfile.rename(f"{path}.part", path, overwrite=True)
            for plot, encoded in images.items():
                path = os.path.join(self._folder, f"{name}-{plot}.png")
                with tf.io.gfile.GFile(path, "wb") as file:
                    file.write(encoded)
        except (OSError, tf.errors.OpError) as error:
            raise errors.cannot_write(
                path, error, "give an `output_dir` that you may write"
            ) from error


def _png(figure: Any) -> bytes:
    """Draws a matplotlib figure, and lets go of it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    figure.clear()
    return stream.getvalue()


def _arrays(
    subject: Subject, rows: list[dict[str, Any]], parts: list[dict[str, Any]]
) -> dict[str, np.ndarray]:
    """The entries of a protocol's npz file."""
    about, arrays = {}, {}
    for row, part in zip(rows, parts, strict=True):
        variant = row["variant"]
        kept = {
            name: np.asarray(part[name])
            for name in ("correct", "predictions")
            if part.get(name) is not None
        }
        about[variant] = {
            "encoder": row["encoder"],
            "protocol": row["protocol"],
            "version": row["version"],
            "hyperparameters": row["hyperparameters"],
        }
        if "correct" in kept:
            labels = part.get("labels")
            if labels is None:
                labels = subject.embeddings("test")[1]
            about[variant] |= {
                "dataset": part.get("dataset", subject.test.info.name),
                "split": subject.test.info.split,
                "labels": digest(labels),
            }
            if part.get("per_class"):
                # The metric is a mean over them.
                kept["labels"] = np.asarray(labels)
        for name, array in {**kept, **part.get("arrays", {})}.items():
            arrays[_entry(variant, name)] = array
    return {_ABOUT: np.array(json.dumps(about)), **arrays}


def _entry(variant: str, name: str) -> str:
    """The name of an array in the npz file."""
    return f"{variant}.{name}" if variant else name


def digest(labels: np.ndarray) -> str:
    """SHA-256 of labels in their order: the same test examples, or others."""
    return hashlib.sha256(np.asarray(labels, "<i8").tobytes()).hexdigest()


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """TensorBoard tag -> number, of one row of the results.

    Tags begin with the encoder, so that none is taken for one of training.
    """
    place = [row["encoder"], row["protocol"], row["variant"]]
    found = {"top1": row["top1"], "top5": row["top5"], **row["metrics"]}
    return {
        "/".join(filter(None, (*place, name))): float(value)
        for name, value in found.items()
        if isinstance(value, (int, float))
    }


def name_of(row: dict[str, Any]) -> str:
    """What a row of results is called: its protocol, and which variant."""
    return " ".join(filter(None, (row["protocol"], row["variant"])))


class Hits(NamedTuple):
    """Which test examples one variant of a protocol had right.

    Attributes:
      about: "encoder", "protocol", "version", "hyperparameters", "dataset",
        "split", "labels" (a digest).
      correct: bool [n], or shares.
      classes: int [n], if the metric is a mean over classes; else None.
    """

    about: dict[str, Any]
    correct: np.ndarray
    classes: np.ndarray | None = None

    @property
    def top1(self) -> float:
        """The metric."""
        if self.classes is None:
            return float(self.correct.mean())
        means = [
            self.correct[self.classes == c].mean()
            for c in np.unique(self.classes)
        ]
        return float(np.mean(means))


def read(path: str) -> dict[tuple[str, str], Hits]:
    """Reads what `Recorder` wrote of one protocol.

    Args:
      path: npz file.

    Returns:
      (protocol, variant) -> hits, of the variants that have some.

    Raises:
      UserError: if it is no such file.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            stored = dict(np.load(io.BytesIO(file.read()), allow_pickle=False))
            about = json.loads(str(stored[_ABOUT]))
            return {
                (facts["protocol"], variant): Hits(
                    facts,
                    stored[_entry(variant, "correct")],
                    stored.get(_entry(variant, "labels")),
                )
                for variant, facts in about.items()
                if "labels" in facts
            }
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise errors.UserError(
            f"{path} is no file of results ({reason}): give one that `evaluate`"
            " wrote, such as RUN/evaluation/trained-knn.npz"
        ) from error


def read_all(folder: str, encoder: str) -> dict[tuple[str, str], Hits]:
    """Reads all that was kept of one encoder.

    Args:
      folder: of the npz files.
      encoder: as results call it.
    """
    found: dict[tuple[str, str], Hits] = {}
    for path in sorted(
        tf.io.gfile.glob(os.path.join(folder, f"{encoder}-*.npz"))
    ):
        found |= read(path)
    return found
