"""Features of `tf.train.Example`: which are the image and the label.

The first record decides, and all others are compared with it, so that no label
is lost.
"""

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import NO_FEATURE, Reading
from tf_contrastive.datasets.source import Record

_ENCODED = ("image/encoded", "image_encoded", "image_raw", "encoded")
IMAGE_FEATURES = ("image", *_ENCODED)
LABEL_FEATURES = ("label", "image/class/label", "class/label", "image/label")
# Words in the names of labels, and in those of parts of an image.
_LABELS = {"label", "labels", "class", "classes", "cls", "category"}
_LABELS |= {"target", "targets", "y"}
_PARTS = {"bbox", "box", "boxes", "object", "objects"}
# Last words of the names of integers that are no labels.
_HEIGHT, _WIDTH = ("height", "rows", "h"), ("width", "cols", "w")
_FACTS = {*_HEIGHT, *_WIDTH, "depth", "channels", "channel", "c", "size"}
_FACTS |= {"length", "format", "colorspace", "orientation", "id", "ids"}
_FACTS |= {"index", "idx", "number", "timestamp", "version"}
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


def _words(name: str) -> list[str]:
    return re.split(r"[\W_]+", name.lower())


def is_label(name: str) -> bool:
    """Whether a feature's name is that of a label."""
    words = set(_words(name))
    return bool(words & _LABELS) and not words & _PARTS


def _may_be_label(name: str, feature: _Feature) -> bool:
    words = _words(name)
    is_fact = words[-1] in _FACTS or _PARTS.intersection(words)
    return is_label(name) or (str(feature) == "int64" and not is_fact)


def choose(name: str, serialized: bytes, reading: Reading) -> Chosen:
    """Chooses the features of a dataset by its first record.

    Raises:
      UserError: if there is no image, or another feature may be the label.
    """
    try:
        present = _features(serialized)
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise errors.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
    known = {n: present[n] for n in sorted(present)}
    image = _image(name, known, serialized, reading.image_feature)
    del known[image]
    label = _label(name, known, reading)
    return Chosen(image, label, tuple(n for n in known if n != label))


def _listed(features: Mapping[str, _Feature]) -> str:
    return ", ".join(f"{n} ({x})" for n, x in features.items()) or "none"


def _image(
    name: str,
    known: Mapping[str, _Feature],
    serialized: bytes,
    wanted: str | None,
) -> str:
    names = [wanted] if wanted else list(IMAGE_FEATURES)
    named = {n: known[n] for n in names if n in known}
    encoded = [n for n, x in named.items() if str(x) == "bytes"]
    if len(encoded) > 1:
        terminal.warning(
            f"{name}: the image is feature {encoded[0]!r}, and not"
            f" {', '.join(encoded[1:])}: set {errors.arg('image_feature')} for"
            " another one"
        )
    if encoded:
        return encoded[0]
    if named:
        raise errors.UserError(
            f"{name}: feature {_listed(named)} is not an encoded image: write"
            " the bytes of a JPEG or PNG file, such as of tf.io.encode_png"
        )
    lists = tf.train.SequenceExample.FromString(serialized).feature_lists
    if lists.feature_list:
        raise errors.UserError(
            f"{name}: its records are tf.train.SequenceExample, of"
            f" {', '.join(sorted(lists.feature_list))}: write a"
            " tf.train.Example for each image"
        )
    maybe = next((n for n, x in known.items() if str(x) == "bytes"), "NAME")
    raise errors.UserError(
        f"{name}: its records have no encoded image in feature"
        f" {' or '.join(names)}; features present: {_listed(known)}: set"
        f" {errors.arg('image_feature', maybe)}, or write the first record"
        " again"
    )


def _label(
    name: str, known: Mapping[str, _Feature], reading: Reading
) -> str | None:
    wanted = reading.label_feature
    if wanted == NO_FEATURE:
        return None
    if wanted and wanted not in known and reading.admits_unlabelled:
        return wanted  # Of other records.
    none = errors.arg("label_feature", NO_FEATURE)
    if wanted and wanted not in known:
        raise errors.UserError(
            f"{name}: no feature {wanted!r} in the first record; features"
            f" present: {_listed(known)}: set {errors.arg('label_feature')} to"
            f" one of them, or {none} to read no labels"
        )
    names = [wanted] if wanted else list(LABEL_FEATURES)
    named = {n: known[n] for n in names if n in known}
    integers = [n for n, x in named.items() if str(x) == "int64"]
    others = {n: x for n, x in known.items() if _may_be_label(n, x)}
    if integers:
        label = integers[0]
        more = [
            n
            for n, x in others.items()
            if n != label and str(x) == "int64" and is_label(n)
        ]
        if more and not wanted:
            terminal.warning(
                f"{name}: the label is feature {label!r}, and not"
                f" {', '.join(more)}: set {errors.arg('label_feature')} for"
                " another one"
            )
        return label
    if named:
        raise errors.UserError(
            f"{name}: the label, feature {_listed(named)}, is not one integer:"
            " write the number of the class as int64, or set"
            f" {errors.arg('label_feature')} to another feature, or {none} to"
            " read no labels"
        )
    if others:
        usable = [n for n, x in others.items() if str(x) == "int64"]
        advice = "write the number of the class as int64"
        if usable:
            advice = f"set {errors.arg('label_feature', usable[0])}"
        raise errors.UserError(
            f"{name}: its records have no feature {' or '.join(names)}, and"
            f" {_listed(others)} may be the label: {advice}, or {none} to read"
            " no labels"
        )
    return None


