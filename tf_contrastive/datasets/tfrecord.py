"""TFRecord files of `tf.train.Example` with an encoded image each.

The first record says which features are the image and the label, and all
others must have them, so that no label is lost.

A record is its length (8 bytes), a checksum of that (4), the data, and a
checksum of the data (4). TensorFlow allocates what a length says: a file of 112
bytes that says 2**40 ends the process. So records are counted before TensorFlow
reads them, by their lengths alone. Their checksums are left to TensorFlow,
which compares them first.
"""

import dataclasses
import functools
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config.data import NO_FEATURE, Reading
from tf_contrastive.config.dataset import TFRecord
from tf_contrastive.datasets import float_images, remembered, split_spec
from tf_contrastive.datasets.paths import few
from tf_contrastive.datasets.source import (
    FILES_AT_A_TIME,
    Access,
    Files,
    Info,
    Record,
    Source,
    in_files,
)

# In a path: the name of the split.
_SPLIT = "{split}"
# Records whose labels are read at a time.
_BATCH = 256
# What is found of a file; it is remembered, since its records were read.
_ROW = np.dtype(
    [("is_read", "i1"), ("least", "<i8"), ("most", "<i8"), ("lacking", "<i8")]
)
_LENGTH = struct.Struct("<Q")
_HEADER, _FOOTER = 12, 4
# A message of protocol buffers is not larger.
_MAX_RECORD = (1 << 31) - 1
# Bytes read at a time. Disks skip to the next record at little cost; object
# stores are faster at reading on.
_LOCAL, _REMOTE = 1 << 12, 1 << 23
# What is found of a file: its records; and their labels.
_COUNT = np.dtype([("is_counted", "i1"), ("records", "<i8")])


# ---- Lengths -----------------------------------------------------------------


# Returns what is found in each file, by ctime, which users cannot set, unlike
# mtime: a file that changed unnoticed could end the process.
_find = functools.partial(
    remembered.find,
    what="TFRecord files",
    threads=FILES_AT_A_TIME,
    time_of="st_ctime_ns",
)


def _count_all(paths: list[str], place: str) -> np.ndarray:
    """Counts the records of files, int64 [n], before TensorFlow reads them.

    Raises:
      UserError: if a length does not fit a file, or it is no regular file.
    """
    rows = _find(
        paths, place, lambda p: (1, _count(p)), _COUNT, options=("records",)
    )
    return rows["records"]


def check_counts(
    paths: list[str],
    expected: Sequence[int] | np.ndarray,
    place: str,
    advice: str,
) -> None:
    """Raises `UserError` unless files hold so many records."""
    every = _count_all(paths, place).tolist()
    for path, records, count in zip(paths, every, expected, strict=True):
        if records != count:
            raise errors.UserError(
                f"{path} has {records:,} of {count:,} records: {advice}"
            )


def _count(path: str) -> int:
    """Counts a file's records; `UserError` if it is no whole TFRecord file."""
    local = files.local_path(path)
    try:
        size = files.size(path)
        if local is not None:
            with open(local, "rb", buffering=0) as file:
                return _walk(path, file, _LOCAL, size)
        with tf.io.gfile.GFile(path, "rb") as remote:
            return _walk(path, remote, _REMOTE, size)
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): copy or write"
            " it again"
        ) from error


def _walk(path: str, stream: IO[bytes] | Any, chunk: int, size: int) -> int:
    """Counts the records of a stream of `size` bytes, `chunk` at a time."""
    records = offset = start = 0
    part = b""

    def damaged(reason: str) -> errors.UserError:
        return errors.UserError(
            f"{path} is no TFRecord file, compressed, or damaged: the record at"
            f" byte {offset:,} {reason}: copy or write it again"
        )

    while offset != size:
        if offset + _HEADER > start + len(part):
            stream.seek(offset)
            start, part = offset, stream.read(chunk)
        header = part[offset - start :][:_HEADER]
        if len(header) < _HEADER:
            raise damaged("is cut off")
        if not any(header):  # A hole. The checksum of 0 is not 0.
            raise damaged("is no record")
        (length,) = _LENGTH.unpack_from(header)
        end = offset + _HEADER + length + _FOOTER
        if length > _MAX_RECORD or end > size:
            raise damaged(f"claims {length:,} bytes")
        offset, records = end, records + 1
    return records


# ---- Files -------------------------------------------------------------------


def _matching(path: str) -> list[str]:
    """Returns what is in a folder, or matches a pattern, in order."""
    gfile = tf.io.gfile
    if gfile.isdir(path):
        names = [name.rstrip("/") for name in gfile.listdir(path)]
        return sorted(os.path.join(path, name) for name in names)
    return [path] if gfile.exists(path) else sorted(gfile.glob(path))


