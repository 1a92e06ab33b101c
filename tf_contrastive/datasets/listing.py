"""The images of a split as a folder or a table lists them, before a look."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tf_contrastive.base import errors, terminal

# How anything else is read.
OWN = (
    "or read it by a function of your own, with"
    f" {errors.arg('dataset', 'module:name')}"
)


class Listing(NamedTuple):
    """The image files of a split.

    Attributes:
      place: the folder, or the table.
      paths: of the files, LargeString [n].
      names: of the files, which do not depend on where the place is,
        LargeString [n].
      found: rows of `Info.found`.
      labels: int32 [n], -1 of a file without one; None: none has one.
      classes: a name per class, or ().
      num_classes: number of classes, if they have no names.
      is_mixed: whether slices are random samples, in an order by the names.
      holds_out: whether the files are those of both train and test.
    """

    place: str
    paths: pa.Array
    names: pa.Array
    found: dict[str, str]
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    num_classes: int | None = None
    is_mixed: bool = False
    holds_out: bool = False


def counts(values: Iterable[str], most: int = 5) -> str:
    """Counts values, such as "12 .jpg, 3 .png"."""
    counted = Counter(values).most_common()
    return few((f"{count:,} {value}" for value, count in counted), most)


def few(names: Iterable[str], most: int = 3) -> str:
    """Joins names, at most some of them."""
    every = list(names)
    return ", ".join(every[:most]) + ", ..." * (len(every) > most)


def extension(name: str) -> str:
    """Returns a file's extension, in words."""
    return os.path.splitext(name)[1].lower() or "without extension"


def without_label(number: int, total: int) -> str:
    """Says how many images lack a label; empty: none does."""
    return f"{number:,} of {total:,} images" * bool(number)


# ---- Classes -----------------------------------------------------------------


def _spoken(name: str) -> str:
    """Returns a name without letter case, separators and forms of Unicode."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\s_-]+", " ", plain).strip()


def number_names(
    name: str, split: str, by_split: Mapping[str, set[str]]
) -> dict[str, int]:
    """Numbers the classes of all splits in sorted order.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: names of classes.

    Raises:
      UserError: if the names of two splits differ in letter case or separators
        only.
    """
    classes = sorted(set().union(*by_split.values()))
    groups: dict[str, list[str]] = {}
    for each in classes:
        groups.setdefault(_spoken(each), []).append(each)
    for group in groups.values():
        if len(group) == 1:
            continue
        text = (
            f"{name}: the classes {' and '.join(map(ascii, group))} differ in"
            " letter case, separators or the form of Unicode only: if they are"
            " one class, give them one name"
        )
        if not any(held.issuperset(group) for held in by_split.values()):
            raise errors.UserError(text)
        terminal.warning(text)
    _compare(name, split, by_split)
    return {each: number for number, each in enumerate(classes)}


def count_integers(
    name: str, split: str, by_split: Mapping[str, set[int]]
) -> int:
    """Checks labels that are integers; returns the number of classes.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: the labels that occur.

    Raises:
      UserError: for labels below 0.
    """
    every = set().union(*by_split.values())
    smallest, count = min(every), max(every) + 1
    if smallest < 0:
        raise errors.UserError(
            f"{name}: its smallest label is {smallest}: write labels of at"
            " least 0, or, if -1 is none, set"
            f" {errors.arg('unlabelled', 'own_views')}"
        )
    if smallest > 0 or 2 * len(every) < count:
        terminal.warning(
            f"{name}: {count - len(every):,} of {count:,} classes have no"
            " image: number the classes from 0, without gaps"
        )
    _compare(name, split, by_split)
    return count


def _compare(name: str, split: str, by_split: Mapping[str, set]) -> None:
    """Warns of classes of a split that are never trained."""
    held = by_split[split]
    if new := sorted(held - by_split.get("train", held)):
        terminal.warning(
            f"{name}: {len(new)} of the {len(held)} classes of {split} are not"
            f" in train, such as {new[0]}"
        )
