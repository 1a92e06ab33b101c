"""Image files that a listing names: opened after a look at each.

A record is a path, what the look found, and its label, if any; files are read
when they are decoded, so that any number of them is shuffled as a whole.
"""

import dataclasses
import functools
import os

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding, looking, paths, split_spec
from tf_contrastive.datasets.listing import Listing, few
from tf_contrastive.datasets.looking import JPEG, PILLOW, PNG
from tf_contrastive.datasets.source import (
    Access,
    Info,
    Record,
    Source,
    in_memory,
)


def _decode(record: Record, ways: tuple[int, ...], turn: bool) -> Record:
    """Decodes the file of a record.

    Args:
      record: its `path`, `way`, `turn` and `size`, and maybe `label` and
        `halvings`.
      ways: those that the records have.
      turn: whether any image may be turned.
    """
    contents = tf.io.read_file(record["path"])
    by_way = {
        JPEG: lambda: decoding.decode_jpeg(contents, record.get("halvings")),
        PNG: lambda: decoding.decode_png(contents),
        PILLOW: lambda: decoding.pillow(contents, turn),
    }
    image = by_way[ways[0]]()
    if len(ways) > 1:
        branches = [by_way[way] for way in ways]
        place = tf.searchsorted(ways, [tf.cast(record["way"], tf.int32)])[0]
        image = tf.switch_case(place, branches)
    image.set_shape([None, None, 3])
    if turn and ways != (PILLOW,):
        image = decoding.upright(image, tf.cast(record["turn"], tf.int32))
    example = {"image": image}
    return example | {k: record[k] for k in ("label",) if k in record}


def open_listing(
    name: str, split: str, access: Access, listing: Listing
) -> Source:
    """Opens the files of a listing, without unreadable ones.

    Raises:
      UserError: if too many are unreadable, or absent.
    """
    reading = access.reading
    look = functools.partial(
        looking.at_files,
        place=listing.place,
        reading=reading,
    )
    total, every = len(listing.paths), None
    names = paths.texts(listing.names)
    order = np.arange(total)
    if listing.is_mixed or listing.holds_out:
        by_names = split_spec.random_order(names)
        order = by_names if listing.is_mixed else order
    if listing.holds_out:
        test = split_spec.held_out(
            by_names, listing.labels, reading.test_fraction
        )
        every = look(paths.Paths(listing.paths))
        test = split_spec.without_copies(test, every.digests)
        order = order[test[order] == (split_spec.parse(split)[0] == "test")]
    start, stop = split_spec.bounds(split, len(order))
    taken = np.sort(order[start:stop])
    del order
    chosen = paths.Paths(listing.paths.take(taken))
    labels = None if listing.labels is None else listing.labels[taken]
    found = every.select(taken) if every else look(chosen)
    is_absent = ~found.readable & (found.formats == looking.ABSENT)
    if is_absent.sum() > min(reading.max_bad_images, len(chosen) // 2):
        absent = [chosen[i] for i in np.flatnonzero(is_absent)[:4].tolist()]
        raise errors.UserError(
            f"{name}: {is_absent.sum():,} of {len(chosen):,} files do not exist"
            f" ({few(absent)}): write whole names, with / between folders, from"
            f" the folder of {listing.place}"
        )
    good, shape, bad = looking.check(name, chosen, found, reading)
    found = found.select(good)
    rows = {"size": found.sizes, "way": found.ways, "turn": found.turns}
    if labels is not None:
        rows["label"] = labels[good]
    about = {"files": found.counts()} | listing.found
    info = Info(
        name,
        split,
        len(good),
        listing.num_classes or len(listing.classes) or None,
        shape,
        listing.classes,
        bad,
        unlabelled=labels is not None and bool((rows["label"] < 0).any()),
        by_pillow=found.by_pillow,
        found=tuple(item for item in about.items() if item[1]),
    )
    ways = tuple(np.unique(found.ways).tolist())
    is_turned = reading.exif == "apply" and (
        PILLOW in ways or bool((found.turns > 1).any())
    )
    decode = functools.partial(_decode, ways=ways, turn=is_turned)
    whole = in_memory(rows, decode, info, paths=chosen.take(good))
    return dataclasses.replace(whole, digests=found.digests)


def from_paths(files: list[str], reading: Reading) -> Source:
    """Opens images by their paths, in order and without labels.

    Any number of unreadable ones is left out, and reported.

    Raises:
      UserError: if none can be read.
    """
    every = dataclasses.replace(
        reading, max_bad_images=len(files), test_fraction=0.0
    )
    # What is remembered of a folder's files must not become that of these.
    place = f"paths in {os.path.dirname(files[0])}"
    array = paths.array_of(files)
    listing = Listing(place, array, array, {})

    def no_other(name: str, split: str) -> Source:
        raise NotImplementedError

    access = Access(None, every, no_other)
    return open_listing("images", "train", access, listing)
