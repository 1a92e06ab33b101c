"""Folders of images: `folder:PATH` lists `[SPLIT/]CLASS/**/IMAGE`.

A folder of images alone, or of one folder, has no classes. What may be read in
two ways is refused.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import Folder
from tf_contrastive.datasets import decoding, image_files, paths, split_spec
from tf_contrastive.datasets.listing import (
    OWN,
    Listing,
    counts,
    extension,
    few,
    number_names,
    without_label,
)
from tf_contrastive.datasets.source import Access, Source

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


class Tree(NamedTuple):
    """What is in a folder, at any depth.

    Attributes:
      images: their names from the folder, sorted.
      others: the extensions of other files.
      top: the names of the files and folders directly in it.
      hidden: the names of files and folders that are left out.
    """

    images: list[str]
    others: list[str]
    top: list[str]
    hidden: list[str]


# ---- Reading folders ---------------------------------------------------------


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _SYSTEM


def _contents(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each folder's name from the root, its folders and its files.

    The names of folders that the caller removes from their list are not
    visited; nor are local folders that come twice, which links lead to.
    """
    local = files.local_path(root)
    if local is None:
        walked: Iterable = tf.io.gfile.walk(root)
    else:
        walked = os.walk(local, onerror=_raise, followlinks=True)
    here, seen = os.path.realpath(local or "/"), set()
    for folder, names, others in walked:
        names[:] = sorted(name.rstrip("/") for name in names)
        for name in list(names) if local else ():
            path = os.path.join(folder, name)
            if os.path.islink(path):
                real = os.path.realpath(path)
                above = os.path.commonpath([here, real])
                if above in (here, real) or real in seen:
                    names.remove(name)
                seen.add(real)
        below = folder[len(local or root) :].strip("/")
        yield below, names, sorted(filter(None, others))


def _raise(error: OSError) -> None:
    raise error


def walk(root: str) -> Tree:
    """Lists the images in a folder, without what is hidden or a system's.

    Raises:
      UserError: for an image whose name is not UTF-8.
    """
    tree = Tree([], [], [], [])
    for folder, names, others in _contents(root):
        if any(map(_is_hidden, filter(None, folder.split("/")))):
            continue  # Object stores are walked as a whole.
        every = [*names, *others]
        tree.hidden.extend(filter(_is_hidden, every))
        names[:] = [name for name in names if not _is_hidden(name)]
        if not folder:
            tree.top.extend(every)
        for name in others:
            if _is_hidden(name):
                continue
            if decoding.is_image(name):
                tree.images.append(os.path.join(folder, name))
            else:
                tree.others.append(extension(name))
    tree.images.sort()
    try:
        "\n".join(tree.images).encode()
    except UnicodeEncodeError as error:
        bad = error.object[: error.start].rpartition("\n")[2]
        raise errors.UserError(
            f"{root}: the name of an image, which starts with {bad!r}, is not"
            " UTF-8: rename it"
        ) from None
    return tree


def find_images(path: str) -> list[str]:
    """Returns the image files at a path: itself, or those in a folder.

    Raises:
      UserError: if there are none.
    """
    path = os.path.expanduser(path)
    if not tf.io.gfile.isdir(path):
        if not tf.io.gfile.exists(path):
            raise errors.UserError(f"there is no file or folder {path}")
        return [path]
    images = [os.path.join(path, name) for name in walk(path).images]
    if not images:
        raise errors.UserError(
            f"{path} has no images: use {', '.join(decoding.formats())} files"
        )
    return images


# ---- Splits ------------------------------------------------------------------


def _top(name: str) -> str:
    """Returns the first folder of a name; empty: it has none."""
    return sys.intern(name.split("/", 1)[0]) if "/" in name else ""


def _splits(name: str, path: str, tree: Tree) -> dict[str, str]:
    """Returns split -> folder of the splits; {"train": ""} without folders."""
    tops = sorted({_top(image) for image in tree.images} - {""})
    known = [top for top in tops if split_spec.meaning(top)]
    others = [top for top in tops if top not in known]
    if alike := split_spec.look_alikes(others):
        raise errors.UserError(
            f"{name}: the folders {few(alike)} in {path} look like splits: name"
            " them train, test or validation, or, if they are classes,"
            " without these words"
        )
    if not known:
        return {"train": ""}
    others += [image for image in tree.images if "/" not in image]
    if others:
        raise errors.UserError(
            f"{name}: the splits {few(known)} are beside other images,"
            f" {few(others)}: move those out of {path}, or, if all are classes,"
            f" rename {known[0]}, such as to {known[0]}_"
        )
    splits = {split_spec.meaning(top) or "": top for top in known}
    if len(splits) < len(known):
        raise errors.UserError(
            f"{name}: some of the folders {few(known)} mean the same split:"
            " rename or join them"
        )
    return splits


def _own_split(
    name: str, path: str, split: str, splits: dict[str, str], reading: Reading
) -> tuple[str, bool]:
    """Returns the split to open, and whether a part of it is held out."""
    base = split_spec.parse(split)[0]
    wanted = split_spec.meaning(base) or base
    if reading.test_fraction and splits.keys() == {"train"}:
        if wanted in ("train", "test"):
            return "train", True
    elif reading.test_fraction:
        split_spec.refuse_fraction(
            name, reading, f"its splits are the folders {few(splits.values())}"
        )
    if wanted in splits:
        return wanted, False
    raise errors.AbsentSplitError(
        f"{name} has no split {base!r}, only {', '.join(splits)}: make a folder"
        f" {path}/{base}, or, without folders of splits, set"
        f" {errors.arg('test_fraction', '0.2')}"
    )


