"""Folders of images, with or without classes: `folder:PATH`."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import Folder
from tf_contrastive.datasets import (
    classes,
    decoding,
    image_files,
    split_spec,
)
from tf_contrastive.datasets.image_files import (
    ImageFiles,
    counts,
    few,
    without_label,
)
from tf_contrastive.datasets.names import Names
from tf_contrastive.datasets.source import Access, Source

# Folders that were splits before other spellings: beside folders of images
# they are refused in any case.
_COMMON = ("train", "test", "validation", "val")
# What systems keep beside files, in lower case; RECYCLER is no word of theirs
# in another one. Names that start with a dot are hidden anyway.
_SYSTEM = {
    "@eadir",
    "@tmp",
    "@recycle",
    "@recently-snapshot",
    "@__thumb",
    "#recycle",
    "#snapshot",
    "$recycle.bin",
    "RECYCLER",
    "system volume information",
    "lost+found",
    "found.000",
    "network trash folder",
    "temporary items",
    "__macosx",
    "__pycache__",
    "thumbs.db",
    "desktop.ini",
}
# Folders of a kind of data rather than of a class, in lower case.
_KINDS = {
    *("image", "images", "img", "imgs", "jpegimages", "photos", "pictures"),
    *("mask", "masks", "label", "labels", "annotation", "annotations", "gt"),
    *("groundtruth", "ground_truth", "segmentation", "segmentations"),
    *("segmentationclass", "segmentationobject", "depth", "heatmaps"),
    *("labeled", "labelled", "unlabeled", "unlabelled", "unsupervised"),
}
# Extensions of pictures that are not read, or not without a package.
_PICTURES = {
    *(".heic", ".heif", ".avif", ".jxl", ".svg", ".psd", ".ico", ".tga"),
    *(".exr", ".hdr", ".dng", ".cr2", ".nef", ".arw", ".dcm", ".nii"),
    *(".hif", ".pcx", ".sgi", ".dds", ".qoi", ".jxr", ".pfm", ".fits"),
}


# ---- Reading folders ---------------------------------------------------------


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or not _SYSTEM.isdisjoint({name, name.lower()})


def _listed(path: str) -> list[str]:
    """Returns the names in a folder, sorted."""
    # Object stores end folders by a slash, of which a name may consist.
    names = {name.rstrip("/") for name in tf.io.gfile.listdir(path)}
    return sorted(names - {""})


def _folders(path: str) -> list[str]:
    """Returns the names of the folders directly in `path`, sorted."""
    names = [name for name in _listed(path) if not _is_hidden(name)]
    return [n for n in names if tf.io.gfile.isdir(os.path.join(path, n))]


class _Content(NamedTuple):
    """What is directly in a folder."""

    path: str
    files: list[str]
    hidden: list[str]


def walk(root: str) -> Iterator[_Content]:
    """Yields the contents of all folders; `root` may be a link.

    No folder comes twice, which other links lead to. Those without permission
    are left out.
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
            listed = _listed(parent)
        except tf.errors.PermissionDeniedError:
            terminal.warning(f"{parent} is left out: no permission to read it")
            continue
        names = [name for name in listed if not _is_hidden(name)]
        paths = {name: os.path.join(parent, name) for name in names}
        folders = {n for n in names if tf.io.gfile.isdir(paths[n])}
        waiting += [paths[n] for n in reversed(names) if n in folders]
        files = [name for name in names if name not in folders]
        yield _Content(parent, files, sorted({*listed} - {*names}))


def _has_image(folder: str) -> bool:
    return any(
        image_files.is_image(file)
        for content in walk(folder)
        for file in content.files
    )


# ---- Splits ------------------------------------------------------------------


class _Place(NamedTuple):
    """Where the images of a split are.

    Attributes:
      root: their folder.
      splits: name -> folder of all splits; that of `root` is `split`.
      split: the name of the split's folder.
      held_out: whether the folder is that of both train and test.
    """

    root: str
    splits: dict[str, str]
    split: str
    held_out: bool


