"""TFRecord files of `tf.train.Example` with an encoded image each."""

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.datasets import decoding, split_spec
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
    files = pattern.replace("{split}", split_spec.parse(split)[0])
    if files == pattern:
        split_spec.only_train(name, split, "put {split} into the path for more")
    paths = sorted(tf.io.gfile.glob(files))
    paths = [path for path in paths if not tf.io.gfile.isdir(path)]
    if not paths:
        raise errors.AbsentDataError(
            f"{name}: no file matches {files}: use the path of TFRecord files,"
            " with or without wildcards"
        )
    return paths


def _read(file: tf.Tensor) -> tf.data.Dataset:
    zipped = tf.strings.regex_full_match(file, r".*\.gz(ip)?")
    kind = tf.where(zipped, "GZIP", "")
    return tf.data.TFRecordDataset(file, compression_type=kind)


def _parser(
    name: str, paths: list[str]
) -> tuple[Callable[[tf.Tensor], Record], bool]:
    """Returns (serialized -> record, whether records have labels).

    The features are those of the first record.
    """
    serialized = tf.data.Dataset.from_tensor_slices(paths).flat_map(_read)
    first = list(serialized.take(1).as_numpy_iterator())
    if not first:
        raise errors.UserError(
            f"{name}: no record in {len(paths)} file(s): write them again"
        )
    try:
        present = tf.train.Example.FromString(first[0]).features.feature
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
    if label is not None:
        if present[label].WhichOneof("kind") != "int64_list":
            raise errors.UserError(
                f"{name}: feature {label!r} is not an integer: write labels as"
                " int64"
            )
        features[label] = tf.io.FixedLenFeature([], tf.int64)

    def parse(serialized: tf.Tensor) -> Record:
        parsed = tf.io.parse_single_example(serialized, features)
        record = {"image": parsed[image]}
        return record | ({"label": parsed[label]} if label else {})

    return parse, label is not None


def tfrecord(
    name: str, pattern: str, split: str, max_bad_images: int
) -> Source:
    """Opens `tfrecord:GLOB`: files of tf.train.Example, gzip by their ending.

    Image and label are found by the names of their features; labels are
    integers of at least 0. `{split}` in GLOB means the split's name; without it
    all files are the split `train`.

    Raises:
      UserError: if no file matches, one is damaged, features are missing, or
        more than `max_bad_images` cannot be read.
    """
    paths = _files(name, pattern, split)
    try:
        parse, labelled = _parser(name, paths)

        def of_file(number: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
            return _read(file).map(lambda r: parse(r) | {"file": number})

        records = tf.data.Dataset.from_tensor_slices(paths).enumerate()
        sizes = decoding.read_sizes(
            records.flat_map(of_file),
            lambda record: record["image"],
            columns=("file", "label") if labelled else ("file",),
        )
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise errors.UserError(
            f"{name}: one of {len(paths)} files is damaged, or not a TFRecord"
            f" of image and label ({errors.first_line(error)}): write it again"
        ) from error
    files = Files(
        paths,
        np.zeros([len(paths)], np.int64),
        np.bincount(sizes.columns["file"], minlength=len(paths)),
        lambda file: _read(file).map(parse),
    )
    start, stop = split_spec.bounds(split, len(sizes.sizes))
    sizes = sizes.within(start, stop)
    names = [f"record {index}" for index in range(start, stop)]
    bad = sizes.check(name, names, max_bad_images)
    num_classes = None
    if labelled:
        labels = sizes.columns["label"]
        if labels.min() < 0:
            raise errors.UserError(
                f"{name}: its smallest label is {labels.min()}: write labels of"
                " at least 0"
            )
        num_classes = int(labels.max()) + 1
    good = start + sizes.good
    info = Info(name, split, len(good), num_classes, sizes.image_shape, (), bad)
    return in_files(files.select(good), decoding.decode_record, info)