# ---- Classes -----------------------------------------------------------------


def _classes(
    name: str, images: dict[str, list[str]], may_lack: bool
) -> dict[str, set[str]]:
    """Returns the classes of the splits that have labels.

    A split of images alone, or of one folder, has none, unless that folder is a
    class of another split.

    Args:
      name: of the dataset.
      images: names of images, from the folder of each split.
      may_lack: whether images directly in a split, and in a folder that is
        named so, are unlabelled, and others are not.

    Raises:
      UserError: if some images have no class, or there are splits in classes.
    """
    folders: dict[str, set[str]] = {}
    for split, of_split in images.items():
        tops = {_top(image) for image in of_split}
        stray = {x for x in tops if not x or x.lower() in _UNLABELLED}
        if stray and len(tops) > 1 and not may_lack:
            first = next(x for x in of_split if _top(x) in stray)
            raise errors.UserError(
                f"{name}: the images of {split} are in folders,"
                f" {few(sorted(tops - stray))}, and others are not labelled,"
                f" such as {first}: move those, or set"
                f" {errors.arg('unlabelled', 'own_views')}"
            )
        folders[split] = tops - (stray if may_lack else {""})
        for folder in {os.path.dirname(image) for image in of_split}:
            if any(map(split_spec.meaning, folder.split("/")[1:])):
                raise errors.UserError(
                    f"{name}: the folder {folder} is named like a split inside"
                    f" of another one: {_FORM}"
                )
    several = {x for tops in folders.values() if len(tops) > 1 for x in tops}
    return {
        split: tops
        for split, tops in folders.items()
        if len(tops) > 1 or tops & several
    }


def _why_unlabelled(
    name: str, root: str, images: list[str], labelled: Iterable[str]
) -> str:
    """Says why a split has no labels; refuses where classes may be deeper."""
    if not (top := _top(images[0])):
        return "none: images directly in the folder"
    inner = sorted({_top(image.split("/", 1)[1]) for image in images} - {""})
    below = os.path.join(root, top)
    if len(inner) > 1:
        raise errors.UserError(
            f"{name}: all images are in {below}, in folders {few(inner)}: for"
            f" classes of these, and for a loss without labels, use"
            f" folder:{below}"
        )
    if labelled := list(labelled):
        terminal.warning(
            f"{name}: no labels are read, since {below} is no class of"
            f" {few(labelled)}"
        )
    return f"none: all images are in {below}"


def _check_classes(name: str, root: str, tree: Tree, own: list[str]) -> None:
    """Refuses folders of shards; warns of classes that may be none."""
    tops = sorted({_top(image) for image in own})
    beside = {*tree.top}
    if shards := [t for t in tops if any(t + x in beside for x in _SHARDS)]:
        raise errors.UserError(
            f"{name}: {few(shards)} in {root} are shards, beside files of the"
            " same name, and no classes: list their images in csv:PATH"
        )
    deeper: dict[str, set[str]] = {}
    for folder in {os.path.dirname(image) for image in own}:
        if "/" in folder:
            top, inner = folder.split("/")[:2]
            deeper.setdefault(inner, set()).add(top)
    common = sorted(inner for inner, of in deeper.items() if len(of) > 1)
    if len(common) > 1:
        terminal.warning(
            f"{name}: the classes are {few(tops)}, several of which have"
            f" folders {few(common)}: if those are the classes, move them to"
            f" {root}"
        )


# ---- The listing -------------------------------------------------------------


def _list(name: str, path: str, split: str, reading: Reading) -> Listing:
    """Lists the images of a split.

    Raises:
      UserError: for a tree of another form.
    """
    tree = walk(path)
    heic = decoding.lacking(tree.others)
    left_out = ", ".join(filter(None, map(counts, (tree.others, tree.hidden))))
    if not tree.images:
        raise errors.UserError(
            f"{name}: no images under {path} ({left_out or 'no files'}{heic}):"
            f" {_FORM}, or tfrecord:PATH for TFRecords"
        )
    if tree.others:
        say = terminal.warning if heic else terminal.info
        say(f"{name}: files that are not read: {counts(tree.others)}{heic}")
    splits = _splits(name, path, tree)
    own, holds_out = _own_split(name, path, split, splits, reading)
    images = {
        key: [
            image[len(folder) :].lstrip("/")
            for image in tree.images
            if not folder or _top(image) == folder
        ]
        for key, folder in splits.items()
    }
    root, of_split = os.path.join(path, splits[own]).rstrip("/"), images[own]
    by_split = _classes(name, images, reading.admits_unlabelled)
    found = {"left_out": left_out, "splits": ", ".join(splits)}
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    if own in by_split:
        number = number_names(name, own, by_split)
        tops = [_top(image) for image in of_split]
        labels = np.array([number.get(top, -1) for top in tops], np.int32)
        classes = tuple(number)
        found["labels"] = f"names of the folders in {root}"
        found["without_label"] = without_label((labels < 0).sum(), len(labels))
        labelled = [x for x, y in zip(of_split, labels, strict=True) if y >= 0]
        _check_classes(name, root, tree, labelled)
    else:
        found["labels"] = _why_unlabelled(name, root, of_split, by_split)
    names = paths.array_of(of_split)
    return Listing(
        path,
        paths.mapped(lambda image: os.path.join(root, image), names),
        names,
        found,
        labels,
        classes,
        is_mixed=True,
        holds_out=holds_out,
    )


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
    listing = _list(name, path, split, access.reading)
    return image_files.open_listing(name, split, access, listing)