def _list(
    name: str, pattern: str, split: str
) -> tuple[str, list[str], np.ndarray]:
    """Returns a split's path or pattern, its files, and their record counts.

    Raises:
      UserError: if there are none, or they are of several splits.
    """
    base = split_spec.parse(split)[0]
    if _SPLIT in pattern:
        place, found = split_spec.find(name, pattern, base, _matching)
    else:
        hint = f"put {_SPLIT} into the path for more"
        split_spec.only_train(name, split, hint)
        place, found = pattern, _matching(pattern)
    if _SPLIT in pattern and not found:
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: no file matches {place}"
        )
    paths = [
        path
        for path in found
        if not os.path.basename(path).startswith((".", "_"))
        and not tf.io.gfile.isdir(path)
    ]
    # Lists of labels and the like may be beside them.
    paths = [p for p in paths if ".tfrec" in os.path.basename(p)] or paths
    if not paths:
        inside = f", only {few(found)}" if found else ""
        raise errors.AbsentDataError(
            f"{name}: no file matches {place}{inside}: use the path of TFRecord"
            " files, with or without wildcards"
        )
    counts = _count_all(paths, place)
    if alike := split_spec.look_alikes(paths):
        raise errors.UserError(
            f"{name}: its files are of several splits, such as"
            f" {' and '.join(alike[:2])}: put {_SPLIT} in the place of the"
            " split's name, or move the others"
        )
    if not counts.any():
        raise errors.UserError(
            f"{name}: no record in {len(paths):,} file(s), such as {paths[0]}:"
            " write them again"
        )
    full = [path for path, n in zip(paths, counts, strict=True) if n]
    return place, full, counts[counts > 0]


# ---- Features ----------------------------------------------------------------


class Kind(NamedTuple):
    """What a feature must be, and the names that it usually has."""

    type: str
    usual: Sequence[str]


def choose_features(
    name: str,
    types: Mapping[str, str],
    image: Kind,
    label: Kind,
    reading: Reading,
) -> tuple[str, str | None]:
    """Returns the names of the features of the image and of the label.

    Of `types`, feature -> its type, in words; `reading` may name others.

    Raises:
      UserError: if there is no image, or another feature may be the label.
    """
    listed = ", ".join(f"{n} ({kind})" for n, kind in types.items())
    present = f"features present: {listed or 'none'}"

    def find(option: str, kind: Kind) -> str | None:
        wanted = getattr(reading, option)
        names = [n for n in ((wanted,) if wanted else kind.usual) if n in types]
        if len(names) > 1 or (names and types[names[0]] != kind.type):
            other = names[-1] if len(names) > 1 else "NAME"
            raise errors.UserError(
                f"{name}: not one {kind.type}: {', '.join(names)}: set"
                f" {errors.arg(option, other)}, another feature or"
                f" {errors.arg('label_feature', NO_FEATURE)}; {present}"
            )
        return names[0] if names else None

    found = find("image_feature", image)
    if found is None:
        raise errors.UserError(
            f"{name}: no encoded image ({image.type}) in feature"
            f" {reading.image_feature or ' or '.join(image.usual)}: set"
            f" {errors.arg('image_feature')}; {present}"
        )
    wanted = reading.label_feature
    if wanted == NO_FEATURE:
        return found, None
    of_class = find("label_feature", label)
    others = [n for n, kind in types.items() if kind == label.type]
    if of_class is None and (wanted or others):
        raise errors.UserError(
            f"{name}: no label ({label.type}) in feature"
            f" {wanted or ' or '.join(label.usual)}: set"
            f" {errors.arg('label_feature', (others or ['NAME'])[0])}, or"
            f" {errors.arg('label_feature', NO_FEATURE)} to read no labels;"
            f" {present}"
        )
    return found, of_class


_IMAGE = Kind(
    "bytes", ("image", "image/encoded", "image_encoded", "image_raw", "encoded")
)
_LABEL = Kind(
    "int64", ("label", "image/class/label", "class/label", "image/label")
)


def _choose(
    name: str, serialized: bytes, reading: Reading
) -> tuple[str, str | None]:
    """Returns the features of the image and the label, by the first record."""
    try:
        known = tf.train.Example.FromString(serialized).features.feature
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise errors.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
    types = {}
    for key, feature in sorted(known.items()):
        kind = feature.WhichOneof("kind") or "none"
        count = len(getattr(feature, kind).value) if kind != "none" else 0
        several = f"{count:,} x " if count != 1 else ""
        types[key] = several + kind.removesuffix("_list")
    wanted = reading.label_feature or NO_FEATURE
    if reading.admits_unlabelled and wanted not in (NO_FEATURE, *types):
        types[wanted] = "int64"  # Of other records.
    image, label = choose_features(name, types, _IMAGE, _LABEL, reading)
    if (
        label is None
        and reading.admits_unlabelled
        and reading.label_feature != NO_FEATURE
    ):
        raise errors.UserError(
            f"{name}: the first record has no label: set"
            f" {errors.arg('label_feature')} to the feature that others have"
        )
    return image, label


