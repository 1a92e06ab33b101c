"""Image files that a folder or a table lists: classes, splits, and a look.

A record is a path, what the look found, and its label, if any; files are read
when they are decoded, so that any number of them is shuffled as a whole.
"""

import dataclasses
import functools
import re
import unicodedata
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import (
    decoding,
    float_images,
    looking,
    paths,
    split_spec,
)
from tf_contrastive.datasets.looking import JPEG, PILLOW, PNG
from tf_contrastive.datasets.source import Info, Record, Source, in_memory

# How anything else is read.
OWN = "or name a function of your own as the dataset, module:name"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")


class Listing(NamedTuple):
    """The image files of all splits."""

    place: str  # The folder, or the table.
    # Of each file `path`; `name`, which does not depend on where the place is;
    # `label`, "" without one; and `split`: texts, these two as dictionaries.
    rows: pa.Table
    found: dict[str, str]  # Rows of `Info.found`.
    has_numbers: bool = False  # Whether integers are used unchanged as labels.
    # Whether slices are random samples, in an order by the names.
    is_mixed: bool = False

    def column(self, key: str, split: str) -> pa.Array:
        """Returns a column of a split's files."""
        is_own = pc.equal(self.rows["split"], split)
        return self.rows[key].filter(is_own).combine_chunks()


class Labels(NamedTuple):
    """The labels of a split."""

    numbers: np.ndarray | None  # int32 [n], -1 of a file without one.
    names: tuple[str, ...]  # One per class, or none.
    classes: int | None  # Their number.


# ---- Splits ------------------------------------------------------------------


def _choose_split(
    name: str, listing: Listing, split: str, reading: Reading
) -> tuple[str, bool]:
    """Returns the split to open, and whether a part of it is held out.

    Raises:
      UserError: if it is not there, or nothing can be held out.
    """
    wanted = base = split_spec.base(split)
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


def _read_labels(
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
        own = listing.column("label", one)
        by_split[one] = {*pc.unique(own).to_pylist()} - missing
    if not by_split[split]:
        return Labels(None, (), None)
    every = set().union(*by_split.values())
    is_number = listing.has_numbers and all(map(_NUMBER.fullmatch, every))
    if is_number:
        number = {label: _integer(name, label) for label in every}
    else:
        number = {label: i for i, label in enumerate(sorted(every))}
    known = listing.column("label", split)
    codes = [number.get(x, -1) for x in known.dictionary.to_pylist()]
    # Larger ones are refused, by the number of classes.
    of_code = np.clip(codes, -2, 2**31 - 1).astype(np.int32)
    labels = of_code[known.indices.to_numpy()]
    lacking = labels < (-1 if reading.admits_unlabelled else 0)
    if lacking.any():
        raise errors.UserError(
            f"{name}: {lacking.sum():,} of {len(labels):,} images of {split}"
            " have no label, or one below 0, such as"
            f" {listing.column('name', split)[int(labels.argmin())]}: label"
            " all from 0, or none,"
            f" or, if -1 is none, set {errors.arg('unlabelled', 'own_views')}"
        )
    _check_trained(name, by_split[split], split, by_split.get("train", set()))
    names = () if is_number else tuple(number)
    return Labels(labels, names, max(number.values()) + 1)


def _integer(name: str, label: str) -> int:
    if not float(label).is_integer():
        raise errors.UserError(
            f"{name}: label {label[:20]}: write integers from 0, or names"
        )
    return int(float(label))


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


# ---- Opening -----------------------------------------------------------------


def _decode(
    record: Record, ways: tuple[int, ...], is_turned: bool, reading: Reading
) -> Record:
    """Decodes the file of a record, of which all have one of `ways`."""
    contents = tf.io.read_file(record["path"])
    by_way = {
        JPEG: lambda: decoding.decode_jpeg(contents, record.get("halvings")),
        PNG: lambda: decoding.decode_png(contents),
        PILLOW: lambda: decoding.pillow(contents, turn=True),
    }
    if reading.float_channels is not None:
        by_way = {PILLOW: lambda: float_images.decode(contents, reading)}
    image = by_way[ways[0]]()
    if len(ways) > 1:
        branches = [by_way[way] for way in ways]
        place = tf.searchsorted(ways, [tf.cast(record["way"], tf.int32)])[0]
        image = tf.switch_case(place, branches)
    image.set_shape([None, None, reading.channels])
    if is_turned:
        image = decoding.upright(image, tf.cast(record["turn"], tf.int32))
    example = {"image": image}
    return example | {k: record[k] for k in ("label",) if k in record}


def _choose_files(
    name: str, listing: Listing, split: str, reading: Reading
) -> tuple[paths.Paths, Labels, np.ndarray | None]:
    """Returns a split's files, their labels, and what a look at all found."""
    own, holds_out = _choose_split(name, listing, split, reading)
    labels = _read_labels(name, listing, own, reading)
    files, found = listing.column("path", own), None
    order = np.arange(len(files))
    if listing.is_mixed or holds_out:
        names = paths.texts(listing.column("name", own))
        by_names = split_spec.random_order(names)
        order = by_names if listing.is_mixed else order
    if holds_out:
        test = split_spec.held_out(
            by_names, labels.numbers, reading.test_fraction
        )
        found = looking.look(paths.Paths(files), listing.place, reading)
        test = split_spec.without_copies(test, found["digest"])
        order = order[test[order] == (split_spec.base(split) == "test")]
    start, stop = split_spec.bounds(split, len(order))
    rows = np.sort(order[start:stop])
    chosen = paths.Paths(files.take(pa.array(rows)))
    if labels.numbers is not None:
        labels = labels._replace(numbers=labels.numbers[rows])
    return chosen, labels, None if found is None else found[rows]


def open_listing(
    name: str, split: str, reading: Reading, listing: Listing
) -> Source:
    """Opens the files of a listing, without unreadable ones.

    Raises:
      UserError: if too many are unreadable, or absent.
    """
    chosen, labels, found = _choose_files(name, listing, split, reading)
    if found is None:
        found = looking.look(chosen, listing.place, reading)
    good, bad = looking.check(name, chosen, found, reading)
    found = found[good]
    sizes = np.stack([found["height"], found["width"]], axis=1)
    rows = {"size": sizes, "way": found["way"], "turn": found["turn"]}
    if labels.numbers is not None:
        rows["label"] = labels.numbers[good]
    formats = [looking.FORMATS[i] for i in np.unique(found["format"])]
    lacking = np.count_nonzero(rows.get("label", np.zeros([0])) < 0)
    about = {
        "files": ", ".join(formats),
        **listing.found,
        "splits": ", ".join(pc.unique(listing.rows["split"]).to_pylist()),
        "without_label": f"{lacking:,} images" * bool(lacking),
    }
    ways = tuple(np.unique(found["way"]).tolist())
    is_uniform = (sizes == sizes[0]).all()
    info = Info(
        name,
        split,
        len(good),
        labels.classes,
        (*sizes[0].tolist(), reading.channels) if is_uniform else None,
        labels.names,
        bad,
        unlabelled=bool(lacking > 0),
        float_channels=reading.float_channels,
        colors=reading.colors,
        by_pillow=PILLOW in ways,
        found=tuple(about.items()),
    )
    is_turned = bool((found["turn"] > 1).any())
    decode = functools.partial(
        _decode, ways=ways, is_turned=is_turned, reading=reading
    )
    chosen = chosen.take(good) if bad else chosen
    whole = in_memory(rows, decode, info, paths=chosen)
    return dataclasses.replace(whole, digests=found["digest"].copy())
