"""Packed images: decoded and resized once, then read as fast as small ones.

A folder has, for each split, TFRecord files of JPEGs and a manifest,
SPLIT.json, with their number, sizes and checksums, and the names of the
classes. The files can also be read as `tfrecord:`.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import errors, files, terminal
from tf_contrastive.config.dataset import Packed
from tf_contrastive.datasets import (
    decoding,
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

# Images of a file.
_PER_FILE = 1000
_QUALITY = 95
# What reading a damaged manifest raises.
_DAMAGED = (
    OSError,
    tf.errors.OpError,
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
)
_FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64, -1),
}


def _manifest(folder: str, split: str) -> str:
    return os.path.join(folder, f"{split}.json")


# ---- Writing -----------------------------------------------------------------


def pack(source: Source, folder: str, side: int) -> int:
    """Writes a split to a folder; returns the number of images.

    Images whose shorter side is longer than `side` are shrunk to it. A call
    that was interrupted is repeated: whole files are kept.

    Raises:
      UserError: for data that cannot be packed or read, or if the folder holds
        another packed split of the same name, or cannot be written.
    """
    info = source.info
    if info.multi_label or info.extra_channels:
        raise errors.UserError(
            f"{info.name} has several labels per image, or further channels:"
            " use a dataset of images with at most one label"
        )
    split = split_spec.parse(info.split)[0]
    about = {
        "dataset": info.name,
        "split": info.split,
        "side": side,
        "examples": info.num_examples,
        "num_classes": info.num_classes,
        "label_names": list(info.label_names),
    }
    path = _manifest(folder, split)
    packed_files = _begun(path, about)
    files.remove_leftovers(folder)
    for first in range(0, info.num_examples, _PER_FILE):
        rows = np.arange(first, min(first + _PER_FILE, info.num_examples))
        number = first // _PER_FILE
        if number < len(packed_files):
            continue
        name = f"{split}-{number:05}.tfrecord"
        written = _write(source.select(rows), side, f"{folder}/{name}")
        packed_files.append({"name": name, **written})
        files.write_json(path, about | {"files": packed_files})
        done = min(first + _PER_FILE, info.num_examples)
        terminal.info(f"packed {done:,} of {info.num_examples:,} images")
    return info.num_examples


def _begun(path: str, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the files that an interrupted call has written.

    Raises:
      UserError: if they are of other images.
    """
    if not tf.io.gfile.exists(path):
        return []
    before = _read_manifest(path)
    if changed := [key for key in about if before[key] != about[key]]:
        key = changed[0]
        raise errors.UserError(
            f"{path} is of {key}={before[key]}, not {about[key]}: choose"
            " another folder, or delete it"
        )
    return before["files"]


def _write(source: Source, side: int, path: str) -> dict[str, Any]:
    """Writes a file; returns the number of its images and its checksum."""
    count = 0
    with files.replacing(path) as unfinished:
        with tf.io.TFRecordWriter(unfinished) as writer:
            for example in _serialized(source, side):
                writer.write(example)
                count += 1
        content = files.read(unfinished)
    return {
        "images": count,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _serialized(source: Source, side: int) -> Iterator[bytes]:
    """Yields serialized `tf.train.Example`s, in order.

    Raises:
      UserError: if an image cannot be read any more.
    """
    examples = _encoded(source, side).as_numpy_iterator()
    try:
        for image, label in examples:
            features = {
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[image])
                )
            }
            if label >= 0:
                features["label"] = tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[label])
                )
            example = tf.train.Example(
                features=tf.train.Features(feature=features)
            )
            yield example.SerializeToString()
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{source.info.name}: an image cannot be read any more"
            f" ({errors.first_line(error)}): restore or remove it, and repeat"
            " the command"
        ) from error


def _encoded(source: Source, side: int) -> tf.data.Dataset:
    """Returns (JPEG string [], label int64 [], -1 without one), in order."""

    @tf.autograph.experimental.do_not_convert
    def encode(record: Record) -> tuple[tf.Tensor, tf.Tensor]:
        if "size" in record:
            times = tf.reduce_min(record["size"]) // side
            halvings = tf.reduce_sum(tf.cast(times >= [2, 4, 8], tf.int32))
            record = record | {"halvings": halvings}
        example = source.decode(record)
        image = _shrunk(example["image"], side)
        label = example.get("label", tf.constant(-1, tf.int64))
        return tf.io.encode_jpeg(image, quality=_QUALITY), label

    return source.records.map(encode, tf.data.AUTOTUNE, deterministic=True)


