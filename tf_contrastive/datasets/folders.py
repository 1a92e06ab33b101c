"""Folders of images: `folder:PATH` lists `[SPLIT/]CLASS/**/IMAGE`.

A folder of images alone, or of one folder, has no classes. What may be read in
two ways is refused.
"""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import Folder
from tf_contrastive.datasets import (
    decoding,
    float_images,
    image_files,
    paths,
    split_spec,
)
from tf_contrastive.datasets.image_files import OWN, Listing
from tf_contrastive.datasets.paths import few
from tf_contrastive.datasets.source import Access, Source

_READING = Reading()
_FORM = f"use PATH/SPLIT/CLASS/IMAGE or PATH/CLASS/IMAGE, {OWN}"
# What systems keep beside files. Names that start with a dot are hidden anyway.
_SYSTEM = {
    *("@eaDir", "@__thumb", "@Recycle", "#recycle", "#snapshot"),
    *("$RECYCLE.BIN", "RECYCLER", "System Volume Information", "lost+found"),
    *("__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"),
}
# A folder of images without a label.
_UNLABELLED = {"unlabelled", "unlabeled"}
# What writers of shards leave beside a folder of the same name.
_SHARDS = (".parquet", ".tar", "_stats.json")


# ---- Reading folders ---------------------------------------------------------


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _SYSTEM


