"""Image files that a listing names: opened after a look at each.

A record is a path, what the look found, and its label, if any; files are read
when they are decoded, so that any number of them is shuffled as a whole.
"""

import dataclasses
import functools
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding, looking, paths, split_spec
from tf_contrastive.datasets.listing import (
    Listing,
    choose_split,
    read_labels,
    table,
)
from tf_contrastive.datasets.looking import JPEG, PILLOW, PNG
from tf_contrastive.datasets.source import (
    Access,
    Info,
    Record,
    Source,
    in_memory,
)


def _decode(record: Record, ways: tuple[int, ...], is_turned: bool) -> Record:
    """Decodes the file of a record.

    Args:
      record: its `path`, `way`, `turn` and `size`, and maybe `label` and
        `halvings`.
      ways: those that the records have.
      is_turned: whether any image that TensorFlow decodes is.
    """
    contents = tf.io.read_file(record["path"])
    by_way = {
        JPEG: lambda: decoding.decode_jpeg(contents, record.get("halvings")),
        PNG: lambda: decoding.decode_png(contents),
        PILLOW: lambda: decoding.pillow(contents, turn=True),
    }
    image = by_way[ways[0]]()
    if len(ways) > 1:
        branches = [by_way[way] for way in ways]
        place = tf.searchsorted(ways, [tf.cast(record["way"], tf.int32)])[0]
        image = tf.switch_case(place, branches)
    image.set_shape([None, None, 3])
    if is_turned:
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
    own, holds_out = choose_split(name, listing, split, reading)
    labels = read_labels(name, listing, own, reading)
    splits = listing.rows["split"]
    lines = listing.rows.filter(pc.equal(splits, own))
    every = None
    files = lines["path"].combine_chunks()
    order = np.arange(len(lines))
    if listing.is_mixed or holds_out:
        named = lines["name"].combine_chunks()
        by_names = split_spec.random_order(paths.texts(named))
        order = by_names if listing.is_mixed else order
    if holds_out:
        test = split_spec.held_out(
            by_names, labels.numbers, reading.test_fraction
        )
        every = looking.look(paths.Paths(files), listing.place)
        test = split_spec.without_copies(test, every["digest"])
        order = order[test[order] == (split_spec.parse(split)[0] == "test")]
    start, stop = split_spec.bounds(split, len(order))
    taken = np.sort(order[start:stop])
    del order
    chosen = paths.Paths(files.take(pa.array(taken)))
    if every is None:
        found = looking.look(chosen, listing.place)
    else:
        found = every[taken]
    good, bad = looking.check(name, chosen, found, reading.max_bad_images)
    found = found[good]
    sizes = np.stack([found["height"], found["width"]], axis=1)
    rows = {"size": sizes, "way": found["way"], "turn": found["turn"]}
    if labels.numbers is not None:
        rows["label"] = labels.numbers[taken][good]
    formats = [decoding.FORMATS[i] for i in np.unique(found["format"])]
    lacking = np.count_nonzero(rows.get("label", np.zeros([0])) < 0)
    about = {
        "files": ", ".join(formats),
        **listing.found,
        "splits": ", ".join(pc.unique(splits).to_pylist()),
        "without_label": f"{lacking:,} images" * bool(lacking),
    }
    ways = tuple(np.unique(found["way"]).tolist())
    is_uniform = (sizes == sizes[0]).all()
    info = Info(
        name,
        split,
        len(good),
        labels.classes,
        (*sizes[0].tolist(), 3) if is_uniform else None,
        labels.names,
        bad,
        unlabelled=bool(lacking > 0),
        by_pillow=PILLOW in ways,
        found=tuple(about.items()),
    )
    is_turned = bool((found["turn"] > 1).any())
    decode = functools.partial(_decode, ways=ways, is_turned=is_turned)
    whole = in_memory(rows, decode, info, paths=chosen.take(good))
    return dataclasses.replace(whole, digests=found["digest"].copy())


def from_paths(files: list[str], reading: Reading) -> Source:
    """Opens images by their paths, in order; unreadable ones are left out.

    Raises:
      UserError: if none can be read.
    """
    if not files:
        raise errors.UserError("there are no images: name files or a folder")
    every = dataclasses.replace(
        reading, max_bad_images=len(files), test_fraction=0.0
    )
    # What is remembered of a folder's files must not become that of these.
    place = f"paths in {os.path.dirname(files[0])}"
    array, none = paths.array_of(files), paths.array_of([""] * len(files))
    split = paths.array_of(["train"] * len(files))
    columns = {"path": array, "name": array, "label": none, "split": split}
    listing = Listing(place, table(columns), {})

    def no_other(name: str, split: str) -> Source:
        raise NotImplementedError

    access = Access(None, every, no_other)
    return open_listing("images", "train", access, listing)
