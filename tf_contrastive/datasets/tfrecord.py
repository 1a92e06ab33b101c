"""TFRecord files of `tf.train.Example` with an encoded image each."""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.dataset import TFRecord
from tf_contrastive.datasets import (
    decoding,
    listing,
    looking,
    record_features,
    record_files,
    split_spec,
    tfds_source,
)
from tf_contrastive.datasets.source import (
    Access,
    Files,
    Info,
    Source,
    in_files,
)

# In a path: the name of the split.
_SPLIT = "{split}"
_SHARD = re.compile(r"(.*-)(\d{5})-of-(\d{5})(.*)")


# ---- Files -------------------------------------------------------------------


class _Listing(NamedTuple):
    """Files of records, and the names of others beside them."""

    place: str  # The path or pattern.
    paths: list[str]
    contents: list[record_files.Contents]
    left_out: str


def _found(path: str) -> list[str]:
    """Returns what is in a folder, or matches a pattern, in order."""
    gfile = tf.io.gfile
    if gfile.isdir(path):
        names = [name.rstrip("/") for name in gfile.listdir(path)]
        return sorted(os.path.join(path, name) for name in names)
    return [path] if gfile.exists(path) else sorted(gfile.glob(path))


def _of_split(name: str, pattern: str, split: str) -> tuple[str, list[str]]:
    """Returns a split's path or pattern, and what is there."""
    if _SPLIT not in pattern:
        hint = f"put {_SPLIT} into the path for more"
        split_spec.only_train(name, split, hint)
        return pattern, _found(pattern)
    base = split_spec.parse(split)[0]
    words = [base, *split_spec.spellings()]
    there = {word: _found(pattern.replace(_SPLIT, word)) for word in words}
    there = {word: found for word, found in there.items() if found}
    wanted = split_spec.meaning(base)
    same = [w for w in there if wanted and split_spec.meaning(w) == wanted]
    same = [base] if base in there else same
    if len({tuple(there[word]) for word in same}) > 1:
        raise errors.UserError(
            f"{name}: {' and '.join(same)} both mean the split {base}: rename"
            " or join them"
        )
    if there and not same:
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}: its splits are"
            f" {', '.join(sorted(there))}"
        )
    word = same[0] if same else base
    return pattern.replace(_SPLIT, word), there.get(word, [])


def _list(name: str, pattern: str, split: str, verify_all: bool) -> _Listing:
    """Returns the files of a split.

    Raises:
      UserError: if there are none, or others that should be; or if they are of
        several splits.
    """
    place, found = _of_split(name, pattern, split)
    folders = [path for path in found if tf.io.gfile.isdir(path)]
    hidden = [
        path
        for path in found
        if os.path.basename(path).startswith((".", "_")) and path not in folders
    ]
    others = set() if found == [place] else {*folders, *hidden}
    paths = [path for path in found if path not in others]
    inspected = record_files.inspect_all(paths, place, verify_all)
    files = {p: x for p, x in zip(paths, inspected, strict=True) if x}
    tfds_source.refuse_prepared(name, place, found)
    if not paths:
        inside = f", only {listing.few(folders)}" if folders else ""
        is_split = any(map(split_spec.meaning, map(os.path.basename, folders)))
        advice = "use the path of TFRecord files, with or without wildcards"
        if is_split:
            advice = f"use tfrecord:{os.path.join(place, _SPLIT)}"
        raise errors.AbsentDataError(
            f"{name}: no file matches {place}{inside}: {advice}"
        )
    endings = set(map(_ending, files))
    foreign = [path for path in paths if path not in files]
    wrong = [p for p in foreign if not files or _ending(p) in endings]
    if wrong:
        raise errors.UserError(
            f"{name}: {len(wrong):,} of {len(paths):,} files are no TFRecord"
            f" files, or damaged, such as {wrong[0]}: copy or write them again"
        )
    _check_one_split(name, place, list(files))
    empty = [path for path, contents in files.items() if not contents.records]
    if len(empty) < len(files):
        _warn(name, "files are empty", empty, len(files))
    _warn(name, "shards are absent", *_absent_shards(list(files)))
    left_out = [listing.few([os.path.basename(path) for path in foreign])]
    left_out += [f"{len(hidden):,} hidden"] * bool(hidden)
    left_out += [f"{len(folders):,} folder(s)"] * bool(folders)
    about = ", ".join(filter(None, left_out)) or "none"
    return _Listing(place, list(files), list(files.values()), about)


def _warn(name: str, what: str, paths: list[str], total: int) -> None:
    if paths:
        terminal.warning(
            f"{name}: {len(paths):,} of {total:,} {what}, such as {paths[0]}:"
            " copy or write them again, unless that is right"
        )


def _absent_shards(paths: list[str]) -> tuple[list[str], int]:
    """Returns the shards of a set that are not there, and their number in all.

    Names such as train-00001-of-00003 say it; one file alone was meant alone.
    """
    sets: dict[tuple[str, ...], set[int]] = {}
    for match in map(_SHARD.fullmatch, paths):
        if match:
            head, number, total, tail = match.groups()
            sets.setdefault((head, total, tail), set()).add(int(number))
    absent, every = [], 0
    for (head, total, tail), numbers in sets.items():
        if len(numbers) > 1:
            every += int(total)
            absent += [
                f"{head}{number:0{len(total)}}-of-{total}{tail}"
                for number in range(int(total))
                if number not in numbers
            ]
    return absent, every