def reader(chosen: Chosen, reading: Reading) -> Callable[[tf.Tensor], Record]:
    """Returns serialized, string [] -> image and label, for `check`.

    Records that lack one of them have a code in the place of the label.
    """
    no_labels = reading.label_feature == NO_FEATURE

    def label_of(present: dict[str, _Feature]) -> int:
        if chosen.label is None:
            has_label = any(_may_be_label(n, x) for n, x in present.items())
            return _LABEL_TOO if has_label and not no_labels else 0
        label = present.get(chosen.label)
        if label is None or not label.values:
            return _NO_LABEL
        return label.values[0] if str(label) == "int64" else _OTHER_LABEL

    def read(serialized: bytes) -> tuple[bytes, np.int64]:
        try:
            present = _features(serialized)
        except Exception:  # As above.
            return b"", np.int64(_NO_EXAMPLE)
        image = present.pop(chosen.image, None)
        if image is None or str(image) != "bytes":
            return b"", np.int64(_NO_IMAGE)
        return image.values[0], np.int64(label_of(present))

    def read_in_graph(serialized: tf.Tensor) -> Record:
        types = [tf.string, tf.int64]
        image, label = tf.numpy_function(read, [serialized], types)
        image.set_shape([])
        label.set_shape([])
        return {"image": image, "label": label}

    return read_in_graph


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
    none = errors.arg("label_feature", NO_FEATURE)
    image, label = repr(chosen.image), repr(chosen.label)
    label_all = (
        f"label all, or set {none} to read no labels, or"
        f" {errors.arg('unlabelled', 'own_views')}"
    )
    if reading.admits_unlabelled:
        labels = np.where(labels == _NO_LABEL, -1, labels)
    found = (
        (
            labels == _NO_EXAMPLE,
            "are not tf.train.Example",
            f"write them again, with an encoded image in feature {image}",
        ),
        (
            labels == _NO_IMAGE,
            f"have no encoded image in feature {image}",
            "write it again, or leave these records out",
        ),
        (
            labels == _NO_LABEL,
            f"have no feature {label}, the label of the others",
            label_all,
        ),
        (
            labels == _OTHER_LABEL,
            f"have no single integer in feature {label}",
            "write the number of one class as int64",
        ),
        (
            labels == _LABEL_TOO,
            "have a feature that may be the label, and the first one has none",
            f"set {errors.arg('label_feature')} to it with"
            f" {errors.arg('unlabelled', 'own_views')}"
            if reading.admits_unlabelled
            else label_all,
        ),
        (
            labels < (-1 if reading.admits_unlabelled else 0),
            f"have a label below 0 in feature {label}",
            label_all,
        ),
        (
            (labels < 0) & (labels.max() < 0),
            f"have no label in feature {label}",
            f"use its name in {errors.arg('label_feature')}",
        ),
    )
    for are_wrong, what, advice in found:
        if count := int(are_wrong.sum()):
            raise errors.UserError(
                f"{name}: {count:,} of {len(labels):,} records {what} (first:"
                f" {places[int(are_wrong.argmax())]}): {advice}"
            )
    return labels


def check_encoded(name: str, chosen: Chosen, serialized: bytes) -> None:
    """Raises `UserError` if the image of a record is pixels."""
    present = _features(serialized)
    content = present[chosen.image].values[0]
    if shape := _pixels(content, present):
        raise errors.UserError(
            f"{name}: feature {chosen.image!r} of the first record is no"
            f" encoded image: its {len(content):,} bytes seem to be the pixels"
            f" of {' x '.join(map(str, shape))}: write the bytes of a JPEG or"
            " PNG file, such as of tf.io.encode_png"
        )


def _pixels(content: bytes, present: Mapping[str, _Feature]) -> list[int]:
    """Returns the shape of what seems to be pixels, or []."""
    with contextlib.suppress(Exception):  # As above.
        # The type has no public name.
        tensor = type(tf.make_tensor_proto(0)).FromString(content)
        shape = [side.size for side in tensor.tensor_shape.dim]
        if tensor.dtype and tensor.tensor_content and len(shape) in (2, 3):
            return shape
    sides = {
        side: feature.values[0]
        for side in (_HEIGHT, _WIDTH)
        for n, feature in present.items()
        if _words(n)[-1] in side and str(feature) == "int64"
    }
    for channels in (1, 3, 4):
        square = math.isqrt(len(content) // channels)
        height, width = sides.get(_HEIGHT, square), sides.get(_WIDTH, square)
        if len(content) == height * width * channels > 0:
            return [height, width, channels]
    return []


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
