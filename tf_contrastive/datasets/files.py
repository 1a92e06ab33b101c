"""Image files: a folder of classes, a folder without, or a list in a CSV file.

A record is a path and, where there is one, its label; files are read when they
are decoded, so that any number of them is shuffled as a whole.
"""

import csv
import io
import os

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.datasets import images, splits
from tf_contrastive.datasets.source import Info, Record, Source, in_memory

# Folders of these names directly under the root are its splits.
SPLIT_FOLDERS = ("train", "test", "validation", "val")
_HEADERS = ("path", "file", "filename", "file_name", "filepath", "image")


def _contents(record: Record) -> tf.Tensor:
    return tf.io.read_file(record["path"])


def _decode(record: Record) -> Record:
    example = {"image": images.decode(_contents(record))}
    return example | {k: record[k] for k in ("label",) if k in record}


def _source(
    name: str,
    split: str,
    paths: list[str],
    labels: list[int] | None,
    label_names: tuple[str, ...],
    num_classes: int | None,
    max_bad_images: int,
) -> Source:
    """Slices the files, leaves out what cannot be read, makes the source."""
    start, stop = splits.bounds(split, len(paths))
    rows = {"path": np.array(paths[start:stop], object)}
    if labels is not None:
        rows["label"] = np.array(labels[start:stop], np.int64)
    records = tf.data.Dataset.from_tensor_slices(rows)
    checked = images.check(records, _contents, expected=stop - start)
    bad = [str(path) for path in rows["path"][checked.bad]]
    bad = images.check_bad(name, bad, stop - start, max_bad_images)
    rows = {key: row[checked.good] for key, row in rows.items()}
    info = Info(
        name,
        split,
        len(checked.good),
        num_classes,
        checked.image_shape,
        label_names,
        bad,
    )
    return in_memory(rows, _decode, info)


# ---- Folders ---


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _folders(path: str) -> list[str]:
    """Returns the names of the folders directly in `path`, sorted."""
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(path))
    return sorted(
        name
        for name in names
        if not _is_hidden(name) and tf.io.gfile.isdir(os.path.join(path, name))
    )


def _images_under(path: str) -> list[str]:
    """Returns the image files under `path`, recursively, sorted."""
    found = []
    for folder, _, files in tf.io.gfile.walk(path):
        below = folder[len(path) :].strip("/").split("/")
        if any(_is_hidden(part) for part in below):
            continue
        found += [
            os.path.join(folder, file)
            for file in files
            if file.lower().endswith(images.EXTENSIONS) and not _is_hidden(file)
        ]
    return sorted(found)


def _split_folders(name: str, path: str, split: str) -> tuple[str, list[str]]:
    """Returns the folder of the split, and those of all splits."""
    base = splits.parse(split)[0]
    found = _folders(path)
    known = [folder for folder in found if folder in SPLIT_FOLDERS]
    if base in found:
        every = sorted({*known, base})
        return os.path.join(path, base), [os.path.join(path, k) for k in every]
    if known:
        raise errors.UserError(
            f"{name} has no split {base!r}: its folders are {', '.join(known)}"
        )
    splits.only_train(
        name,
        split,
        f"its images are not in folders such as {path}/{base}; make them, or"
        " name a cut of train, such as train[:90%] and train[90%:]",
    )
    return path, [path]


def _class_names(folder: str, all_folders: list[str]) -> tuple[str, ...]:
    """Returns the classes of all splits, or () for a tree without labels.

    All splits count, so that a class that one of them lacks shifts no label.
    """
    if any(
        file.lower().endswith(images.EXTENSIONS)
        for file in tf.io.gfile.listdir(folder)
    ):
        return ()
    names = sorted({name for f in all_folders for name in _folders(f)})
    return tuple(names) if len(names) > 1 else ()


