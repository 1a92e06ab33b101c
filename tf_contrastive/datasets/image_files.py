"""Image files: a folder with or without classes, or a list in a CSV file.

A record is a path and its label, if any; files are read when they are decoded,
so that any number of them is shuffled as a whole.
"""

import csv
import dataclasses
import functools
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import CSV, Folder
from tf_contrastive.datasets import (
    decoding,
    split_spec,
    verified_files,
)
from tf_contrastive.datasets.source import (
    Access,
    Info,
    Record,
    Source,
    in_memory,
)

# Names of folders directly under the root that are its splits.
SPLIT_FOLDERS = ("train", "test", "validation", "val")
# Of a label: more do not fit into any integer of TensorFlow.
_MAX_DIGITS = 18
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")
# Names of columns in the header of a CSV file, such as image_path, img, label.
_PATH_COLUMN = re.compile(r"path|(file|image|img)(_?(path|file|name))?")
_LABEL_COLUMN = re.compile(r"labels?|class|(label|class)_name|category|target")
_DELIMITERS = ",;\t"


def _decode(record: Record, decoder: Callable[..., tf.Tensor]) -> Record:
    contents = tf.io.read_file(record["path"])
    image = decoder(contents, halvings=record.get("halvings"))
    example = {"image": image}
    return example | {k: record[k] for k in ("label",) if k in record}


class _Files(NamedTuple):
    """The image files of a folder or of a list.

    Attributes:
      place: the folder, or the list.
      paths: of the files.
      names: of the files, which do not depend on where the place is.
      order: of slices, int [n].
      labels: int [n], or None.
      label_names: a name per class, or ().
      num_classes: number of classes, if they have no names.
    """

    place: str
    paths: list[str]
    names: list[str]
    order: np.ndarray
    labels: list[int] | None = None
    label_names: tuple[str, ...] = ()
    num_classes: int | None = None


def _source(
    name: str, split: str, access: Access, files: _Files, held_out: bool
) -> Source:
    """Takes the files of a split, leaves out unreadable ones.

    With `held_out` the files are those of train and of test.
    """
    reading = access.reading
    rows = {"path": np.array(files.paths, object)}
    if files.labels is not None:
        rows["label"] = np.array(files.labels, np.int64)
    order = files.order
    upright = reading.exif == "apply"

    def verified(paths: list[str]) -> decoding.Found:
        return verified_files.read_sizes(
            paths,
            reading.max_image_pixels,
            upright,
            files.place,
            access.verify_all,
        )

    everything = None
    if held_out:
        test = split_spec.held_out(
            split_spec.random_order(files.names),
            rows.get("label"),
            reading.test_fraction,
        )
        everything = verified(files.paths)
        test = split_spec.without_copies(test, everything.digests)
        order = order[test[order] == (split_spec.parse(split)[0] == "test")]
    start, stop = split_spec.bounds(split, len(order))
    taken = np.sort(order[start:stop])
    rows = {key: row[taken] for key, row in rows.items()}
    paths = rows["path"].tolist()
    found = everything.select(taken) if everything else verified(paths)
    rows["size"] = found.sizes
    good, shape, bad = decoding.check(name, paths, found, reading)
    rows = {key: row[good] for key, row in rows.items()}
    info = Info(
        name,
        split,
        len(good),
        files.num_classes or len(files.label_names) or None,
        shape,
        files.label_names,
        bad,
        by_pillow=found.by_pillow,
        found=(("files", found.counts()),),
    )
    decode = functools.partial(_decode, decoder=found.decoder(upright))
    source = in_memory(rows, decode, info)
    return dataclasses.replace(source, digests=found.digests[good])


# ---- Folders -----------------------------------------------------------------


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _is_image(name: str) -> bool:
    return name.lower().endswith(decoding.extensions())


def _names(path: str) -> list[str]:
    """Returns the names in a folder that are not hidden, sorted."""
    # Object stores end folders by a slash, of which a name may consist.
    names = {name.rstrip("/") for name in tf.io.gfile.listdir(path)} - {""}
    return sorted(name for name in names if not _is_hidden(name))