def _place(name: str, path: str, split: str, reading: Reading) -> _Place:
    """Finds the folder of a split."""
    base = split_spec.parse(split)[0]
    folders = _folders(path)
    known = _split_folders(name, path, folders, base)
    holds_out = image_files.holds_out(split, reading)
    only_train = {*map(split_spec.meaning, known)} == {"train"}
    if holds_out and only_train:
        root = split_spec.find(name, "train", known) or known[0]
        inside = os.path.join(path, root)
        return _Place(inside, {root: inside}, root, True)
    own = split_spec.find(name, base, known)
    if own is None and base in folders:
        own = base
    if own is not None:
        if own in known:
            split_spec.refuse_fraction(
                name, reading, f"its splits are the folders {', '.join(known)}"
            )
        every = sorted({*known, own})
        roots = {folder: os.path.join(path, folder) for folder in every}
        return _Place(roots[own], roots, own, False)
    if known:
        hint = f", or set {errors.arg('test_fraction', '0.2')}" * (only_train)
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: its folders are"
            f" {', '.join(known)}: use one of these, or make one of that"
            f" name{hint}"
        )
    if not holds_out:
        split_spec.only_train(
            name,
            split,
            f"its images are not in folders such as {path}/{base}; make them,"
            f" or set {errors.arg('test_fraction', '0.2')}",
        )
    return _Place(path, {"train": path}, "train", holds_out)


def _split_folders(
    name: str, path: str, folders: list[str], base: str
) -> list[str]:
    """Returns the folders in `path` that are its splits.

    Raises:
      UserError: if they may be splits, or classes.
    """
    known = [folder for folder in folders if split_spec.meaning(folder)]
    if base in folders and base not in known:
        return known
    with_images = [
        folder
        for folder in folders
        if folder not in known and _has_image(os.path.join(path, folder))
    ]
    if not known:
        _refuse_look_alikes(name, path, with_images)
        return []
    if not with_images:
        if stray := _layout(path).direct:
            terminal.warning(
                f"{name}: {len(stray):,} image(s) beside the folders"
                f" {few(known)} are in no split, such as {stray[0]}"
            )
        return known
    common = any(folder.lower() in _COMMON for folder in known)
    if common or len({*map(split_spec.meaning, known)}) > 1:
        raise errors.UserError(
            f"{name}: folders {', '.join(known)} beside folders of images"
            f" {few(with_images)}: if all are classes, rename {known[0]}, such"
            f" as to {known[0]}_; if {', '.join(known)} are splits, move the"
            f" others out of {path}"
        )
    terminal.warning(
        f"{name}: {known[0]} is read as a class, like {few(with_images)}; if it"
        f" is a split, move the others out of {path}"
    )
    return []


def _refuse_look_alikes(name: str, path: str, folders: list[str]) -> None:
    if alike := split_spec.look_alikes(folders):
        raise errors.UserError(
            f"{name}: the folders {few(alike)} in {path} look like splits: name"
            " them train, test or validation, or, if they are classes,"
            " without these words"
        )


def _refuse_inner_splits(name: str, root: str, names: Names) -> None:
    """Raises `UserError` if there are splits inside of folders.

    Args:
      name: of the dataset.
      root: the folder that was taken.
      names: of its images.
    """
    inside: dict[str, set[str]] = {}
    for folder in {os.path.dirname(name) for name in names}:
        while folder:
            parent, base = os.path.split(folder)
            inside.setdefault(parent, set()).add(base)
            folder = parent
    around = ""  # Folders that have all others.
    while len(inside.get(around, ())) == 1:
        around = os.path.join(around, *inside[around])
        below = inside.get(around, set())
        if below and all(map(split_spec.meaning, below)):
            raise errors.UserError(
                f"{name}: the splits {few(sorted(below))} are in"
                f" {root}/{around}: use folder:{root}/{around}"
            )
    inside.pop("", None)
    inner = []
    for parent, folders in sorted(inside.items()):
        splits = sorted(filter(split_spec.meaning, folders))
        if len({*map(split_spec.meaning, splits)}) > 1:
            raise errors.UserError(
                f"{name}: {root}/{parent} has the splits {few(splits)}: put"
                f" splits above classes, as in {root}/{splits[0]}/{parent}"
            )
        _refuse_look_alikes(name, f"{root}/{parent}", sorted(folders))
        inner += [f"{parent}/{folder}" for folder in splits]
    if inner:
        terminal.warning(
            f"{name}: {len(inner):,} folder(s) inside of others are no splits,"
            f" such as {inner[0]}"
        )


# ---- Classes -----------------------------------------------------------------


class _Layout(NamedTuple):
    """The folders with images in a split, and the images beside them."""

    folders: list[str]
    direct: list[str]


def _layout(root: str) -> _Layout:
    folders = _folders(root)
    images = filter(image_files.is_image, _listed(root))
    return _Layout(
        [
            f
            for f in folders
            if not _is_alias(root, f) and _has_image(f"{root}/{f}")
        ],
        [f for f in images if f not in folders and not _is_hidden(f)],
    )


def _is_alias(root: str, folder: str) -> bool:
    """Whether a folder is a link to another one in `root`; see `walk`."""
    path, here = os.path.join(root, folder), os.path.realpath(root)
    real = os.path.realpath(path)
    return os.path.islink(path) and os.path.commonpath([here, real]) == here