def _contents(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder's name from the root, and its files, without hidden.

    Local folders that come twice, which links lead to, are visited once.
    """
    local = files.local_path(root)
    if local is None:
        walked: Iterable = tf.io.gfile.walk(root)
    else:
        walked = os.walk(local, onerror=_raise, followlinks=True)
    here, seen = os.path.realpath(local or "/"), set()
    for folder, names, others in walked:
        below = folder[len(local or root) :].strip("/")
        if any(map(_is_hidden, filter(None, below.split("/")))):
            continue  # Object stores are walked as a whole.
        kept = sorted(n.rstrip("/") for n in names if not _is_hidden(n))
        names.clear()
        for name in kept:
            path = os.path.join(folder, name)
            if local and os.path.islink(path):
                real = os.path.realpath(path)
                common = os.path.commonpath([here, real])
                inside = os.path.relpath(real, here).split(os.sep)
                # A folder that is visited anyway, or one of its own parents.
                is_hidden = any(map(_is_hidden, inside))
                if common == real or (common == here and not is_hidden):
                    continue
                if real in seen:
                    continue
                seen.add(real)
            names.append(name)
        yield below, [n for n in others if n and not _is_hidden(n)]


def _raise(error: OSError) -> None:
    raise error


def walk(root: str, reading: Reading = _READING) -> tuple[list[str], list[str]]:
    """Lists a folder, without what is hidden or a system's.

    Returns:
      (names of images at any depth, sorted; names of other files).

    Raises:
      UserError: for an image whose name is not UTF-8.
    """
    extensions = decoding.extensions()
    if reading.float_channels is not None:
        extensions += float_images.EXTENSIONS
    images: list[str] = []
    others: list[str] = []
    for folder, names in _contents(root):
        for name in names:
            is_image = name.lower().endswith(extensions)
            found = images if is_image else others
            found.append(os.path.join(folder, name))
    images.sort()
    try:
        "\n".join(images).encode()
    except UnicodeEncodeError as error:
        bad = error.object[: error.start].rpartition("\n")[2]
        raise errors.UserError(
            f"{root}: the name of an image, which starts with {bad!r}, is not"
            " UTF-8: rename it"
        ) from None
    return images, others


def _extensions(names: Iterable[str]) -> str:
    """Counts the extensions of files, such as "12 .jpg, 3 .png"."""
    endings = (os.path.splitext(name)[1].lower() for name in names)
    counted = Counter(end or "without extension" for end in endings)
    return few((f"{n:,} {end}" for end, n in counted.most_common()), 5)


# ---- Splits and classes ------------------------------------------------------


def _top(name: str) -> str:
    """Returns the first folder of a name; empty: it has none."""
    return sys.intern(name.split("/", 1)[0]) if "/" in name else ""


def _splits(name: str, path: str, images: list[str]) -> dict[str, str]:
    """Returns folder -> split of the splits; {"": "train"} without folders."""
    tops = sorted({*map(_top, images)} - {""})
    splits = {top: word for top in tops if (word := split_spec.meaning(top))}
    others = [top for top in tops if top not in splits]
    if alike := split_spec.look_alikes(others):
        raise errors.UserError(
            f"{name}: the folders {few(alike)} in {path} look like splits: name"
            " them train, test or validation, or, if they are classes,"
            " without these words"
        )
    if not splits:
        return {"": "train"}
    first, *more = splits
    others += [image for image in images if "/" not in image]
    if others or len({*splits.values()}) < len(splits):
        raise errors.UserError(
            f"{name}: beside the split {first} are other folders of images,"
            f" {few([*more, *others])}: use a folder for each split alone,"
            f" or, if all are classes, rename {first}, such as to {first}_"
        )
    return splits


def _not_classes(name: str, folders: set[tuple[str, str]]) -> dict[str, str]:
    """Returns split -> its only folder, of splits for which that is no class.

    It is one if another split has it beside other classes. `folders`: (split,
    name from its folder) of those that hold images.

    Raises:
      UserError: for splits in classes, or classes in the only folder.
    """
    below: dict[str, dict[str, set[str]]] = {}
    for split, folder in folders:
        top, *deeper = folder.split("/")
        if any(map(split_spec.meaning, deeper)):
            raise errors.UserError(
                f"{name}: the folder {folder} is named like a split inside of"
                f" another one: {_FORM}"
            )
        below.setdefault(split, {}).setdefault(top, set()).update(deeper[:1])
    several = {x for tops in below.values() if len(tops) > 1 for x in tops}
    only = {}
    for split, tops in below.items():
        if len(tops) > 1 or several.union([""]).issuperset(tops):
            continue
        ((only[split], inner),) = tops.items()
        if len(inner) > 1:
            raise errors.UserError(
                f"{name}: all images of {split} are in {only[split]}, in"
                f" folders {few(sorted(inner))}: {_FORM}, from that folder on"
            )
    return only


# ---- The listing -------------------------------------------------------------


def _list(name: str, path: str, reading: Reading) -> Listing:
    """Lists the images of all splits.

    Raises:
      UserError: for a tree of another form.
    """
    images, others = walk(path, reading)
    heic = decoding.lacking(others)
    left_out = _extensions(others) + heic
    if any(x.lower().endswith(float_images.EXTENSIONS) for x in others):
        left_out += f"; NumPy's need {errors.arg('channels', 'N')}"
    if not images:
        raise errors.UserError(
            f"{name}: no images under {path} ({left_out or 'no files'}):"
            f" {_FORM}, or tfrecord:PATH for TFRecords"
        )
    if heic:
        terminal.warning(f"{name}: files that are not read: {left_out}")
    splits = _splits(name, path, images)
    names, of_split, labels = [], [], []
    folders = set()
    for image in images:
        top = "" if "" in splits else _top(image)
        inside = image[len(top) :].lstrip("/")
        names.append(inside)
        of_split.append(splits[top])
        labels.append(_top(inside))
        folders.add((splits[top], os.path.dirname(inside)))
    shards = {x.removesuffix(end) for x in others for end in _SHARDS}
    if shards.intersection(labels):
        raise errors.UserError(
            f"{name}: {few(sorted(shards))} in {path} are shards, beside files"
            " of the same name, and no classes: list their images in csv:PATH"
        )
    only = _not_classes(name, folders)
    for row, (split, label) in enumerate(zip(of_split, labels, strict=True)):
        if label.lower() in _UNLABELLED or only.get(split) == label:
            labels[row] = ""
    located = (os.path.join(path, image) for image in images)
    columns = {
        "path": paths.array_of(located, len(images)),
        "name": paths.array_of(names),
        "label": paths.array_of(labels).dictionary_encode(),
        "split": paths.array_of(of_split).dictionary_encode(),
    }
    rows = pa.table(columns)
    return Listing(path, rows, {"left_out": left_out}, is_mixed=True)


def open_folder(
    name: str, options: Folder, split: str, access: Access
) -> Source:
    """Opens `folder:PATH`; a slice is a random sample, always the same."""
    path = os.path.expanduser(options.path).rstrip("/") or "/"
    if not tf.io.gfile.isdir(path):
        what = "is a file" if tf.io.gfile.exists(path) else "is absent"
        raise errors.AbsentDataError(
            f"{name}: {path} {what}: use a folder of images, csv:PATH for a"
            " table of them, or tfrecord:PATH"
        )
    listing = _list(name, path, access.reading)
    return image_files.open_listing(name, split, access.reading, listing)


def from_path(path: str, reading: Reading = _READING) -> Source:
    """Opens all images of a folder, or an image, without labels.

    Raises:
      UserError: if there are none that can be read.
    """
    path = os.path.expanduser(path)
    names = [path]
    if tf.io.gfile.isdir(path):
        names = [os.path.join(path, name) for name in walk(path, reading)[0]]
    if not names:
        raise errors.UserError(
            f"{path} has no images: name an image, or another folder"
        )
    array, none = paths.array_of(names), paths.array_of([""] * len(names))
    split = paths.array_of(["train"] * len(names))
    columns = {"path": array, "name": array, "label": none, "split": split}
    # What is remembered of the folder's files must not become that of these.
    place = f"paths in {os.path.dirname(names[0])}"
    listing = Listing(place, pa.table(columns), {})
    every = dataclasses.replace(
        reading, max_bad_images=len(names), test_fraction=0.0
    )
    return image_files.open_listing("images", "train", every, listing)
