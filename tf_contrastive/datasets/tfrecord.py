"""TFRecord files of `tf.train.Example` with an encoded image each.

The first record says which features are the image and the label, and all
others are compared with it, so that no label is lost.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import NO_FEATURE, Reading
from tf_contrastive.config.dataset import TFRecord
from tf_contrastive.datasets import (
    decoding,
    listing,
    looking,
    record_files,
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
_KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
# In the place of a label: what is wrong with a record.
_FAULTS = range(-(2**63), -(2**63) + 4)
_NO_EXAMPLE, _NO_IMAGE, _NO_LABEL, _OTHER_LABEL = _FAULTS


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
    if not counts.sum():
        raise errors.UserError(
            f"{name}: no record in {len(paths):,} file(s), such as {paths[0]}:"
            " write them again"
        )
    return place, paths, counts


# ---- Features ----------------------------------------------------------------


class _Chosen(NamedTuple):
    """Names of the features of the image and the label, None without labels."""

    image: str
    label: str | None


def _features(serialized: bytes) -> dict[str, tuple[str, Any]]:
    """Parses a `tf.train.Example`: name -> (kind in words, values)."""
    found = {}
    example = tf.train.Example.FromString(serialized)
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        several = f"{len(values):,} x " if len(values) != 1 else ""
        found[name] = several + _KINDS.get(kind, "nothing"), values
    return found


def _choose(name: str, serialized: bytes, reading: Reading) -> _Chosen:
    """Chooses the features of a dataset by its first record.

    Raises:
      UserError: if there is no image, or another feature may be the label.
    """
    try:
        kinds = {n: kind for n, (kind, _) in _features(serialized).items()}
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise errors.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
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


def _reader(
    chosen: _Chosen, reading: Reading
) -> Callable[[bytes], tuple[bytes, int]]:
    """Returns serialized -> image and label, for `_check`.

    Records that lack one of them have a code in the place of the label.
    """
    unwanted = () if reading.label_feature == NO_FEATURE else _LABELS

    def label_of(present: Mapping[str, tuple[str, Any]]) -> int:
        if chosen.label is None:
            is_other = not present.keys().isdisjoint(unwanted)
            return _OTHER_LABEL if is_other else 0
        if chosen.label not in present:
            return _NO_LABEL
        kind, values = present[chosen.label]
        return values[0] if kind == "int64" else _OTHER_LABEL

    def read(serialized: bytes) -> tuple[bytes, int]:
        try:
            present = _features(serialized)
        except Exception:  # As above.
            return b"", _NO_EXAMPLE
        kind, values = present.get(chosen.image, ("nothing", ()))
        if kind != "bytes":
            return b"", _NO_IMAGE
        return values[0], label_of(present)

    return read


def _check(
    name: str,
    chosen: _Chosen,
    labels: np.ndarray,
    places: Sequence[str],
    reading: Reading,
) -> np.ndarray:
    """Returns the labels; -1, if that is admitted, of records without one.

    Args:
      name: of the dataset.
      chosen: its features.
      labels: of all records, as `_reader` returns them, int64 [n].
      places: says where each record is.
      reading: options.

    Raises:
      UserError: for records without an image or a label.
    """
    smallest = 0
    if reading.admits_unlabelled:
        labels = np.where(labels == _NO_LABEL, -1, labels)
        smallest = -1
    label = f"feature {chosen.label!r}, the label of the first"
    wrong = {
        "are not tf.train.Example": labels == _NO_EXAMPLE,
        f"have no encoded image in feature {chosen.image!r}": labels
        == _NO_IMAGE,
        f"have no {label}": labels == _NO_LABEL,
        f"have another label than a single integer in {label}": labels
        == _OTHER_LABEL,
        f"have a label below 0 in {label}": labels < smallest,
        f"have no label in {label}": (labels < 0) & (labels.max() < 0),
    }
    for what, rows in wrong.items():
        if count := int(rows.sum()):
            raise errors.UserError(
                f"{name}: {count:,} of {len(labels):,} records {what} (first:"
                f" {places[int(rows.argmax())]}): write them alike, or set"
                f" {errors.arg('label_feature', NO_FEATURE)} to read no labels,"
                f" or {errors.arg('unlabelled', 'own_views')} with"
                f" {errors.arg('label_feature')}"
            )
    return labels


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


# ---- The dataset -------------------------------------------------------------


class _Places(Sequence[str]):
    """Says where each record is; a million of texts would fill the memory."""

    def __init__(self, files: Files, rows: range) -> None:
        self._files, self._rows = files, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Places(self._files, self._rows[index])
        return self._files.place(self._rows[index])


def tfrecord(
    name: str, options: TFRecord, split: str, access: Access
) -> Source:
    """Opens `tfrecord:GLOB`: files of tf.train.Example.

    GLOB may be a folder of such files. Image and label are found by the names
    of their features; labels are integers of at least 0. `{split}` in GLOB
    means the split's name; without it all files are the split `train`.
    """
    reading = access.reading
    place, paths, counts = _list(name, os.path.expanduser(options.path), split)
    read = tf.data.TFRecordDataset
    files = Files(paths, np.zeros_like(counts), counts, read)
    places = _Places(files, range(int(counts.sum())))
    try:
        first = next(iter(read(paths).as_numpy_iterator()))
        chosen = _choose(name, first, reading)
        found = looking.at_records(
            paths,
            counts,
            _reader(chosen, reading),
            f"{place} {chosen.image} {chosen.label} {reading.label_feature}",
            reading,
        )
    except tf.errors.OpError as error:
        record = files.unreadable(lambda record: record) or place
        raise errors.UserError(
            f"{name}: {record}: it is damaged; write it again"
        ) from error
    labels = _check(name, chosen, found.labels, places, reading)
    start, stop = split_spec.bounds(split, len(places))
    taken = found.select(slice(start, stop))
    good, shape, bad = looking.check(name, places[start:stop], taken, reading)
    num_classes, about, lacking = None, "none", 0
    if chosen.label is not None:
        # Of the whole split: a slice may lack classes, where files are sorted.
        labels = labels[labels >= 0]
        known = {*np.unique(labels).tolist()}
        num_classes = listing.count_integers(name, split, {split: known})
        lacking = len(places) - len(labels)
        about = f"feature {chosen.label!r}"
        about += f", and none of {lacking:,} records" * bool(lacking)
    info = Info(
        name,
        split,
        len(good),
        num_classes,
        shape,
        (),
        bad,
        unlabelled=lacking > 0,
        by_pillow=found.by_pillow,
        found=(
            ("files", f"{len(paths):,} TFRecord"),
            ("records", f"{len(places):,}"),
            ("images", f"{taken.counts()}, feature {chosen.image!r}"),
            ("labels", about),
        ),
    )
    parse = _parser(chosen, reading.admits_unlabelled)
    files = dataclasses.replace(files, read=lambda file: read(file).map(parse))
    source = in_files(files.select(start + good), decoding.decode_record, info)
    return dataclasses.replace(source, digests=found.digests[start + good])
