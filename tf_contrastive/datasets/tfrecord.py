"""TFRecord files of `tf.train.Example` with an encoded image each."""

import os

import tensorflow as tf

from tf_contrastive import config
from tf_contrastive.datasets import images, splits
from tf_contrastive.datasets.source import Info, Record, Source, keep

IMAGE_FEATURES = (
    "image",
    "image/encoded",
    "image_encoded",
    "image_raw",
    "encoded",
)
LABEL_FEATURES = ("label", "image/class/label", "class/label", "image/label")
# Files read at a time; fixed, since it decides the order of the records.
_CYCLE = 16


def _files(name: str, pattern: str, split: str) -> list[str]:
    pattern = os.path.expanduser(pattern)
    files = pattern.replace("{split}", splits.parse(split)[0])
    if files == pattern:
        splits.only_train(name, split, "put {split} into the path for more")
    found = sorted(tf.io.gfile.glob(files))
    if not found:
        raise config.UserError(
            f"{name}: no file matches {files}: give the path of TFRecord"
            " files, which may have wildcards"
        )
    return found


def _read(files: list[str]) -> tf.data.Dataset:
    def records(file):
        zipped = tf.strings.regex_full_match(file, r".*\.gz(ip)?")
        kind = tf.where(zipped, "GZIP", "")
        return tf.data.TFRecordDataset(file, compression_type=kind)

    return tf.data.Dataset.from_tensor_slices(files).interleave(
        records,
        cycle_length=min(_CYCLE, len(files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _features(
    name: str, serialized: bytes
) -> tuple[str, str | None, dict[str, tf.io.FixedLenFeature]]:
    """Finds image and label by the first record."""
    try:
        present = tf.train.Example.FromString(serialized).features.feature
    except Exception as error:  # protobuf's DecodeError is a private class.
        raise config.UserError(
            f"{name}: its records are not tf.train.Example: write them with"
            " an encoded image in feature 'image'"
        ) from error
    image = next((f for f in IMAGE_FEATURES if f in present), None)
    if image is None or present[image].WhichOneof("kind") != "bytes_list":
        raise config.UserError(
            f"{name}: no feature {', '.join(IMAGE_FEATURES)} with an encoded"
            f" image; features present: {', '.join(sorted(present))}"
        )
    features = {image: tf.io.FixedLenFeature([], tf.string)}
    label = next((f for f in LABEL_FEATURES if f in present), None)
    if label is not None and present[label].WhichOneof("kind") != "int64_list":
        raise config.UserError(
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


def _records(name: str, files: list[str]) -> tf.data.Dataset:
    serialized = _read(files)
    first = list(serialized.take(1).as_numpy_iterator())
    if not first:
        raise config.UserError(f"{name}: its {len(files)} files are empty")
    return serialized.map(_parser(*_features(name, first[0])))


def tfrecord(name: str, pattern: str, split: str, max_bad_images: int):
    """Opens `tfrecord:GLOB`: files, gzip by their ending, of tf.train.Example.

    Image and label are found by their features' names; labels are integers
    from 0 on. `{split}` in GLOB stands for the split's name; without it all
    files are the split `train`.

    Returns:
      The `Source`.

    Raises:
      UserError: if no file matches, one is damaged, features are missing, or
        more than `max_bad_images` cannot be read.
    """
    files = _files(name, pattern, split)
    try:
        records = _records(name, files)
        checked = images.check(records, _contents)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        reason = (error.message.splitlines() or ["?"])[0]
        raise config.UserError(
            f"{name}: a file of {len(files)} is damaged or no TFRecord of"
            f" image and label ({reason}): write it again"
        ) from error
    total = len(checked.sizes)
    start, stop = splits.bounds(split, total)
    checked = checked.within(start, stop)
    bad = [f"record {start + index}" for index in checked.bad]
    bad = images.check_bad(name, bad, stop - start, max_bad_images)
    num_classes = None
    if checked.labels is not None:
        num_classes = _num_classes(name, checked.labels)
    good = start + checked.good
    info = Info(
        name, split, len(good), num_classes, checked.image_shape, (), bad
    )
    return Source(keep(records, good, total), _decode, info)


def _num_classes(name: str, labels) -> int:
    if labels.min() < 0:
        raise config.UserError(
            f"{name}: labels from {labels.min()} on: write labels from 0 on"
        )
    return int(labels.max()) + 1