def _parser(
    image: str, label: str | None, reading: Reading
) -> Callable[[tf.Tensor], Record]:
    """Returns serialized, string [] -> record, for records without faults.

    Of the features of the image, encoded or its values, and of the label, if
    any. Where `reading` admits it, records may have none, and then have -1.
    """
    spec = {image: tf.io.FixedLenFeature([], tf.string)}
    if label is not None:
        none = -1 if reading.admits_unlabelled else None
        spec[label] = tf.io.FixedLenFeature([], tf.int64, none)

    def parse(serialized: tf.Tensor) -> Record:
        parsed = tf.io.parse_single_example(serialized, spec)
        record = {"image": parsed[image]}
        return record if label is None else record | {"label": parsed[label]}

    return parse


def _labels(
    paths: list[str],
    place: str,
    parse: Callable[[tf.Tensor], Record],
    options: tuple[object, ...],
) -> np.ndarray:
    """Reads all labels of files: a `_ROW` of each; `options` are `parse`'s."""

    def one(path: str) -> tuple[int, int, int, int]:
        records = tf.data.TFRecordDataset(path).map(parse)
        least, most, lacking = 0, -1, 0
        batches = records.map(lambda record: record["label"]).batch(_BATCH)
        for labels in batches.as_numpy_iterator():
            least = min(least, labels.min())
            most = max(most, labels.max())
            lacking += np.count_nonzero(labels == -1)
        return 1, least, most, lacking

    return _find(paths, place, one, _ROW, options=("labels", *options))


def _check_labels(name: str, rows: np.ndarray, may_lack: bool) -> int:
    """Returns the number of classes of labels, of `_ROW`s.

    Raises:
      UserError: for labels below 0, or if there are none.
    """
    least, most = int(rows["least"].min()), int(rows["most"].max())
    if least < (-1 if may_lack else 0) or most < 0:
        raise errors.UserError(
            f"{name}: its labels are from {least} to {most}: write labels of at"
            f" least 0, set {errors.arg('label_feature', NO_FEATURE)} to read"
            f" none, or, if -1 is none, {errors.arg('unlabelled', 'own_views')}"
        )
    return most + 1


# ---- The dataset -------------------------------------------------------------


def tfrecord(
    name: str, options: TFRecord, split: str, access: Access
) -> Source:
    """Opens `tfrecord:GLOB`: files of tf.train.Example.

    GLOB may be a folder of such files. Image and label are found by the names
    of their features; labels are integers of at least 0. `{split}` in GLOB
    means the split's name; without it all files are the split `train`. Images
    are not looked at.
    """
    reading, may_lack = access.reading, access.reading.admits_unlabelled
    place, paths, counts = _list(name, os.path.expanduser(options.path), split)
    read = tf.data.TFRecordDataset
    files = Files(paths, np.zeros_like(counts), counts, read)
    first = files.use_first(name, lambda record: record.numpy())
    image, label = _choose(name, first, reading)
    parse = _parser(image, label, reading)
    decode = float_images.record_decoder(reading)
    files.use_first(name, lambda record: decode(parse(record)))
    num_classes, lacking = None, 0
    if label is not None:
        try:
            given = image, label, may_lack, reading.raw_form
            labels = _labels(paths, place, parse, given)
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            record = files.unreadable(parse) or place
            raise errors.UserError(
                f"{name}: {record}: write all records alike, or set"
                f" {errors.arg('label_feature', NO_FEATURE)} to read no labels,"
                f" or {errors.arg('unlabelled', 'own_views')}"
            ) from error
        num_classes = _check_labels(name, labels, may_lack)
        lacking = int(labels["lacking"].sum())
    start, stop = split_spec.bounds(split, int(counts.sum()))
    info = Info(
        name,
        split,
        stop - start,
        num_classes,
        reading.raw_form and reading.raw_form[1],
        unlabelled=lacking > 0,
        float_channels=reading.float_channels,
        by_pillow=reading.float_channels is not None,
        found=(
            ("files", f"{len(paths):,} TFRecord"),
            ("images", f"feature {image!r}"),
            ("labels", f"feature {label!r}" if label else "none"),
            ("without_label", f"{lacking:,} records" * bool(lacking)),
        ),
    )
    files = dataclasses.replace(files, read=lambda file: read(file).map(parse))
    return in_files(files.select(np.arange(start, stop)), decode, info)
