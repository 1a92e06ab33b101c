"""The images of all splits as a folder or a table lists them, before a look."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import split_spec

# How anything else is read.
OWN = (
    "or read it by a function of your own, with"
    f" {errors.arg('dataset', 'module:name')}"
)
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
# At most 18 digits, which fit into any integer.
_INTEGER = re.compile(r"([-+]?)0*([0-9]{1,18})(\.0*)?")


class Listing(NamedTuple):
    """The image files of all splits.

    Attributes:
      place: the folder, or the table.
      rows: of each file `path`; `name`, which does not depend on where the
        place is; `label`, "" without one; and `split`: texts.
      found: rows of `Info.found`.
      has_numbers: whether labels that are integers are used unchanged.
      is_mixed: whether slices are random samples, in an order by the names.
    """

    place: str
    rows: pa.Table
    found: dict[str, str]
    has_numbers: bool = False
    is_mixed: bool = False


class Labels(NamedTuple):
    """The labels of a split.

    Attributes:
      numbers: int32 [n], -1 of a file without one; None: none has one.
      names: a name per class, or ().
      classes: their number; None without labels.
    """

    numbers: np.ndarray | None
    names: tuple[str, ...]
    classes: int | None


def table(columns: Mapping[str, pa.Array]) -> pa.Table:
    """Returns `Listing.rows`, in which labels and splits take few bytes."""
    return pa.table(
        {
            key: column.dictionary_encode()
            if key in ("label", "split")
            else column
            for key, column in columns.items()
        }
    )


def few(names: Iterable[str], most: int = 3) -> str:
    """Joins names, at most some of them."""
    every = list(names)
    return ", ".join(every[:most]) + ", ..." * (len(every) > most)


def extensions(names: Iterable[str]) -> str:
    """Counts the extensions of files, such as "12 .jpg, 3 .png"."""
    endings = (os.path.splitext(name)[1].lower() for name in names)
    counted = Counter(end or "without extension" for end in endings)
    return few((f"{n:,} {end}" for end, n in counted.most_common()), 5)


# ---- Splits ------------------------------------------------------------------


def choose_split(
    name: str, listing: Listing, split: str, reading: Reading
) -> tuple[str, bool]:
    """Returns the split to open, and whether a part of it is held out.

    Raises:
      UserError: if it is not there, or nothing can be held out.
    """
    base = split_spec.parse(split)[0]
    wanted = split_spec.meaning(base) or base
    known = sorted(pc.unique(listing.rows["split"]).to_pylist())
    holds_out = known == ["train"] and reading.test_fraction > 0
    if holds_out and wanted == "test":
        wanted = "train"
    if wanted not in known:
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}, only {', '.join(known)}: write one,"
            f" or, if there is only train, set"
            f" {errors.arg('test_fraction', '0.2')}"
        )
    if not holds_out:
        split_spec.refuse_fraction(name, reading, "it has splits")
    return wanted, holds_out


# ---- Classes -----------------------------------------------------------------


def read_labels(
    name: str, listing: Listing, split: str, reading: Reading
) -> Labels:
    """Returns the labels of a split, with classes of all splits.

    Raises:
      UserError: if a part of its images has no label, or for labels that
        cannot be told apart.
    """
    missing = {"", *["-1"] * reading.admits_unlabelled}
    by_split: dict[str, set[str]] = {}
    for one in pc.unique(listing.rows["split"]).to_pylist():
        own = listing.rows.filter(pc.equal(listing.rows["split"], one))
        by_split[one] = {*pc.unique(own["label"]).to_pylist()} - missing
    if not by_split[split]:
        return Labels(None, (), None)
    rows = listing.rows.filter(pc.equal(listing.rows["split"], split))
    every = set().union(*by_split.values())
    is_number = listing.has_numbers and all(map(_NUMBER.fullmatch, every))
    if is_number:
        number = {label: _integer(name, label) for label in every}
    else:
        number = {label: i for i, label in enumerate(sorted(every))}
    known = rows["label"].combine_chunks()
    codes = [number.get(x, -1) for x in known.dictionary.to_pylist()]
    # Larger ones are refused, by the number of classes.
    of_code = np.minimum(codes, 2**31 - 1).astype(np.int32)
    labels = of_code[known.indices.to_numpy()]
    lacking = labels < (-1 if reading.admits_unlabelled else 0)
    if lacking.any():
        raise errors.UserError(
            f"{name}: {lacking.sum():,} of {len(labels):,} images of {split}"
            " have no label, or one below 0, such as"
            f" {rows['name'][int(labels.argmin())]}: label all from 0, or none,"
            f" or, if -1 is none, set {errors.arg('unlabelled', 'own_views')}"
        )
    _check_trained(name, by_split[split], split, by_split.get("train", set()))
    names = () if is_number else tuple(number)
    return Labels(labels, names, max(number.values()) + 1)


def _integer(name: str, label: str) -> int:
    match = _INTEGER.fullmatch(label)
    if not match:
        raise errors.UserError(
            f"{name}: label {label[:20]}: write integers from 0, or names"
        )
    return int(match[1] + match[2])


def _spoken(name: str) -> str:
    """Returns a name without letter case, separators and forms of Unicode."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\s_-]+", " ", plain).strip()


def _check_trained(
    name: str, classes: set[str], split: str, trained: set[str]
) -> None:
    """Warns of classes that train does not have.

    Raises:
      UserError: if train has one that sounds alike.
    """
    new = sorted(classes - trained) if trained else []
    spoken = {_spoken(each): each for each in trained}
    for each in new:
        if other := spoken.get(_spoken(each)):
            raise errors.UserError(
                f"{name}: the class {each!a} of {split} and {other!a} of train"
                " differ in letter case, separators or the form of Unicode"
                " only: give them one name"
            )
    if new:
        terminal.warning(
            f"{name}: {len(new)} of the {len(classes)} classes of {split} are"
            f" not in train, such as {new[0]}"
        )