def _classes(
    name: str, place: _Place, own: _Layout, count: int, may_lack: bool
) -> tuple[dict[str, list[str]], str]:
    """Finds the classes of the splits that have labels.

    A split with images beside its folders has none, nor has one with a single
    folder, unless that is a class of another split.

    Args:
      name: of the dataset.
      place: the splits.
      own: the layout of the one that is opened.
      count: of its images.
      may_lack: whether images directly in a split, and in a folder that is
        named so, are unlabelled, and others are not.

    Returns:
      (name of a split -> its classes, why the split has no labels).
    """
    layouts = {
        split: own if split == place.split else _layout(root)
        for split, root in place.splits.items()
    }
    unlabelled = sorted(filter(_is_unlabelled, own.folders))
    if may_lack:
        layouts = {
            split: _Layout([f for f in x.folders if not _is_unlabelled(f)], [])
            for split, x in layouts.items()
        }
    elif unlabelled:
        terminal.warning(
            f"{name}: {few(unlabelled)} in {place.root} is read as a class; for"
            " images without a label, set"
            f" {errors.arg('unlabelled', 'own_views')}"
        )
    several = {
        folder
        for layout in layouts.values()
        if not layout.direct and len(layout.folders) > 1
        for folder in layout.folders
    }
    by_split = {
        split: layout.folders
        for split, layout in layouts.items()
        if not layout.direct
        and (len(layout.folders) > 1 or several.intersection(layout.folders))
    }
    folders, root = own.folders, place.root
    if place.split in by_split:
        return by_split, ""
    if own.direct and (len(folders) > 1 or several):
        why = (
            f"{len(own.direct):,} of {count:,} images are directly in {root},"
            f" such as {own.direct[0]}"
        )
        advice = (
            f": to take the folders {few(folders)} as classes, move them, or"
            f" set {errors.arg('unlabelled', 'own_views')}"
            if folders
            else f": those of {few(sorted(by_split))} are in folders of classes"
        )
    elif own.direct or not folders:
        return {}, "images directly in the folder"
    else:
        below = os.path.join(root, folders[0])
        why = f"all images are in {below}"
        inner = _layout(below).folders
        if len(inner) > 1:
            advice = f": to take {few(inner)} in it as classes, " + (
                f"use folder:{below}"
                if len(place.splits) == 1
                else f"move them to {root}"
            )
        elif by_split:
            advice = f", which is no class of {few(sorted(by_split))}"
        else:
            return {}, why
    terminal.warning(
        f"{name}: {place.split} has no labels, since {why}{advice}"
    )
    return {}, why


def _is_unlabelled(folder: str) -> bool:
    """Whether a folder is named for images without a label."""
    name = folder.lower().replace("-", "").replace("_", "")
    return name in ("unlabelled", "unlabeled")


def _tree(name: str, path: str, place: _Place, may_lack: bool) -> ImageFiles:
    """Lists the images of a split."""
    root = place.root
    images, others, hidden = list[str](), list[str](), list[str]()
    for content in walk(root):
        hidden += content.hidden
        for file in content.files:
            if image_files.is_image(file):
                images.append(os.path.join(content.path, file))
            else:
                others.append(image_files.extension(file))
    images.sort()
    # Millions of texts take several times as much memory.
    paths = Names.of(images)
    del images
    left_out = ", ".join(filter(None, (counts(others), counts(hidden))))
    heic = decoding.lacking(others)
    if not paths:
        advice = f"use a folder of {' '.join(decoding.extensions())} files"
        if any(".tfrec" in extension for extension in others):
            advice = f"use tfrecord:{root}"
        raise errors.UserError(
            f"{name}: no images under {root} ({left_out or 'no files'}{heic}):"
            f" {advice}"
        )
    if others:
        bare = others.count(image_files.NO_EXTENSION)
        are_images = bare > len(paths) or not _PICTURES.isdisjoint(others)
        tell = terminal.warning if are_images else terminal.info
        tell(f"{name}: files that are not read: {counts(others)}{heic}")
    names = Names.of(path[len(root) :].strip("/") for path in paths)
    _refuse_inner_splits(name, root, names)
    of = [
        sys.intern(name.split("/")[0]) if "/" in name else "" for name in names
    ]
    own = _Layout(sorted({*of} - {""}), [n for n in names if "/" not in n])
    by_split, why = _classes(name, place, own, len(names), may_lack)
    found = {"left_out": left_out, "splits": _shown(place)}
    tree = ImageFiles(path, paths, names, split_spec.random_order(names), ())
    if by_split:
        label_names, number = classes.numbered(name, place.split, by_split)
        if may_lack:
            without = [label for label in of if label not in number]
            number |= dict.fromkeys(without, -1)
            found["without_label"] = without_label(len(without), len(of))
        labels = np.array([number[label] for label in of], np.int64)
        tree = tree._replace(labels=labels, label_names=label_names)
        found["labels"] = f"names of the folders in {root}"
        as_split = few(filter(split_spec.meaning, own.folders))
        if as_split and root != path:
            terminal.warning(f"{name}: {as_split} in {root} is read as a class")
        deeper = sorted(
            {"/".join(n.split("/")[:2]) for n in names if n.count("/") > 1}
        )
        found["deeper_folders"] = few(deeper)
        _tell_kinds(name, root, own.folders, deeper)
        _tell_empty(name, root, own.folders)
        if lacking := sorted(
            {*label_names} - {label_names[i] for i in np.unique(labels)}
        ):
            found["classes_elsewhere"] = few(lacking)
    else:
        found["labels"] = f"none: {why}"
    rows = tuple((what, value) for what, value in found.items() if value)
    return tree._replace(found=rows)