def _folders(path: str) -> list[str]:
    """Returns the names of the folders directly in `path`, sorted."""
    names = _names(path)
    return [n for n in names if tf.io.gfile.isdir(os.path.join(path, n))]


def _walk(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yields folders and their files.

    No folder comes twice, which links lead to. Those without permission, such
    as the `lost+found` of a disk, are left out.
    """
    here, seen, waiting = os.path.realpath(root), set(), [root]
    while waiting:
        parent = waiting.pop()
        if parent != root and os.path.islink(parent):
            real = os.path.realpath(parent)
            above = os.path.commonpath([here, real]) in (here, real)
            if above or real in seen:
                continue
            seen.add(real)
        try:
            names = _names(parent)
        except tf.errors.PermissionDeniedError:
            terminal.warning(f"{parent} is left out: no permission to read it")
            continue
        paths = {name: os.path.join(parent, name) for name in names}
        folders = {n for n in names if tf.io.gfile.isdir(paths[n])}
        waiting += [paths[n] for n in reversed(names) if n in folders]
        yield parent, [name for name in names if name not in folders]


def _split_folders(
    name: str, path: str, split: str, reading: Reading
) -> tuple[str, list[str], bool]:
    """Returns the folder of the split, and those of all splits.

    The last value is whether the folder is that of both train and test.
    """
    base = split_spec.parse(split)[0]
    folders = _folders(path)
    known = [folder for folder in folders if folder in SPLIT_FOLDERS]
    if known and (base in SPLIT_FOLDERS or base not in folders):
        others = [folder for folder in folders if folder not in known]
        _check_splits(name, path, known, others)
    holds_out = _holds_out(split, reading)
    if holds_out and known == ["train"]:
        root = os.path.join(path, "train")
        return root, [root], True
    if base in folders:
        if base in known:
            split_spec.refuse_fraction(
                name, reading, f"its splits are the folders {', '.join(known)}"
            )
        every = [os.path.join(path, name) for name in {*known, base}]
        return os.path.join(path, base), every, False
    if known:
        hint = f", or set {errors.arg('test_fraction', '0.2')}" * (
            known == ["train"]
        )
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: its folders are"
            f" {', '.join(known)}: make one of that name{hint}"
        )
    if not holds_out:
        split_spec.only_train(
            name,
            split,
            f"its images are not in folders such as {path}/{base}; make them,"
            f" or set {errors.arg('test_fraction', '0.2')}",
        )
    return path, [path], holds_out


def _check_splits(
    name: str, path: str, known: list[str], others: list[str]
) -> None:
    """Raises `UserError` if folders may be splits, or classes."""
    others = [o for o in others if _has_image(os.path.join(path, o))]
    if others:
        beside = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
        raise errors.UserError(
            f"{name}: folders {', '.join(known)} beside folders of images"
            f" {beside}: if all are classes, rename {known[0]}, such as to"
            f" {known[0]}_; if {', '.join(known)} are splits, move the others"
            f" out of {path}"
        )


def _holds_out(split: str, reading: Reading) -> bool:
    """Whether a split is made of data that have only train."""
    is_made = split_spec.parse(split)[0] in ("train", "test")
    return reading.test_fraction > 0 and is_made


def _tree(name: str, path: str, root: str, roots: list[str]) -> _Files:
    """Lists the images under `root`; `roots` are the folders of all splits."""
    files = [
        os.path.join(parent, file)
        for parent, files in _walk(root)
        for file in files
    ]
    paths = sorted(filter(_is_image, files))
    others = Counter(
        os.path.splitext(file)[1].lower() or "no extension"
        for file in files
        if not _is_image(file)
    )
    if others and paths:
        counts = ", ".join(f"{n:,} {kind}" for kind, n in others.most_common(5))
        heic = "; HEIC: pip install pillow-heif" * (".heic" in others)
        terminal.info(f"{name}: files that are no images: {counts}{heic}")
    if not paths:
        raise errors.UserError(
            f"{name}: no images under {root}: use a folder of"
            f" {' '.join(decoding.extensions())} files"
        )
    names = [path[len(root) :].strip("/") for path in paths]
    found = _Files(path, paths, names, split_spec.random_order(names))
    if any(map(_is_image, tf.io.gfile.listdir(root))):
        return found
    of = [name.split("/")[0] for name in names]
    # Of all splits, so that a class that one of them lacks shifts no label.
    known = set(of) | {
        label
        for each in roots
        if each != root  # Walked above.
        for label in _folders(each)
        if label not in of and _has_image(os.path.join(each, label))
    }
    if len(known) < 2:
        return found
    classes = tuple(sorted(known))
    number = {label: i for i, label in enumerate(classes)}
    return found._replace(
        labels=[number[label] for label in of], label_names=classes
    )


def _has_image(folder: str) -> bool:
    return any(map(_is_image, itertools.chain(*(f for _, f in _walk(folder)))))


def folder(name: str, options: Folder, split: str, access: Access) -> Source:
    """Opens `folder:PATH`.

    The folders in PATH that have images, sorted by name, are the classes;
    images count at any depth. A PATH with images directly in it, or with a
    single folder, has no labels. PATH/train, PATH/test, ... are the splits if
    they exist. Without others, `reading.test_fraction` of PATH, or PATH/train,
    is the split test. A slice is a random sample, always the same.
    """
    reading = access.reading
    path = os.path.expanduser(options.path).rstrip("/") or "/"
    if not tf.io.gfile.isdir(path):
        kind = "a file" if tf.io.gfile.exists(path) else "absent"
        raise errors.AbsentDataError(
            f"{name}: {path} is {kind}: use a folder of images"
        )
    try:
        root, roots, held_out = _split_folders(name, path, split, reading)
        files = _tree(name, path, root, roots)
    except UnicodeDecodeError as error:
        raise errors.UserError(
            f"{name}: the name of a file or folder is not UTF-8"
            f" ({error.object!r}): rename it"
        ) from error
    return _source(name, split, access, files, held_out)


# ---- CSV ---------------------------------------------------------------------


def _rows(path: str, reading: Reading) -> list[list[str]]:
    """Returns the lines of a CSV file as [path, label] or [path]."""
    try:
        # First: Pythons differ in the rest. Spreadsheets write a mark before
        # the text, which "utf-8-sig" removes.
        content = files.read(path)
        text = content.decode("utf-8-sig")
        first = text.lstrip().partition("\n")[0]
        delimiter = max(_DELIMITERS, key=first.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        lines = [[cell.strip() for cell in row] for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise errors.UserError(
            f"{path} is not a CSV file ({error}): write lines of path,label, in"
            " UTF-8"
        ) from error
    header, lines = _header(lines, reading)
    if not lines:
        raise errors.UserError(f"{path} is empty: write lines of path,label")
    columns = _columns(path, header, lines[0], reading)
    rows = [
        [row[c] for c in columns if c < len(row) and row[c]] for row in lines
    ]
    if len({len(row) for row in rows}) > 1:
        bare = next(row[0] if row else "a line" for row in rows if len(row) < 2)
        raise errors.UserError(
            f"{path}: {bare} has no label and others have: label every line, or"
            " none"
        )
    return rows


def _header(
    lines: list[list[str]], reading: Reading
) -> tuple[list[str], list[list[str]]]:
    """Splits the lines of a CSV file into its header, if any, and the rest."""
    if not lines:
        return [], []
    names = [cell.lower() for cell in lines[0]]
    chosen = reading.csv_path_column.lower()
    is_named = any(map(_PATH_COLUMN.fullmatch, names))
    is_named |= chosen != "" and chosen in names
    are_images = [any(map(_is_image, row)) for row in lines[:2]]
    # Of other names: a line without an image before one that has one.
    if is_named or are_images == [False, True]:
        return names, lines[1:]
    return [], lines


def _columns(
    path: str, header: list[str], row: list[str], reading: Reading
) -> list[int]:
    """Returns the columns of a CSV file's paths and labels, if it has labels.

    Args:
      path: of the file.
      header: names of its columns in lower case, or [].
      row: its first line after that.
      reading: options that name the columns.
    """

    def chosen(option: str, known: re.Pattern) -> int | None:
        name = getattr(reading, option)
        if name.isdecimal() and 0 < int(name) <= len(row):
            return int(name) - 1
        if not name:
            matches = map(known.fullmatch, header)
            return next((i for i, match in enumerate(matches) if match), None)
        if name.lower() in header:
            return header.index(name.lower())
        named = f" ({', '.join(header)})" if header else ", and no header"
        raise errors.UserError(
            f"{path}: there is no column {option}={name}: it has"
            f" {len(row)} columns{named}"
        )

    paths = chosen("csv_path_column", _PATH_COLUMN)
    if paths is None:
        images = (i for i, cell in enumerate(row) if _is_image(cell))
        paths = next(images, 0)
    labels = chosen("csv_label_column", _LABEL_COLUMN)
    if labels is None and len(row) > 2 and header:
        raise errors.UserError(
            f"{path}: which of its columns {', '.join(header)} has the labels?"
            " Set csv_label_column"
        )
    if labels is None:
        # The one that follows; after the last one, the one before.
        labels = paths + 1 if paths + 1 < len(row) else paths - 1
    return [paths, labels] if labels >= 0 else [paths]


def csv_file(name: str, options: CSV, split: str, access: Access) -> Source:
    """Opens `csv:PATH`: lines of path,label, or of path alone.

    Columns are separated by commas, semicolons or tabs, and found by their
    names in a header, if there is one. Relative paths start at the CSV file.
    Labels that are all integers of at least 0 are used unchanged; names are
    numbered in sorted order. `{split}` in PATH means the split's name; classes
    are then those of all splits' files. Without it the file is the split
    `train`.
    """
    reading = access.reading
    path = os.path.expanduser(options.path)
    file = path.replace("{split}", split_spec.parse(split)[0])
    held_out = file == path and _holds_out(split, reading)
    if file != path:
        reason = "its splits are the files of {split}"
        split_spec.refuse_fraction(name, reading, reason)
    elif not held_out:
        split_spec.only_train(
            name, split, "put {split} into the path, or set test_fraction=0.2"
        )
    if not tf.io.gfile.exists(file) or tf.io.gfile.isdir(file):
        raise errors.AbsentDataError(
            f"{name}: there is no file {file}: use a CSV file of path,label"
        )
    rows = _rows(file, reading)
    folder = os.path.dirname(file)
    named = [row[0] for row in rows]
    paths = [p if "://" in p else os.path.join(folder, p) for p in named]
    found = _Files(path, paths, named, np.arange(len(paths)))
    if len(rows[0]) == 1:
        return _source(name, split, access, found, held_out)
    literal = re.sub(r"([*?\[\]\\])", r"\\\1", path)
    files = tf.io.gfile.glob(literal.replace("{split}", "*"))
    classes = {row[-1] for f in files or [file] for row in _rows(f, reading)}
    if all(label.isascii() and label.isdigit() for label in classes):
        digits = max((label.lstrip("0") for label in classes), key=len)
        if len(digits) > _MAX_DIGITS:
            raise errors.UserError(
                f"{name}: {digits[:_MAX_DIGITS]}... is too large for a label:"
                " number the classes from 0"
            )
        labels = [int(row[1]) for row in rows]
        count = max(map(int, classes)) + 1
        found = found._replace(labels=labels, num_classes=count)
        return _source(name, split, access, found, held_out)
    if all(map(_NUMBER.fullmatch, classes)):
        least = min(classes, key=float)
        raise errors.UserError(
            f"{name}: label {least}: write integers of at least 0, or names"
        )
    names = tuple(sorted(classes))
    number = {label: i for i, label in enumerate(names)}
    labels = [number[row[1]] for row in rows]
    found = found._replace(labels=labels, label_names=names)
    return _source(name, split, access, found, held_out)
