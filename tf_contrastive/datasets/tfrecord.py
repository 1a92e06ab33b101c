"""TFRecord files of `tf.train.Example` with an encoded image each.

The first record says which features are the image and the label, and all
others must have them, so that no label is lost.
"""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import NO_FEATURE, Reading
from tf_contrastive.config.dataset import TFRecord
from tf_contrastive.datasets import (
    decoding,
    listing,
    record_files,
    remembered,
    split_spec,
)
from tf_contrastive.datasets.source import (
    Access,
    Files,
    Info,
    Record,
    Source,
    in_files,
)

# In a path: the name of the split.
_SPLIT = "{split}"
# The usual names of features.
_IMAGES = ("image", "image/encoded", "image_encoded", "image_raw", "encoded")
_LABELS = ("label", "image/class/label", "class/label", "image/label")
# Files whose labels are read at a time, and records of each.
_FILES_AT_A_TIME, _BATCH = 16, 256
# What is found of a file; it is remembered, since its records were read.
_ROW = np.dtype(
    [("is_read", "i1"), ("least", "<i8"), ("most", "<i8"), ("lacking", "<i8")]
)


# ---- Files -------------------------------------------------------------------


def _matching(path: str) -> list[str]:
    """Returns what is in a folder, or matches a pattern, in order."""
    gfile = tf.io.gfile
    if gfile.isdir(path):
        names = [name.rstrip("/") for name in gfile.listdir(path)]
        return sorted(os.path.join(path, name) for name in names)
    return [path] if gfile.exists(path) else sorted(gfile.glob(path))


def _of_split(name: str, pattern: str, split: str) -> tuple[str, list[str]]:
    """Returns a split's path or pattern, and what is there."""
    if _SPLIT not in pattern:
        hint = f"put {_SPLIT} into the path for more"
        split_spec.only_train(name, split, hint)
        return pattern, _matching(pattern)
    base = split_spec.parse(split)[0]
    place, there = split_spec.place(name, pattern, base, _matching)
    if not there:
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: no file matches {place}"
        )
    return place, there


def _list(
    name: str, pattern: str, split: str
) -> tuple[str, list[str], np.ndarray]:
    """Returns a split's path or pattern, its files, and their record counts.

    Raises:
      UserError: if there are none, or others that should be; or if they are of
        several splits.
    """
    place, found = _of_split(name, pattern, split)
    paths = [
        path
        for path in found
        if not os.path.basename(path).startswith((".", "_"))
        and not tf.io.gfile.isdir(path)
    ]
    # Lists of labels and the like may be beside them.
    paths = [p for p in paths if ".tfrec" in os.path.basename(p)] or paths
    if not paths:
        inside = f", only {listing.few(found)}" if found else ""
        raise errors.AbsentDataError(
            f"{name}: no file matches {place}{inside}: use the path of TFRecord"
            " files, with or without wildcards"
        )
    counts = record_files.count_all(paths, place)
    foreign = [p for p, n in zip(paths, counts.tolist(), strict=True) if n < 0]
    if foreign:
        raise errors.UserError(
            f"{name}: {len(foreign):,} of {len(paths):,} files are no TFRecord"
            f" files, compressed, or damaged, such as {foreign[0]}: use a"
            f" pattern of the others, {listing.OWN}"
        )
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


class _Chosen(NamedTuple):
    """Names of the features of the image and the label, None without labels."""

    image: str
    label: str | None