def _shrunk(image: tf.Tensor, side: int) -> tf.Tensor:
    """Resizes uint8 [h, w, 3] to a shorter side of at most `side`."""
    size = tf.shape(image)[:2]
    shorter = tf.reduce_min(size)
    scaled = tf.cast(tf.round(size * side / shorter), tf.int32)

    def shrink() -> tf.Tensor:
        pixels = tf.image.resize(image, scaled, "bicubic", antialias=True)
        return tf.saturate_cast(tf.round(pixels), tf.uint8)

    return tf.cond(shorter > side, shrink, lambda: image)


# ---- Reading -----------------------------------------------------------------


def packed(name: str, options: Packed, split: str, access: Access) -> Source:
    """Opens `packed:FOLDER`, which `pack` has written.

    Nothing is decoded to open it: only the lengths of the files are compared
    with the manifest.
    """
    del access
    folder = os.path.expanduser(options.path)
    base = split_spec.parse(split)[0]
    manifest = _manifest(folder, base)
    if not tf.io.gfile.exists(manifest):
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: there is no {manifest}: write it by"
            f" the command datasets with {errors.arg('pack')}"
        )
    about = _read_manifest(manifest)
    paths = [os.path.join(folder, file["name"]) for file in about["files"]]
    counts = np.array([file["images"] for file in about["files"]], np.int64)
    if counts.sum() != about["examples"]:
        raise errors.UserError(
            f"{manifest}: {counts.sum():,} of {about['examples']:,} images are"
            " packed: repeat the command that packs them"
        )
    for file, each in zip(about["files"], paths, strict=True):
        _check_length(each, file["bytes"])
    for each, expected, found in zip(
        paths, counts, verified_files.count_records(paths, folder), strict=True
    ):
        if found != expected:
            raise errors.UserError(
                f"{each} has {found:,} of {expected:,} images: copy it again,"
                " or delete the folder and pack the images again"
            )
    start, stop = split_spec.bounds(split, about["examples"])
    labelled = about["num_classes"] is not None
    records = Files(
        paths, np.zeros_like(counts), counts, functools.partial(_read, labelled)
    )
    info = Info(
        name,
        split,
        stop - start,
        about["num_classes"],
        None,
        tuple(about["label_names"]),
    )
    return in_files(
        records.select(np.arange(start, stop)), decoding.decode_record, info
    )


def _read(labelled: bool, file: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a file."""
    names = ("image", "label") if labelled else ("image",)
    features = {name: _FEATURES[name] for name in names}
    return tf.data.TFRecordDataset(file).map(
        lambda serialized: tf.io.parse_single_example(serialized, features)
    )


def _check_length(path: str, expected: int) -> None:
    """Raises `UserError` for a file that is absent, or was not copied whole."""
    try:
        found = tf.io.gfile.stat(path).length
    except tf.errors.OpError:
        found = 0
    if found != expected:
        raise errors.UserError(
            f"{path} has {found:,} of {expected:,} bytes: copy it again, or"
            " delete the folder and pack the images again"
        )


def _read_manifest(path: str) -> dict[str, Any]:
    """Reads a manifest.

    Raises:
      UserError: if it is damaged.
    """
    try:
        content = json.loads(files.read(path))
        shards = [
            {
                "name": str(file["name"]),
                "images": int(file["images"]),
                "bytes": int(file["bytes"]),
                "sha256": str(file["sha256"]),
            }
            for file in content["files"]
        ]
        classes = content["num_classes"]
        return {
            **{key: content[key] for key in ("dataset", "split")},
            "side": int(content["side"]),
            "examples": int(content["examples"]),
            "num_classes": None if classes is None else int(classes),
            "label_names": [str(name) for name in content["label_names"]],
            "files": shards,
        }
    except _DAMAGED as error:
        raise errors.UserError(
            f"{path} is damaged, or not the manifest of packed images"
            f" ({errors.first_line(error)}): pack the images again"
        ) from error
