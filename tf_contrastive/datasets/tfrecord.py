"""TFRecord files of `tf.train.Example` with an encoded image each."""

import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.dataset import TFRecord
from tf_contrastive.datasets import (
    classes,
    decoding,
    record_files,
    split_spec,
    verified_files,
)
from tf_contrastive.datasets.source import (
    Access,
    Files,
    Info,
    Record,
    Source,
    in_files,
)

_ENCODED = ("image/encoded", "image_encoded", "image_raw", "encoded")
IMAGE_FEATURES = ("image", *_ENCODED)
LABEL_FEATURES = ("label", "image/class/label", "class/label", "image/label")


def _read(file: tf.Tensor) -> tf.data.Dataset:
    zipped = tf.strings.regex_full_match(file, record_files.ZIPPED)
    kind = tf.where(zipped, "GZIP", "")
    return tf.data.TFRecordDataset(file, compression_type=kind)


def _parser(
    name: str, paths: list[str], first_label: int
) -> tuple[Callable[[tf.Tensor], Record], bool]:
    """Returns (serialized -> record, whether the first record has a label)."""
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
    names = {"image": image} | ({"label": label} if label else {})

    def parse(serialized: tf.Tensor) -> Record:
        parsed = tf.io.parse_single_example(serialized, features)
        record = {key: parsed[name] for key, name in names.items()}
        if label:
            record["label"] -= first_label
        return record

    return parse, label is not None


def tfrecord(
    name: str, options: TFRecord, split: str, access: Access
) -> Source:
    """Opens `tfrecord:GLOB`: files of tf.train.Example, gzip by their ending.

    GLOB may be a folder of such files. Image and label are found by the names
    of their features; labels are integers of at least 0. `{split}` in GLOB
    means the split's name; without it all files are the split `train`.
    """
    reading = access.reading
    pattern = os.path.expanduser(options.path)
    matching = pattern.replace("{split}", split_spec.parse(split)[0])
    if matching == pattern:
        split_spec.only_train(name, split, "put {split} into the path for more")
    if tf.io.gfile.isdir(matching):
        matching = os.path.join(matching, "*")
    paths = sorted(tf.io.gfile.glob(matching))
    paths = [path for path in paths if not tf.io.gfile.isdir(path)]
    if not paths:
        raise errors.AbsentDataError(
            f"{name}: no file matches {matching}: use the path of TFRecord"
            " files, with or without wildcards"
        )
    counts = verified_files.count_records(paths, matching, access.verify_all)
    files = Files(paths, np.zeros_like(counts), counts, _read)
    first = reading.first_label or 0
    try:
        parse, labelled = _parser(name, paths, first)
        files = dataclasses.replace(
            files, read=lambda file: _read(file).map(parse)
        )
        found = verified_files.read_records(
            paths,
            files.read,
            reading.max_image_pixels,
            f"{matching} {first}",
            access.verify_all,
        )
    except (
        tf.errors.DataLossError,
        tf.errors.InvalidArgumentError,
        UnicodeDecodeError,  # TensorFlow's message quotes the record.
    ) as error:
        record = files.unreadable(lambda record: record)
        record = record or f"one of {len(paths)} files cannot be read"
        raise errors.UserError(
            f"{name}: {record}: it is damaged, or not a TFRecord of image and"
            " label; write it again"
        ) from error
    start, stop = split_spec.bounds(split, len(found.sizes))
    names = [f"record {index}" for index in range(start, stop)]
    taken = found.select(slice(start, stop))
    good, shape, bad = decoding.check(name, names, taken, reading)
    num_classes = None
    if labelled:
        labels = found.labels
        classes.check_smallest(name, int(labels.min()), reading)
        # Of the whole split: a slice may lack classes, where files are sorted.
        num_classes = int(labels.max()) + 1
    info = Info(
        name,
        split,
        len(good),
        num_classes,
        shape,
        (),
        bad,
        by_pillow=found.by_pillow,
        found=(("images", taken.counts()),),
    )
    decode = functools.partial(decoding.decode_record, decoder=found.decoder())
    source = in_files(files.select(start + good), decode, info)
    return dataclasses.replace(source, digests=found.digests[start + good])
