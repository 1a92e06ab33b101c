"""Image files, which folders and lists name: their records and decoding.

A record is a path and its label, if any; files are read when they are decoded,
so that any number of them is shuffled as a whole.
"""

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import (
    absent_files,
    decoding,
    split_spec,
    verified_files,
)
from tf_contrastive.datasets.names import Names
from tf_contrastive.datasets.source import (
    Access,
    Info,
    Record,
    Source,
    in_memory,
)

NO_EXTENSION = "without extension"


class ImageFiles(NamedTuple):
    """The image files of a split.

    Attributes:
      place: the folder, or the list.
      paths: of the files.
      names: of the files, which do not depend on where the place is.
      order: of slices, int [n].
      found: rows of `Info.found`.
      labels: int [n], or None.
      label_names: a name per class, or ().
      num_classes: number of classes, if they have no names.
      listed_in: the folder that relative paths of a list start at; None: the
        files were found in a folder, so that none is absent.
    """

    place: str
    paths: Sequence[str]
    names: Sequence[str]
    order: np.ndarray
    found: tuple[tuple[str, str], ...]
    labels: Sequence[int] | np.ndarray | None = None
    label_names: tuple[str, ...] = ()
    num_classes: int | None = None
    listed_in: str | None = None


def is_image(name: str) -> bool:
    """Whether a file's name has the extension of an image."""
    return name.lower().endswith(decoding.extensions())


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
    # It imports this module.
    from tf_contrastive.datasets import image_folders

    paths = [
        os.path.join(content.path, name)
        for content in image_folders.walk(path)
        for name in content.files
        if is_image(name)
    ]
    if not paths:
        raise errors.UserError(
            f"{path} has no images: use {', '.join(decoding.formats())} files"
        )
    return sorted(paths)


def counts(values: Iterable[str], most: int = 5) -> str:
    """Counts values, such as "12 .jpg, 3 .png"."""
    counted = Counter(values).most_common()
    few = ", ".join(f"{count:,} {value}" for value, count in counted[:most])
    return few + ", ..." * (len(counted) > most)


def few(names: Iterable[str], most: int = 3) -> str:
    """Joins names, at most some of them."""
    every = list(names)
    return ", ".join(every[:most]) + ", ..." * (len(every) > most)


def without_label(number: int, total: int) -> str:
    """Says how many images lack a label; empty: none does."""
    return f"{number:,} of {total:,} images" * bool(number)


def extension(name: str) -> str:
    """Returns a file's extension, in words."""
    return os.path.splitext(name)[1].lower() or NO_EXTENSION


def holds_out(split: str, reading: Reading) -> bool:
    """Whether a split is made of data that have only train."""
    is_made = split_spec.parse(split)[0] in ("train", "test")
    return reading.test_fraction > 0 and is_made


def _decode(record: Record, decoder: Callable[..., tf.Tensor]) -> Record:
    contents = tf.io.read_file(record["path"])
    image = decoder(contents, halvings=record.get("halvings"))
    example = {"image": image}
    return example | {k: record[k] for k in ("label",) if k in record}


def source(
    name: str, split: str, access: Access, files: ImageFiles, held_out: bool
) -> Source:
    """Takes the files of a split, leaves out unreadable ones.

    With `held_out` the files are those of train and of test.
    """
    reading = access.reading
    every, labels = Names.of(files.paths), files.labels
    rows = {} if labels is None else {"label": np.array(labels, np.int64)}
    order = files.order
    upright = reading.exif == "apply"

    def verified(paths: Names) -> decoding.Found:
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
        everything = verified(every)
        test = split_spec.without_copies(test, everything.digests)
        order = order[test[order] == (split_spec.parse(split)[0] == "test")]
    start, stop = split_spec.bounds(split, len(order))
    taken = np.sort(order[start:stop])
    rows = {key: row[taken] for key, row in rows.items()}
    paths = every.take(taken)
    found = everything.select(taken) if everything else verified(paths)
    absent: list[str] = []
    if files.listed_in is not None:
        is_absent = absent_files.check(
            name, files.listed_in, paths, ~found.readable, reading
        )
        absent = list(paths.take(np.flatnonzero(is_absent)))
        present = np.flatnonzero(~is_absent)
        found, paths = found.select(present), paths.take(present)
        rows = {key: row[present] for key, row in rows.items()}
    rows["size"] = found.sizes
    good, shape, bad = decoding.check(name, paths, found, reading)
    kept = {key: row[good] for key, row in rows.items()}
    about = (("files", found.counts()), *files.found)
    if absent:
        about = (*about, ("absent_files", f"{len(absent):,}: {few(absent)}"))
    if "label" in rows:
        lost = np.setdiff1d(
            rows["label"], [-1, *np.unique(kept["label"])]
        ).tolist()
        names = files.label_names
        if lost:
            terminal.warning(
                f"{name}: no image can be read of {len(lost)} of the classes,"
                f" such as {names[lost[0]] if names else lost[0]}"
            )
    info = Info(
        name,
        split,
        len(good),
        files.num_classes or len(files.label_names) or None,
        shape,
        files.label_names,
        (*absent, *bad),
        unlabelled="label" in kept and bool((kept["label"] < 0).any()),
        by_pillow=found.by_pillow,
        found=about,
    )
    decode = functools.partial(_decode, decoder=found.decoder(upright))
    whole = in_memory(kept, decode, info, paths=paths.take(good))
    return dataclasses.replace(whole, digests=found.digests[good])
