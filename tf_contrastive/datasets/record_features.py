"""Features of `tf.train.Example`: which are the image and the label.

The first record decides, and all others are compared with it, so that no label
is lost.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import NO_FEATURE, Reading
from tf_contrastive.datasets.source import Record

_IMAGES = ("image", "image/encoded", "image_encoded", "image_raw", "encoded")
_LABELS = ("label", "image/class/label", "class/label", "image/label")
# Words in the names of labels, and in those of parts of an image.
_WORDS = {"label", "labels", "class", "classes", "category", "target", "y"}
_PARTS = {"bbox", "box", "boxes", "object", "objects"}
# Last words of the names of integers that are no labels.
_FACTS = {"height", "width", "depth", "channels", "rows", "cols", "size", "id"}
_FACTS |= {"length", "format", "colorspace", "orientation", "index", "version"}
_KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
# In the place of a label: what is wrong with a record.
_FAULTS = range(-(2**63), -(2**63) + 5)
_NO_EXAMPLE, _NO_IMAGE, _NO_LABEL, _OTHER_LABEL, _LABEL_TOO = _FAULTS


class _Feature(NamedTuple):
    kind: str
    values: Any

    def __str__(self) -> str:
        count = f"{len(self.values):,} x " if len(self.values) != 1 else ""
        return f"{count}{self.kind}"


class Chosen(NamedTuple):
    """Names of the features that are used, and of the first record's others.

    Attributes:
      image: its name.
      label: its name; None: there are no labels.
      others: that are not used.
    """

    image: str
    label: str | None
    others: tuple[str, ...]


def _features(serialized: bytes) -> dict[str, _Feature]:
    """Parses a `tf.train.Example`."""
    found = {}
    example = tf.train.Example.FromString(serialized)
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        found[name] = _Feature(_KINDS.get(kind, "nothing"), values)
    return found


def is_label(name: str) -> bool:
    """Whether a feature's name is that of a label."""
    words = {*re.split(r"[\W_]+", name.lower())}
    return bool(words & _WORDS) and not words & _PARTS


def _may_be_labels(known: Mapping[str, _Feature]) -> list[str]:
    """Returns the names of features that may be a label."""
    words = {name: re.split(r"[\W_]+", name.lower()) for name in known}
    return [
        name
        for name, feature in known.items()
        if is_label(name)
        or (
            str(feature) == "int64"
            and words[name][-1] not in _FACTS
            and not _PARTS.intersection(words[name])
        )
    ]


def choose(name: str, serialized: bytes, reading: Reading) -> Chosen:
    """Chooses the features of a dataset by its first record.

    Raises:
      UserError: if there is no image, or another feature may be the label.
    """
    try:
        known = dict(sorted(_features(serialized).items()))
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise errors.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
    listed = ", ".join(f"{n} ({x})" for n, x in known.items()) or "none"

    def find(option: str, usual: tuple[str, ...], kind: str) -> str | None:
        wanted = getattr(reading, option)
        names = [n for n in ((wanted,) if wanted else usual) if n in known]
        fit = [n for n in names if str(known[n]) == kind]
        if len(fit) > 1 or (names and not fit):
            problem = "which of" if fit else f"not one {kind}:"
            raise errors.UserError(
                f"{name}: {problem} {', '.join(names)}? Set"
                f" {errors.arg(option, names[-1])} or another feature; features"
                f" present: {listed}"
            )
        return fit[0] if fit else None

    image = find("image_feature", _IMAGES, "bytes")
    if image is None:
        wanted = reading.image_feature
        raise errors.UserError(
            f"{name}: its records have no encoded image in feature"
            f" {wanted or ' or '.join(_IMAGES)}: set"
            f" {errors.arg('image_feature')}, or write the bytes of a JPEG or"
            f" PNG file there; features present: {listed}"
        )
    wanted, label = reading.label_feature, None
    if wanted != NO_FEATURE:
        label = find("label_feature", _LABELS, "int64")
        if wanted and label is None and reading.admits_unlabelled:
            label = wanted  # Of other records.
        others = _may_be_labels(known)
        if label is None and (wanted or others):
            raise errors.UserError(
                f"{name}: its records have no feature"
                f" {wanted or ' or '.join(_LABELS)}: set"
                f" {errors.arg('label_feature', (others or ['NAME'])[0])}, or"
                f" {errors.arg('label_feature', NO_FEATURE)} to read no labels;"
                f" features present: {listed}"
            )
    others_of = tuple(n for n in known if n not in (image, label))
    return Chosen(image, label, others_of)