def folder(name: str, path: str, split: str, max_bad_images: int) -> Source:
    """Opens `folder:PATH`.

    The folders in PATH, sorted by name, are the classes, and images count at
    any depth below. Images directly in PATH, or a single folder, make a tree
    without labels. Where PATH/train, PATH/test, ... exist, they are the splits.

    Raises:
      UserError: if there is no such folder or split, no image, or more than
        `max_bad_images` cannot be read.
    """
    path = os.path.expanduser(path).rstrip("/") or "/"
    if not tf.io.gfile.isdir(path):
        raise errors.AbsentDataError(
            f"{name}: there is no folder {path}: give a folder of images"
        )
    root, all_roots = _split_folders(name, path, split)
    paths = _images_under(root)
    if not paths:
        raise errors.UserError(
            f"{name}: no images under {root}: give a folder of"
            f" {' '.join(images.EXTENSIONS)} files"
        )
    classes = _class_names(root, all_roots)
    if not classes:
        return _source(name, split, paths, None, (), None, max_bad_images)
    number = {label: i for i, label in enumerate(classes)}
    labels = [number[p[len(root) :].strip("/").split("/")[0]] for p in paths]
    return _source(
        name, split, paths, labels, classes, len(classes), max_bad_images
    )


# ---- CSV ---


def _rows(path: str) -> list[list[str]]:
    """Returns the lines of a CSV file as [path, label] or [path]."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read().decode()  # First: Pythons differ in the rest.
        read = csv.reader(io.StringIO(text, newline=""))
        lines = [row for row in read if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise errors.UserError(
            f"{path} is no CSV file ({error}): give lines of path,label, in"
            " UTF-8"
        ) from error
    if lines and lines[0][0].strip().lower() in _HEADERS:
        lines = lines[1:]
    rows = [[cell.strip() for cell in row[:2]] for row in lines]
    rows = [row if len(row) > 1 and row[1] else row[:1] for row in rows]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        bare = next(row[0] for row in rows if len(row) == 1)
        raise errors.UserError(
            f"{path}: {bare} has no label and others have: give every line a"
            " label, or none"
        )
    if not rows:
        raise errors.UserError(f"{path} is empty: give lines of path,label")
    return rows


def _resolved(path: str, folder: str) -> str:
    return path if "://" in path else os.path.join(folder, path)


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit()


def csv_file(name: str, path: str, split: str, max_bad_images: int) -> Source:
    """Opens `csv:PATH`: lines of path,label, or of path alone.

    A header is skipped. Relative paths start at the CSV file. Labels that are
    all integers from 0 on are taken as they are; others are numbered in sorted
    order. `{split}` in PATH stands for the split's name; classes are then those
    of all splits' files. Without it the file is the split `train`.

    Raises:
      UserError: if there is no such file or split, a line lacks its label, or
        more than `max_bad_images` cannot be read.
    """
    path = os.path.expanduser(path)
    this = path.replace("{split}", splits.parse(split)[0])
    if this == path:
        splits.only_train(name, split, "put {split} into the path for more")
    if not tf.io.gfile.exists(this) or tf.io.gfile.isdir(this):
        raise errors.AbsentDataError(
            f"{name}: there is no file {this}: give a CSV file of path,label"
        )
    rows = _rows(this)
    paths = [_resolved(row[0], os.path.dirname(this)) for row in rows]
    if len(rows[0]) == 1:
        return _source(name, split, paths, None, (), None, max_bad_images)
    files = tf.io.gfile.glob(path.replace("{split}", "*"))
    classes = {row[-1] for f in files or [this] for row in _rows(f)}
    if all(_is_number(label) for label in classes):
        names, labels = (), [int(row[1]) for row in rows]
        num_classes = max(map(int, classes)) + 1
    else:
        names = tuple(sorted(classes))
        number = {label: i for i, label in enumerate(names)}
        labels = [number[row[1]] for row in rows]
        num_classes = len(names)
    return _source(
        name, split, paths, labels, names, num_classes, max_bad_images
    )
