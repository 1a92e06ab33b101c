"""Packed images: decoded and resized once, then read as fast as small ones.

A folder has, for each split, a manifest, SPLIT.json, with the number of images
and the names of the classes, and TFRecord files of JPEGs and PNGs, which can
also be read as `tfrecord:`.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.dataset import Packed
from tf_contrastive.datasets import decoding, split_spec, tfrecord
from tf_contrastive.datasets.source import (
    Access,
    Files,
    Info,
    Record,
    Source,
    in_files,
)

_QUALITY = 95
# Of a manifest. A change by which older packs would be misread increases it.
_FORMAT = 1
_FORM = {
    "format": int,
    "dataset": str,
    "split": str,
    "side": int,
    "file_images": int,
    "examples": int,
    "num_classes": (int, type(None)),
    "label_names": [str],
    "unlabelled": bool,
}


def _manifest(folder: str, split: str) -> str:
    return os.path.join(folder, f"{split}.json")


def _files(folder: str, split: str, about: dict[str, Any]) -> dict[str, int]:
    """Returns the path of each file of a manifest, and its number of images."""
    examples, size = about["examples"], max(about["file_images"], 1)
    return {
        os.path.join(folder, f"{split}-{start // size:05}.tfrecord"): min(
            size, examples - start
        )
        for start in range(0, examples, size)
    }


# ---- Writing -----------------------------------------------------------------


def pack(
    source: Source, folder: str, side: int, file_images: int = 1000
) -> None:
    """Writes a split to a folder.

    Images whose shorter side is longer than `side` are shrunk to it. JPEGs stay
    JPEGs, of quality 95; all others become PNGs, without loss. A file has
    `file_images` images. A call that was interrupted is repeated: whole files
    are kept.

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
        "format": _FORMAT,
        "dataset": info.name,
        "split": info.split,
        "side": side,
        "file_images": file_images,
        "examples": info.num_examples,
        "num_classes": info.num_classes,
        "label_names": list(info.label_names),
        "unlabelled": info.unlabelled,
    }
    path = _manifest(folder, split)
    before = files.read_json(path, about, _FORM)
    for key, value in about.items():
        if before.get(key) != value:
            raise errors.UserError(
                f"{path} is of {key}={before.get(key)}, not {value}: choose"
                " another folder, or delete it"
            )
    exists, parts = tf.io.gfile.exists, _files(folder, split, about)
    if not exists(path):
        # Files of another call, which a manifest would take for its own.
        for part in filter(exists, parts):
            tf.io.gfile.remove(part)
        files.write_json(path, about)
    left = [*itertools.dropwhile(lambda x: exists(x[0]), parts.items())]
    done = info.num_examples - sum(images for _, images in left)
    # One pipeline for all files: TensorFlow takes 0.8 s to optimize each.
    examples = _serialized(source, done, side)
    for part, images in left:
        with (
            files.replacing(part) as unfinished,
            tf.io.TFRecordWriter(unfinished) as writer,
        ):
            for example in itertools.islice(examples, images):
                writer.write(example)
        done += images
        terminal.info(f"packed {done:,} of {info.num_examples:,} images")


def _serialized(source: Source, start: int, side: int) -> Iterator[bytes]:
    """Yields serialized `tf.train.Example`s, in order.

    Raises:
      UserError: if an image cannot be read any more.
    """

    @tf.autograph.experimental.do_not_convert
    def encode(record: Record) -> Record:
        if "size" in record:
            times = tf.reduce_min(record["size"]) // side
            halvings = tf.reduce_sum(tf.cast(times >= [2, 4, 8], tf.int32))
            record = record | {"halvings": halvings}
        example = source.decode(record)
        return example | {"image": _encoded(record, example["image"], side)}

    if start == source.info.num_examples:
        return
    rest = source.select(np.arange(start, source.info.num_examples))
    rows = rest.records.map(encode, tf.data.AUTOTUNE, deterministic=True)
    try:
        for row in rows.as_numpy_iterator():
            yield _example(row["image"], row.get("label"))
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{source.info.name}: an image cannot be read any more"
            f" ({errors.first_line(error)}): restore or remove it, and repeat"
            " the command"
        ) from error


def _example(image: bytes, label: int | None) -> bytes:
    """Serializes a `tf.train.Example`; a label of None is left out."""
    pixels = tf.train.BytesList(value=[image])
    features = {"image": tf.train.Feature(bytes_list=pixels)}
    if label is not None:
        number = tf.train.Int64List(value=[label])
        features["label"] = tf.train.Feature(int64_list=number)
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def _encoded(record: Record, image: tf.Tensor, side: int) -> tf.Tensor:
    """Returns the packed file of `image`, uint8 [h, w, 3]; string [].

    The record has the `path` of its file, or is `image`: bytes or pixels.
    """
    contents = tf.constant(b"")
    if "path" in record:
        contents = tf.io.read_file(record["path"])
    elif record["image"].dtype == tf.string:
        contents = record["image"]
    small = _shrunk(image, side)
    return tf.cond(
        decoding.starts(contents, decoding.JPEG_START),
        lambda: tf.io.encode_jpeg(small, quality=_QUALITY),
        lambda: tf.io.encode_png(small),
    )


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

    Nothing is decoded to open it: only the lengths of the records are read.
    """
    folder = os.path.expanduser(options.path)
    base = split_spec.parse(split)[0]
    manifest = _manifest(folder, base)
    if not tf.io.gfile.exists(manifest):
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: there is no {manifest}: write it by"
            f" the command datasets with {errors.arg('pack')}"
        )
    about = files.read_json(manifest, form=_FORM)
    if about["format"] != _FORMAT:
        raise errors.UserError(
            f"{manifest} has format {about['format']}, and this version reads"
            f" {_FORMAT}: pack the images again"
        )
    parts = _files(folder, base, about)
    absent = [path for path in parts if not tf.io.gfile.exists(path)]
    if absent:
        raise errors.UserError(
            f"{manifest}: {len(absent):,} of {len(parts):,} files are not"
            f" packed, such as {absent[0]}: repeat the command that packs them"
        )
    paths, counts = list(parts), np.array([*parts.values()], np.int64)
    tfrecord.check_counts(
        paths, counts, folder, "delete the folder and pack the images again"
    )
    label = None if about["num_classes"] is None else "label"
    parse = tfrecord.parser("image", label)
    records = Files(
        paths,
        np.zeros_like(counts),
        counts,
        lambda file: tf.data.TFRecordDataset(file).map(parse),
    )
    start, stop = split_spec.bounds(split, about["examples"])
    info = Info(
        name,
        split,
        stop - start,
        about["num_classes"],
        None,
        tuple(about["label_names"]),
        unlabelled=about["unlabelled"],
    )
    return in_files(
        records.select(np.arange(start, stop)), decoding.decode_record, info
    )