def _choose(name: str, serialized: bytes, reading: Reading) -> _Chosen:
    """Chooses the features of a dataset by its first record.

    Raises:
      UserError: if there is no image, or another feature may be the label.
    """
    try:
        features = tf.train.Example.FromString(serialized).features.feature
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise errors.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
    kinds = {}
    for key, feature in sorted(features.items()):
        kind = feature.WhichOneof("kind") or "none"
        count = len(getattr(feature, kind).value) if kind != "none" else 0
        several = f"{count:,} x " if count != 1 else ""
        kinds[key] = several + kind.removesuffix("_list")
    present = ", ".join(f"{n} ({kind})" for n, kind in kinds.items()) or "none"

    def find(option: str, usual: tuple[str, ...], kind: str) -> str | None:
        wanted = getattr(reading, option)
        names = [n for n in ((wanted,) if wanted else usual) if n in kinds]
        if not names:
            return None
        if len(names) > 1 or kinds[names[0]] != kind:
            raise errors.UserError(
                f"{name}: not one {kind}: {', '.join(names)}: set"
                f" {errors.arg(option, names[-1])} or another feature; features"
                f" present: {present}"
            )
        return names[0]

    image = find("image_feature", _IMAGES, "bytes")
    if image is None:
        raise errors.UserError(
            f"{name}: its records have no encoded image in feature"
            f" {reading.image_feature or ' or '.join(_IMAGES)}: set"
            f" {errors.arg('image_feature')}, or write the bytes of a JPEG or"
            f" PNG file there; features present: {present}"
        )
    wanted = reading.label_feature
    if wanted == NO_FEATURE:
        return _Chosen(image, None)
    label = find("label_feature", _LABELS, "int64")
    if label is None and wanted and reading.admits_unlabelled:
        return _Chosen(image, wanted)  # Of other records.
    integers = [n for n, kind in kinds.items() if kind == "int64"]
    if label is None and (wanted or integers):
        raise errors.UserError(
            f"{name}: its records have no feature"
            f" {wanted or ' or '.join(_LABELS)}: set"
            f" {errors.arg('label_feature', (integers or ['NAME'])[0])}, or"
            f" {errors.arg('label_feature', NO_FEATURE)} to read no labels;"
            f" features present: {present}"
        )
    return _Chosen(image, label)


def _parser(chosen: _Chosen, may_lack: bool) -> Callable[[tf.Tensor], Record]:
    """Returns serialized, string [] -> record, for records without faults.

    `may_lack`: whether records may have no label, or -1, and then have -1.
    """
    features = {chosen.image: tf.io.FixedLenFeature([], tf.string)}
    if chosen.label is not None:
        none = -1 if may_lack else None
        features[chosen.label] = tf.io.FixedLenFeature([], tf.int64, none)

    def parse(serialized: tf.Tensor) -> Record:
        parsed = tf.io.parse_single_example(serialized, features)
        record = {"image": parsed[chosen.image]}
        if chosen.label is not None:
            record["label"] = parsed[chosen.label]
        return record

    return parse


def _labels(
    paths: list[str], place: str, parse: Callable[[tf.Tensor], Record]
) -> np.ndarray:
    """Reads all labels of files: a `_ROW` of each.

    `place` is what the files are of, and `parse` reads a record of them.
    """

    def one(path: str) -> tuple[int, int, int, int]:
        records = tf.data.TFRecordDataset(path).map(parse)
        least, most, lacking = 0, -1, 0
        batches = records.map(lambda record: record["label"]).batch(_BATCH)
        for labels in batches.as_numpy_iterator():
            least = min(least, labels.min())
            most = max(most, labels.max())
            lacking += np.count_nonzero(labels == -1)
        return 1, least, most, lacking

    def read(some: Sequence[str]) -> np.ndarray:
        what = f"labels of {len(some):,} TFRecord files"
        threads = remembered.threads(some, _FILES_AT_A_TIME)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found = [*remembered.logged(pool.map(one, some), what)]
        return np.array(found, _ROW)

    return remembered.find(paths, place, read, _ROW, time_of="st_ctime_ns")


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
    chosen = _choose(name, first, reading)
    parse = _parser(chosen, may_lack)
    decode = decoding.decode_record
    files.use_first(name, lambda record: decode(parse(record)))
    num_classes, lacking = None, 0
    if chosen.label is not None:
        store = remembered.place(place, *chosen, may_lack)
        try:
            labels = _labels(paths, store, parse)
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            record = files.unreadable(parse) or place
            raise errors.UserError(
                f"{name}: {record}: write all records alike, or set"
                f" {errors.arg('label_feature', NO_FEATURE)} to read no labels,"
                f" or {errors.arg('unlabelled', 'own_views')}"
            ) from error
        num_classes = _check_labels(name, labels, may_lack)
        lacking = int(labels["lacking"].sum())
    total = int(counts.sum())
    start, stop = split_spec.bounds(split, total)
    info = Info(
        name,
        split,
        stop - start,
        num_classes,
        unlabelled=lacking > 0,
        found=(
            ("files", f"{len(paths):,} TFRecord"),
            ("images", f"feature {chosen.image!r}"),
            ("labels", f"feature {chosen.label!r}" if chosen.label else "none"),
            ("without_label", f"{lacking:,} records" * bool(lacking)),
        ),
    )
    files = dataclasses.replace(files, read=lambda file: read(file).map(parse))
    return in_files(files.select(np.arange(start, stop)), decode, info)
