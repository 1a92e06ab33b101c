"""Files of an evaluation besides `evaluation.json`.

`<folder>/<encoder>-<protocol>.npz` holds, for each variant of a protocol, which
test examples were classified correctly, and the facts that say whether two
evaluations used the same examples; `<encoder>-<protocol>-<plot>.png` are the
plots. The same numbers and plots go to TensorBoard.
"""

import hashlib
import io
import json
import os
import zipfile
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import embedding
from tf_contrastive.base import errors, files
from tf_contrastive.config import checks
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import plots, results
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.results import Measurement
from tf_contrastive.tensorboard import hparams

_DOTS_PER_INCH = 120
# Classes of a confusion matrix, at most.
_MAX_CONFUSED = 50
# Protocols whose accuracies are columns of the HParams page: the default ones.
_COLUMNS = checks.split_list(Evaluation.protocols)
# The npz entry that describes the other entries, in JSON.
_ABOUT = "about"


class Recorder:
    """Saves measurements; the `record` argument of `protocols.run`.

    Arrays and plots go to `folder`, TensorBoard's files to `events`, if set.
    Tags start with the dataset if it is not the run's own.
    Set `step`, that of the evaluated checkpoint, and `seen`, what its encoder
    was trained on of the images to score, before each run.
    """

    def __init__(self, folder: str | None, events: str | None = None) -> None:
        self._folder = folder
        if folder:
            files.remove_leftovers(folder)
        self._events = events
        self.step = 0
        self.seen = ""
        # Encoder and protocol of the current npz file, and its content so far.
        self._current: tuple[str, ...] = ()
        self._about: dict[str, dict[str, Any]] = {}
        self._entries: dict[str, Any] = {}
        self._writer: tf.summary.SummaryWriter | None = None

    def __call__(
        self,
        context: EvaluationContext,
        rows: list[dict[str, Any]],
        parts: list[Measurement],
    ) -> None:
        """Saves rows of one protocol's results, and their measurements.

        Consecutive calls for an encoder and a protocol add to the same file.
        """
        protocol = rows[0]["protocol"]
        checksum = embedding.checksum(context.subject.encoder)
        current = (context.subject.name, protocol, checksum)
        if current != self._current:
            self._current, self._about, self._entries = current, {}, {}
        images: dict[str, bytes] = {}
        for row, part in zip(rows, parts, strict=True):
            variant = row["variant"]
            figures = part.get("plots", {})
            if row is rows[-1]:
                figures = figures | _confusion(context, part)
            for name, figure in figures.items():
                plot = "-".join(filter(None, (variant, name)))
                images[plot] = plots.png(figure, _DOTS_PER_INCH)
                figure.clear()
            facts = {
                key: row[key] for key in ("encoder", "protocol", "version")
            }
            facts |= {
                "hyperparameters": row["hyperparameters"]
                | part.get("resolved", {}),
                "step": self.step,
                "checksum": checksum,
            }
            arrays = dict(part.get("arrays", {}))
            if "predictions" in part:
                arrays["predictions"] = np.asarray(part["predictions"])
            if "correct" in part:
                arrays["correct"] = np.asarray(part["correct"])
                labels = results.scored_labels(context, part)
                facts |= {
                    "dataset": context.data.test.info.name,
                    "split": context.data.test.info.split,
                    "labels": digest(labels),
                    "seen": self.seen * (context.subject.name == "trained"),
                }
                if "dataset" in part:
                    # The split is that of the context's own dataset.
                    facts |= {"dataset": part["dataset"], "split": None}
                    facts["seen"] = part.get("seen", "")
            self._about[variant] = facts
            for name, array in arrays.items():
                self._entries[_entry_name(variant, name)] = array
        if self._folder:
            base = os.path.join(
                self._folder, f"{context.subject.name}-{protocol}"
            )
            stream = io.BytesIO()
            about: dict[str, Any] = {_ABOUT: json.dumps(self._about)}
            np.savez_compressed(stream, **about, **self._entries)
            contents = {f"{base}.npz": stream.getvalue()}
            contents |= {
                f"{base}-{plot}.png": png for plot, png in images.items()
            }
            for path, content in contents.items():
                files.write(path, content, results.ADVICE)
        if self._events:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._events)
            # The run's own curves are of its own dataset.
            dataset = context.data.test.info.name
            own = (
                context.subject.run is None
                or context.subject.run.data.dataset == dataset
            )
            prefix = "" if own else f"{dataset}/"
            with self._writer.as_default(step=self.step):
                for row in rows:
                    for tag, value in results.scalars(row).items():
                        tf.summary.scalar(f"{prefix}{tag}", value)
                for plot, encoded in images.items():
                    pixels = tf.io.decode_png(encoded, channels=3)
                    tag = f"{prefix}{context.subject.name}/{protocol}/{plot}"
                    tf.summary.image(tag, pixels[tf.newaxis])
            self._writer.flush()
            if (
                own
                and context.subject.run
                and context.subject.name == "trained"
            ):
                scores = {
                    results.row_name(row): row["top1"]
                    for row in rows
                    if protocol in _COLUMNS and row["top1"] is not None
                }
                run_events = os.path.dirname(self._events)
                hparams.write_scores(run_events, scores, self.step)


def _confusion(context: EvaluationContext, part: Measurement) -> dict[str, Any]:
    """Draws how a result confuses the classes of test, if they are few."""
    info = context.data.test.info
    classes = info.num_classes or 0
    if "predictions" not in part or {"labels", "dataset"} & {*part}:
        return {}
    if classes > _MAX_CONFUSED:
        return {}
    names = info.label_names or [str(i) for i in range(classes)]
    labels = context.labels("test")
    return {"confusion": plots.confusion(labels, part["predictions"], names)}


def _entry_name(variant: str, name: str) -> str:
    return f"{variant}.{name}" if variant else name


def digest(labels: np.ndarray) -> str:
    """Returns the SHA-256 of labels in order, to compare test sets."""
    return hashlib.sha256(np.asarray(labels, "<i8").tobytes()).hexdigest()


class Hits(NamedTuple):
    """Which test examples one variant of a protocol classified correctly."""

    # "encoder", "protocol", "version", "hyperparameters", "step", "checksum"
    # (of the encoder), "dataset", "split" (None: not the context's own
    # dataset), "labels" (a digest), and "seen" (what the encoder was trained
    # on of the images, or "").
    about: dict[str, Any]
    correct: np.ndarray  # Bool [n], or fractions.


def read(path: str) -> dict[tuple[str, str], Hits]:
    """Reads the npz file of one protocol: (protocol, variant) -> hits.

    Variants without hits are left out. Raises `UserError` for another file.
    """
    try:
        file = io.BytesIO(files.read(path))
        with zipfile.ZipFile(file) as members:
            unpacked = sum(member.file_size for member in members.infolist())
        if unpacked > files.MAX_BYTES:
            raise ValueError(f"{unpacked:,} bytes of arrays")
        arrays = dict(np.load(file, allow_pickle=False))
        about = json.loads(str(arrays[_ABOUT]))
        return {
            (facts["protocol"], variant): Hits(
                facts, arrays[_entry_name(variant, "correct")]
            )
            for variant, facts in about.items()
            if "labels" in facts
        }
    except Exception as error:  # NumPy raises a dozen kinds for damaged files.
        raise errors.UserError(
            f"{path} is not a results file ({errors.first_line(error)}): use"
            " one that `evaluate` wrote, such as RUN/evaluation/trained-knn.npz"
        ) from error
