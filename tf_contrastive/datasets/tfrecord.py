"""TFRecord files of `tf.train.Example` with an encoded image each."""

import os

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.datasets import images, splits
from tf_contrastive.datasets.source import (
    Files,
    Info,
    Record,
    Source,
    in_files,
)

IMAGE_FEATURES = (
    "image",
    "image/encoded",
    "image_encoded",
    "image_raw",
    "encoded",
)
LABEL_FEATURES = ("label", "image/class/label", "class/label", "image/label")


def _files(name: str, pattern: str, split: str) -> list[str]:
    pattern = os.path.expanduser(pattern)
    files = pattern.replace("{split}", splits.parse(split)[0])
    if files == pattern:
        splits.only_train(name, split, "put {split} into the path for more")
    found = sorted(tf.io.gfile.glob(files))
    found = [path for path in found if not tf.io.gfile.isdir(path)]
    if not found:
        raise errors.AbsentDataError(
            f"{name}: no file matches {files}: give the path of TFRecord"
            " files, which may have wildcards"
        )
    return found


def _read(file: tf.Tensor) -> tf.data.Dataset:
    zipped = tf.strings.regex_full_match(file, r".*\.gz(ip)?")
    kind = tf.where(zipped, "GZIP", "")
    return tf.data.TFRecordDataset(file, compression_type=kind)


def _features(
    name: str, serialized: bytes
) -> tuple[str, str | None, dict[str, tf.io.FixedLenFeature]]:
    """Finds image and label by the first record."""
    try:
        present = tf.train.Example.FromString(serialized).features.feature
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise errors.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
    image = next((f for f in IMAGE_FEATURES if f in present), None)
    if image is None or present[image].WhichOneof("kind") != "bytes_list":
        raise errors.UserError(
            f"{name}: no feature {', '.join(IMAGE_FEATURES)} with an encoded"
            f" image; features present: {', '.join(sorted(present))}"
        )
    features = {image: tf.io.FixedLenFeature([], tf.string)}
    label = next((f for f in LABEL_FEATURES if f in present), None)
    if label is not None and present[label].WhichOneof("kind") != "int64_list":
        raise errors.UserError(
            f"{name}: feature {label!r} is no integer: write labels as int64"
        )
    if label is not None:
        features[label] = tf.io.FixedLenFeature([], tf.int64)
    return image, label, features


def _parser(image: str, label: str | None, features: dict):
    def parse(serialized):
        parsed = tf.io.parse_single_example(serialized, features)
        record = {"image": parsed[image]}
        return record | ({"label": parsed[label]} if label else {})

    return parse


def _contents(record: Record) -> tf.Tensor:
    return record["image"]


def _decode(record: Record) -> Record:
    return record | {"image": images.decode(record["image"])}


def _parse(name: str, files: list[str]):
    """Returns (serialized -> record, whether records have labels)."""
    serialized = tf.data.Dataset.from_tensor_slices(files).flat_map(_read)
    first = list(serialized.take(1).as_numpy_iterator())
    if not first:
        raise errors.UserError(
            f"{name}: no record in {len(files)} file(s): write them again"
        )
    image, label, features = _features(name, first[0])
    return _parser(image, label, features), label is not None


def _check(files: list[str], parse, labelled: bool) -> images.Checked:
    """Reads everything once; its columns: `file`, its number, and `label`."""

    def of_file(number, file):
        return _read(file).map(lambda record: parse(record) | {"file": number})

    records = tf.data.Dataset.from_tensor_slices(files).enumerate()
    columns = ("file", "label") if labelled else ("file",)
    return images.check(records.flat_map(of_file), _contents, columns=columns)


def tfrecord(
    name: str, pattern: str, split: str, max_bad_images: int
) -> Source:
    """Opens `tfrecord:GLOB`: files, gzip by their ending, of tf.train.Example.

    Image and label are found by their features' names; labels are integers
    from 0 on. `{split}` in GLOB stands for the split's name; without it all
    files are the split `train`.

    Raises:
      UserError: if no file matches, one is damaged, features are missing, or
        more than `max_bad_images` cannot be read.
    """
    paths = _files(name, pattern, split)
    try:
        parse, labelled = _parse(name, paths)
        checked = _check(paths, parse, labelled)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        reason = (error.message.splitlines() or ["?"])[0]
        raise errors.UserError(
            f"{name}: a file of {len(paths)} is damaged or no TFRecord of"
            f" image and label ({reason}): write it again"
        ) from error
    total = len(checked.sizes)
    files = Files(
        paths,
        np.zeros([len(paths)], np.int64),
        np.bincount(checked.columns["file"], minlength=len(paths)),
        lambda file: _read(file).map(parse),
    )
    start, stop = splits.bounds(split, total)
    checked = checked.within(start, stop)
    bad = [f"record {start + index}" for index in checked.bad]
    bad = images.check_bad(name, bad, stop - start, max_bad_images)
    num_classes = None
    if labelled:
        num_classes = _num_classes(name, checked.columns["label"])
    good = start + checked.good
    info = Info(
        name, split, len(good), num_classes, checked.image_shape, (), bad
    )
    return in_files(files.select(good), _decode, info)


def _num_classes(name: str, labels) -> int:
    if labels.min() < 0:
        raise errors.UserError(
            f"{name}: labels from {labels.min()} on: write labels from 0 on"
        )
    return int(labels.max()) + 1
