"""Image files: a folder with or without classes, or a list in a CSV file.

A record is a path and its label, if any; files are read when they are decoded,
so that any number of them is shuffled as a whole.
"""

import csv
import io
import os
import re

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.datasets import decoding, split_spec
from tf_contrastive.datasets.source import Info, Record, Source, in_memory

# Names of folders directly under the root that are its splits.
SPLIT_FOLDERS = ("train", "test", "validation", "val")
_HEADERS = ("path", "file", "filename", "file_name", "filepath", "image")


def _contents(record: Record) -> tf.Tensor:
    return tf.io.read_file(record["path"])


def _decode(record: Record) -> Record:
    example = {"image": decoding.decode(_contents(record))}
    return example | {k: record[k] for k in ("label",) if k in record}


def _source(
    name: str,
    split: str,
    max_bad_images: int,
    paths: list[str],
    labels: list[int] | None = None,
    label_names: tuple[str, ...] = (),
    num_classes: int | None = None,
) -> Source:
    """Slices the files, leaves out unreadable ones, makes the source."""
    start, stop = split_spec.bounds(split, len(paths))
    rows = {"path": np.array(paths[start:stop], object)}
    if labels is not None:
        rows["label"] = np.array(labels[start:stop], np.int64)
    records = tf.data.Dataset.from_tensor_slices(rows)
    sizes, _ = decoding.read_sizes(records, _contents)
    good, shape, bad = decoding.check(
        name, paths[start:stop], sizes, max_bad_images
    )
    rows = {key: row[good] for key, row in rows.items()}
    num_classes = num_classes or len(label_names) or None
    info = Info(name, split, len(good), num_classes, shape, label_names, bad)
    return in_memory(rows, _decode, info)


# ---- Folders -----------------------------------------------------------------


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _is_image(name: str) -> bool:
    return name.lower().endswith(decoding.EXTENSIONS)


def _folders(path: str) -> list[str]:
    """Returns the names of the folders directly in `path`, sorted."""
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(path))
    return sorted(
        name
        for name in names
        if not _is_hidden(name) and tf.io.gfile.isdir(os.path.join(path, name))
    )


def _split_folders(name: str, path: str, split: str) -> tuple[str, list[str]]:
    """Returns the folder of the split, and those of all splits."""
    base = split_spec.parse(split)[0]
    folders = _folders(path)
    known = [folder for folder in folders if folder in SPLIT_FOLDERS]
    if base in folders:
        every = [os.path.join(path, name) for name in {*known, base}]
        return os.path.join(path, base), every
    if known:
        raise errors.UserError(
            f"{name} has no split {base!r}: its folders are {', '.join(known)}"
        )
    split_spec.only_train(
        name,
        split,
        f"its images are not in folders such as {path}/{base}; make them, or"
        " use slices of train, such as train[:90%] and train[90%:]",
    )
    return path, [path]


def folder(name: str, path: str, split: str, max_bad_images: int) -> Source:
    """Opens `folder:PATH`.

    The folders in PATH, sorted by name, are the classes; images count at any
    depth. A PATH with images directly in it, or with a single folder, has no
    labels. PATH/train, PATH/test, ... are the splits if they exist.
    """
    path = os.path.expanduser(path).rstrip("/") or "/"
    if not tf.io.gfile.isdir(path):
        raise errors.AbsentDataError(
            f"{name}: there is no folder {path}: use a folder of images"
        )
    root, all_roots = _split_folders(name, path, split)
    paths = sorted(
        os.path.join(parent, file)
        for parent, _, files in tf.io.gfile.walk(root)
        for file in files
        if _is_image(file)
        and not any(map(_is_hidden, [file, *parent[len(root) :].split("/")]))
    )
    if not paths:
        raise errors.UserError(
            f"{name}: no images under {root}: use a folder of"
            f" {' '.join(decoding.EXTENSIONS)} files"
        )
    labels, names = None, set()
    if not any(map(_is_image, tf.io.gfile.listdir(root))):
        # Of all splits, so that a class that one of them lacks shifts no label.
        names = {label for each in all_roots for label in _folders(each)}
    classes = tuple(sorted(names)) if len(names) > 1 else ()
    if classes:
        number = {label: i for i, label in enumerate(classes)}
        of = (path[len(root) :].strip("/").split("/")[0] for path in paths)
        labels = [number[label] for label in of]
    return _source(name, split, max_bad_images, paths, labels, classes)


# ---- CSV ---------------------------------------------------------------------


def _rows(path: str) -> list[list[str]]:
    """Returns the lines of a CSV file as [path, label] or [path]."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read().decode()  # First: Pythons differ in the rest.
        reader = csv.reader(io.StringIO(text, newline=""))
        lines = [row for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise errors.UserError(
            f"{path} is not a CSV file ({error}): write lines of path,label, in"
            " UTF-8"
        ) from error
    if lines and lines[0][0].strip().lower() in _HEADERS:
        lines = lines[1:]
    rows = [[cell.strip() for cell in row[:2]] for row in lines]
    rows = [row if len(row) > 1 and row[1] else row[:1] for row in rows]
    if len({len(row) for row in rows}) > 1:
        bare = next(row[0] for row in rows if len(row) == 1)
        raise errors.UserError(
            f"{path}: {bare} has no label and others have: label every line, or"
            " none"
        )
    if not rows:
        raise errors.UserError(f"{path} is empty: write lines of path,label")
    return rows


def csv_file(name: str, path: str, split: str, max_bad_images: int) -> Source:
    """Opens `csv:PATH`: lines of path,label, or of path alone.

    A header is skipped. Relative paths start at the CSV file. Labels that are
    all integers of at least 0 are used unchanged; others are numbered in sorted
    order. `{split}` in PATH means the split's name; classes are then those of
    all splits' files. Without it the file is the split `train`.
    """
    path = os.path.expanduser(path)
    file = path.replace("{split}", split_spec.parse(split)[0])
    if file == path:
        split_spec.only_train(name, split, "put {split} into the path for more")
    if not tf.io.gfile.exists(file) or tf.io.gfile.isdir(file):
        raise errors.AbsentDataError(
            f"{name}: there is no file {file}: use a CSV file of path,label"
        )
    rows = _rows(file)
    folder = os.path.dirname(file)
    paths = [p if "://" in p else os.path.join(folder, p) for p, *_ in rows]
    if len(rows[0]) == 1:
        return _source(name, split, max_bad_images, paths)
    literal = re.sub(r"([*?\[\]\\])", r"\\\1", path)
    files = tf.io.gfile.glob(literal.replace("{split}", "*"))
    classes = {row[-1] for f in files or [file] for row in _rows(f)}
    if all(label.isascii() and label.isdigit() for label in classes):
        labels = [int(row[1]) for row in rows]
        count = max(map(int, classes)) + 1
        return _source(name, split, max_bad_images, paths, labels, (), count)
    names = tuple(sorted(classes))
    number = {label: i for i, label in enumerate(names)}
    labels = [number[row[1]] for row in rows]
    return _source(name, split, max_bad_images, paths, labels, names)