def reader(
    chosen: Chosen, reading: Reading
) -> Callable[[bytes], tuple[bytes, int]]:
    """Returns serialized -> image and label, for `check`.

    Records that lack one of them have a code in the place of the label.
    """
    no_labels = reading.label_feature == NO_FEATURE

    def label_of(present: dict[str, _Feature]) -> int:
        if chosen.label is None:
            has_label = not no_labels and _may_be_labels(present)
            return _LABEL_TOO if has_label else 0
        label = present.get(chosen.label)
        if label is None or not label.values:
            return _NO_LABEL
        return label.values[0] if str(label) == "int64" else _OTHER_LABEL

    def read(serialized: bytes) -> tuple[bytes, int]:
        try:
            present = _features(serialized)
        except Exception:  # As above.
            return b"", _NO_EXAMPLE
        image = present.pop(chosen.image, None)
        if image is None or str(image) != "bytes":
            return b"", _NO_IMAGE
        return image.values[0], label_of(present)

    return read


def check(
    name: str,
    chosen: Chosen,
    labels: np.ndarray,
    places: Sequence[str],
    reading: Reading,
) -> np.ndarray:
    """Returns the labels; -1, if that is admitted, of records without one.

    Args:
      name: of the dataset.
      chosen: its features.
      labels: of all records, as `reader` returns them, int64 [n].
      places: says where each record is.
      reading: options.

    Raises:
      UserError: for records without an image or a label.
    """
    image, label = repr(chosen.image), repr(chosen.label)
    may_lack = reading.admits_unlabelled
    if may_lack:
        labels = np.where(labels == _NO_LABEL, -1, labels)
    advice = (
        f"label all, set {errors.arg('label_feature', NO_FEATURE)} to read no"
        f" labels, or {errors.arg('unlabelled', 'own_views')} with"
        f" {errors.arg('label_feature')}"
    )
    wrong = {
        "are not tf.train.Example": labels == _NO_EXAMPLE,
        f"have no encoded image in feature {image}": labels == _NO_IMAGE,
        f"have no feature {label}, the label of the others": labels
        == _NO_LABEL,
        f"have no single integer in feature {label}": labels == _OTHER_LABEL,
        "have a feature that may be the label, and the first has none": labels
        == _LABEL_TOO,
        f"have a label below 0 in feature {label}": labels
        < (-1 if may_lack else 0),
        f"have no label in feature {label}": (labels < 0) & (labels.max() < 0),
    }
    for what, rows in wrong.items():
        if count := int(rows.sum()):
            raise errors.UserError(
                f"{name}: {count:,} of {len(labels):,} records {what} (first:"
                f" {places[int(rows.argmax())]}): {advice}"
            )
    return labels


def parser(
    chosen: Chosen, first_label: int, may_lack: bool
) -> Callable[[tf.Tensor], Record]:
    """Returns serialized, string [] -> record, for records without faults.

    `may_lack`: whether records may have no label, or -1, and then have -1.
    """
    names = {"image": chosen.image}
    features = {chosen.image: tf.io.FixedLenFeature([], tf.string)}
    if chosen.label is not None:
        names["label"] = chosen.label
        features[chosen.label] = (
            tf.io.RaggedFeature(tf.int64)
            if may_lack
            else tf.io.FixedLenFeature([], tf.int64)
        )

    def parse(serialized: tf.Tensor) -> Record:
        parsed = tf.io.parse_single_example(serialized, features)
        record = {key: parsed[name] for key, name in names.items()}
        if "label" in record and may_lack:
            labels = tf.concat([record["label"], [first_label - 1]], axis=0)
            record["label"] = tf.maximum(labels[0] - first_label, -1)
        elif "label" in record:
            record["label"] -= first_label
        return record

    return parse
