"""Folders of images: `folder:PATH` lists `[SPLIT/]CLASS/**/IMAGE`.

A folder of images alone, or of one folder, has no classes. What may be read in
two ways is refused.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.dataset import Folder
from tf_contrastive.datasets import decoding, image_files, paths, split_spec
from tf_contrastive.datasets.listing import (
    OWN,
    Listing,
    counts,
    extension,
    few,
    table,
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
    """The names of files in a folder, at any depth.

    Attributes:
      images: sorted.
      others: that are no images.
      hidden: files and folders that are left out.
    """

    images: list[str]
    others: list[str]
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
    tree = Tree([], [], [])
    for folder, names, others in _contents(root):
        if any(map(_is_hidden, filter(None, folder.split("/")))):
            continue  # Object stores are walked as a whole.
        tree.hidden.extend(filter(_is_hidden, [*names, *others]))
        names[:] = [name for name in names if not _is_hidden(name)]
        for name in others:
            if not _is_hidden(name):
                found = tree.images if decoding.is_image(name) else tree.others
                found.append(os.path.join(folder, name))
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


def _splits(name: str, path: str, images: list[str]) -> dict[str, str]:
    """Returns folder -> split of the splits; {"": "train"} without folders."""
    tops = sorted({*map(_top, images)} - {""})
    known = [top for top in tops if split_spec.meaning(top)]
    others = [top for top in tops if top not in known]
    if alike := split_spec.look_alikes(others):
        raise errors.UserError(
            f"{name}: the folders {few(alike)} in {path} look like splits: name"
            " them train, test or validation, or, if they are classes,"
            " without these words"
        )
    if not known:
        return {"": "train"}
    others += [image for image in images if "/" not in image]
    splits = {top: split_spec.meaning(top) or "" for top in known}
    if others or len({*splits.values()}) < len(known):
        raise errors.UserError(
            f"{name}: beside the split {known[0]} are other folders of images,"
            f" {few([*known[1:], *others])}: use a folder for each split alone,"
            f" or, if all are classes, rename {known[0]}, such as to"
            f" {known[0]}_"
        )
    return splits


# ---- Classes -----------------------------------------------------------------


def _not_classes(
    name: str, by_split: dict[str, set[str]], folders: set[tuple[str, str]]
) -> dict[str, str]:
    """Returns split -> its only folder, of splits for which that is no class.

    It is one if another split has it beside other classes.

    Args:
      name: of the dataset.
      by_split: the folders of each split; "" if it has images directly.
      folders: (split, name from its folder) of those that hold images.

    Raises:
      UserError: for splits in classes, or classes in the only folder.
    """
    below: dict[tuple[str, str], set[str]] = {}
    for split, folder in folders:
        top, *deeper = folder.split("/")
        if any(map(split_spec.meaning, deeper)):
            raise errors.UserError(
                f"{name}: the folder {folder} is named like a split inside of"
                f" another one: {_FORM}"
            )
        below.setdefault((split, top), set()).update(deeper[:1])
    several = {x for tops in by_split.values() if len(tops) > 1 for x in tops}
    only = {}
    for split, (top, *others) in by_split.items():
        if top and not others and top not in several:
            only[split] = top
            if len(inner := below[split, top]) > 1:
                raise errors.UserError(
                    f"{name}: all images of {split} are in {top}, in folders"
                    f" {few(sorted(inner))}: {_FORM}, from that folder on"
                )
    return only


# ---- The listing -------------------------------------------------------------


def _list(name: str, path: str) -> Listing:
    """Lists the images of all splits.

    Raises:
      UserError: for a tree of another form.
    """
    tree = walk(path)
    heic = decoding.lacking(tree.others)
    left_out = counts(map(extension, tree.others))
    if not tree.images:
        raise errors.UserError(
            f"{name}: no images under {path} ({left_out or 'no files'}{heic}):"
            f" {_FORM}, or tfrecord:PATH for TFRecords"
        )
    if left_out:
        text = f"{name}: files that are not read: {left_out}{heic}"
        if heic:
            terminal.warning(text)
        else:
            terminal.info(text, once=True)
    splits = _splits(name, path, tree.images)
    names, of_split, labels = [], [], []
    folders = set()
    by_split: dict[str, set[str]] = {}
    for image in tree.images:
        top = "" if "" in splits else _top(image)
        split, inside = splits[top], image[len(top) :].lstrip("/")
        label = _top(inside)
        names.append(inside)
        of_split.append(split)
        labels.append("" if label.lower() in _UNLABELLED else label)
        by_split.setdefault(split, set()).add(label)
        folders.add((split, os.path.dirname(inside)))
    shards = {x.removesuffix(end) for x in tree.others for end in _SHARDS}
    if shards := shards.intersection(set().union(*by_split.values())):
        raise errors.UserError(
            f"{name}: {few(sorted(shards))} in {path} are shards, beside files"
            " of the same name, and no classes: list their images in csv:PATH"
        )
    if only := _not_classes(name, by_split, folders):
        labels = [
            "" if only.get(split) == label else label
            for split, label in zip(of_split, labels, strict=True)
        ]
    rows = table(
        {
            "path": paths.mapped(
                lambda image: os.path.join(path, image),
                paths.array_of(tree.images),
            ),
            "name": paths.array_of(names),
            "label": paths.array_of(labels),
            "split": paths.array_of(of_split),
        }
    )
    hidden = counts(tree.hidden)
    found = {"left_out": ", ".join(filter(None, (left_out, hidden)))}
    return Listing(path, rows, found, is_mixed=True)


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
    listing = _list(name, path)
    return image_files.open_listing(name, split, access, listing)