def _shown(place: _Place) -> str:
    return ", ".join(
        folder
        if split_spec.meaning(folder) in (folder, None)
        else f"{split_spec.meaning(folder)} ({folder})"
        for folder in place.splits
    )


def _tell_kinds(
    name: str, root: str, folders: list[str], deeper: list[str]
) -> None:
    """Warns of folders that are read as classes and may be none.

    Args:
      name: of the dataset.
      root: the folder of the classes.
      folders: the classes.
      deeper: folders with images in them, CLASS/FOLDER.
    """
    if kinds := [folder for folder in folders if folder.lower() in _KINDS]:
        terminal.warning(
            f"{name}: {few(kinds)} in {root} are read as classes: if they are"
            f" none, use one of them alone, such as folder:{root}/NAME"
        )
    inner = Counter(os.path.basename(folder) for folder in deeper)
    common = sorted(folder for folder, count in inner.items() if count > 1)
    if len(common) > 1:
        terminal.warning(
            f"{name}: the classes are {few(folders)}, several of which have"
            f" folders {few(common)}: if those are the classes, move them to"
            f" {root}, or use one of the others, such as"
            f" folder:{os.path.join(root, folders[0])}"
        )


def _tell_empty(name: str, root: str, used: Iterable[str]) -> None:
    """Warns of folders that are no classes."""
    empty = sorted({*_folders(root)} - {*used})
    parts = []
    for folder in empty:
        if not _is_alias(root, folder):
            files = [
                image_files.extension(file)
                for content in walk(os.path.join(root, folder))
                for file in content.files
            ]
            parts.append(f"{folder} ({counts(files) or 'empty'})")
    if parts:
        terminal.warning(
            f"{name}: folders without images are no classes: {few(parts)}"
        )


def folder(name: str, options: Folder, split: str, access: Access) -> Source:
    """Opens `folder:PATH`.

    The folders in PATH that have images, sorted by name, are the classes;
    images count at any depth. A PATH with images directly in it, or with a
    single folder, has no labels. With `reading.unlabelled` "own_views" only
    these images have none, and those in a folder named unlabelled.
    PATH/train, PATH/test, ... are the splits if they exist, in any spelling of
    `split_spec.meaning`. Without others, `reading.test_fraction` of PATH, or
    PATH/train, is the split test. A slice is a random sample, always the same.
    """
    path = os.path.expanduser(options.path).rstrip("/") or "/"
    _check_path(name, path)
    try:
        place = _place(name, path, split, access.reading)
        may_lack = access.reading.admits_unlabelled
        tree = _tree(name, path, place, may_lack)
    except UnicodeDecodeError as error:
        raise errors.UserError(
            f"{name}: the name of a file or folder is not UTF-8"
            f" ({error.object!r}): rename it"
        ) from error
    return image_files.source(name, split, access, tree, place.held_out)


def _check_path(name: str, path: str) -> None:
    if tf.io.gfile.isdir(path):
        return
    if not tf.io.gfile.exists(path):
        raise errors.AbsentDataError(
            f"{name}: {path} is absent: use a folder of images"
        )
    ending = image_files.extension(path)
    advice = (
        f"use its folder, folder:{os.path.dirname(path) or '.'}"
        if image_files.is_image(path)
        else f"use csv:{path}"
        if ending in (".csv", ".tsv", ".txt")
        else f"use tfrecord:{path}"
        if "tfrecord" in path
        else "use a folder of images, unpacked"
    )
    raise errors.AbsentDataError(f"{name}: {path} is a file: {advice}")