def _ending(path: str) -> str:
    """Returns the end of a file's name, which all its shards share."""
    name = re.sub(r"\.gz(ip)?$", "", os.path.basename(path))
    return re.sub(r"\d+", "", os.path.splitext(name)[1])


def _check_one_split(name: str, place: str, paths: list[str]) -> None:
    """Raises `UserError` for files that differ in the name of a split."""
    top = place
    if not tf.io.gfile.isdir(place):
        top = os.path.dirname(re.split(r"[*?[]", place)[0])
    rest = [os.path.relpath(path, top or ".") for path in paths]
    examples = {split_spec.mentioned(path): path for path in reversed(rest)}
    examples.pop(None, None)
    if alike := split_spec.look_alikes(rest):
        examples = {path: path for path in alike}
    if len(examples) > 1:
        raise errors.UserError(
            f"{name}: its files are of several splits, such as"
            f" {' and '.join(sorted(examples.values()))}: put {_SPLIT} in the"
            " place of the split's name, or move the others"
        )


# ---- Records -----------------------------------------------------------------


def _damaged_end(
    paths: list[str], read: Callable[[tf.Tensor], tf.data.Dataset]
) -> str:
    """Describes the file that cannot be read after its last record."""
    for path in paths:
        try:
            for _ in read(tf.constant(path)):
                pass
        except tf.errors.OpError as error:
            return f"{path} cannot be read ({errors.first_line(error)})"
    return f"one of {len(paths):,} files cannot be read"


class _Places(Sequence[str]):
    """Says where each record is; a million of texts would fill the memory."""

    def __init__(self, files: Files, rows: range) -> None:
        self._files, self._rows = files, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Places(self._files, self._rows[index])
        return self._files.place(self._rows[index])


def tfrecord(
    name: str, options: TFRecord, split: str, access: Access
) -> Source:
    """Opens `tfrecord:GLOB`: files of tf.train.Example, gzip too.

    GLOB may be a folder of such files. Image and label are found by the names
    of their features; labels are integers of at least 0. `{split}` in GLOB
    means the split's name; without it all files are the split `train`.
    """
    reading = access.reading
    pattern = os.path.expanduser(options.path)
    files_of = _list(name, pattern, split, access.verify_all)
    paths = files_of.paths
    counts = np.array([x.records for x in files_of.contents], np.int64)
    if not counts.sum():
        raise errors.UserError(
            f"{name}: no record in {len(paths):,} file(s), such as {paths[0]}:"
            " write them again"
        )
    read = record_files.reader(paths, files_of.contents)
    files = Files(paths, np.zeros_like(counts), counts, read)
    places = _Places(files, range(int(counts.sum())))
    try:
        serialized = tf.data.Dataset.from_tensor_slices(paths).flat_map(read)
        first = next(serialized.as_numpy_iterator())
        chosen = record_features.choose(name, first, reading)
        found = looking.at_records(
            paths,
            counts,
            read,
            record_features.reader(chosen, reading),
            f"{files_of.place} {chosen.image} {chosen.label}"
            f" {reading.label_feature}",
            reading,
            access.verify_all,
        )
    except tf.errors.OpError as error:
        record = files.unreadable(lambda record: record)
        record = record or _damaged_end(paths, read)
        raise errors.UserError(
            f"{name}: {record}: it is damaged; write it again"
        ) from error
    labels = record_features.check(name, chosen, found.labels, places, reading)
    start, stop = split_spec.bounds(split, len(places))
    taken = found.select(slice(start, stop))
    good, shape, bad = looking.check(name, places[start:stop], taken, reading)
    first_label = reading.first_label or 0
    num_classes, about, lacking = None, "none", 0
    if chosen.label is not None:
        # Of the whole split: a slice may lack classes, where files are sorted.
        labels = labels[labels >= 0]
        known = {*np.unique(labels - first_label).tolist()}
        num_classes = listing.count_integers(
            name, split, {split: known}, reading
        )
        about = (
            f"feature {chosen.label!r} (int64), from {labels.min()} to"
            f" {labels.max()}"
        )
        if lacking := len(places) - len(labels):
            about += f", and none of {lacking:,} records"
    info = Info(
        name,
        split,
        len(good),
        num_classes,
        shape,
        (),
        bad,
        unlabelled=lacking > 0,
        by_pillow=found.by_pillow,
        found=(
            ("files", f"{len(paths):,} TFRecord"),
            ("left out", files_of.left_out),
            ("records", f"{len(places):,}"),
            ("images", f"{taken.counts()}, feature {chosen.image!r}"),
            ("labels", about),
            ("other features", listing.few(list(chosen.others)) or "none"),
        ),
    )
    parse = record_features.parser(
        chosen, first_label, reading.admits_unlabelled
    )
    files = dataclasses.replace(files, read=lambda file: read(file).map(parse))
    source = in_files(files.select(start + good), decoding.decode_record, info)
    return dataclasses.replace(source, digests=found.digests[start + good])
