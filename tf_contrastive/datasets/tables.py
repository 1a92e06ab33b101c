"""Tables of images: `csv:PATH` lists `path`, `label` and `split` in columns.

The names of the columns are in a header, and nothing is guessed from values.
"""

import codecs
import functools
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import NO_FEATURE, Reading
from tf_contrastive.config.dataset import CSV
from tf_contrastive.datasets import image_files, paths, split_spec
from tf_contrastive.datasets.listing import (
    OWN,
    Listing,
    count_integers,
    few,
    number_names,
    without_label,
)
from tf_contrastive.datasets.source import Access, Source

_FORM = f"write a header such as path,label,split, {OWN}"
# The mark that spreadsheets write before the text -> its encoding.
_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Names of columns, in lower case and without spaces, hyphens and "_".
_PATHS = ("path", "image", "file", "filename")
_LABELS = ("label", "class", "target")
_SPLITS = ("split",)
# What data frames write where there is no value.
_MISSING = ("", "nan", "<na>", "null", "n/a", "#n/a")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
# At most 18 digits, which fit into any integer.
_INTEGER = re.compile(r"([-+]?)0*([0-9]{1,18})(\.0*)?")
# Several labels of an image: a|b, [a, b], 1 2.
_SEVERAL = re.compile(r".*[;|].*|\[.*\]|\d+(\s+\d+)+")


# ---- Tables ------------------------------------------------------------------


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


def _read(file: str, reading: Reading) -> pa.Table:
    """Reads a table of texts.

    Raises:
      UserError: if it is no text, or has no header with a column of paths.
    """
    wanted = {*_PATHS, _plain(reading.csv_path_column)}
    try:
        raw = files.read(file)
        marks = (mark for mark in _ENCODINGS if raw.startswith(mark))
        content = raw.decode(_ENCODINGS.get(next(marks, b""), "utf-8"))
        if "\0" in content:
            raise ValueError("it has zero bytes")
        first = re.split(r"[\r\n]", content, maxsplit=1)[0]
        for delimiter in (",", ";", "\t"):
            header = [cell.strip(' "') for cell in first.split(delimiter)]
            if wanted.intersection(map(_plain, header)):
                break
        else:
            raise errors.UserError(
                f"{file}: its first line, {first.strip()[:80]!r}, names no"
                f" column of paths ({', '.join(_PATHS)}): {_FORM}; for another"
                f" name, set {errors.arg('csv_path_column')}"
            )
        names = [name or str(i) for i, name in enumerate(header, 1)]
        table = pyarrow.csv.read_csv(
            pa.py_buffer(content.encode()),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, skip_rows=1
            ),
            pyarrow.csv.ParseOptions(delimiter=delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_string()),
                strings_can_be_null=False,
            ),
        )
        for column in table.columns:
            if pc.any(pc.match_substring_regex(column, r'^\s+"')).as_py():
                raise ValueError("there are spaces before a quote")
        if len({*names}) < len(names):
            raise ValueError("several columns have the same name")
    except (ValueError, pa.ArrowException) as error:
        raise errors.UserError(
            f"{file} is not a table ({errors.first_line(error)}): {_FORM}, in"
            " UTF-8"
        ) from error
    columns = [pc.utf8_trim_whitespace(c).combine_chunks() for c in table]
    # Spreadsheets fill tables up.
    is_empty = functools.reduce(pc.and_, [pc.equal(x, "") for x in columns])
    table = pa.table(dict(zip(names, columns, strict=True)))
    table = table.filter(pc.invert(is_empty))
    if not table.num_rows:
        raise errors.UserError(f"{file} is empty: {_FORM}, and a line an image")
    return table


def _column(
    file: str, table: pa.Table, names: tuple[str, ...], option: str, wanted: str
) -> str | None:
    """Returns the column of an option, or of one of the usual names."""
    known = (_plain(wanted),) if wanted else names
    found = [name for name in table.column_names if _plain(name) in known]
    if wanted and not found:
        raise errors.UserError(
            f"{file}: there is no column {errors.arg(option, wanted)}: it has"
            f" {', '.join(table.column_names)}"
        )
    if len(found) > 1:
        raise errors.UserError(
            f"{file}: which of its columns {', '.join(found)} is it? Set"
            f" {errors.arg(option, found[0])}, or another one"
        )
    return next(iter(found), None)


def _lines(file: str, split: str | None, reading: Reading) -> pa.Table:
    """Reads a table; returns `name`, `path`, `label` and `split` of each line.

    Args:
      file: of the table.
      split: that of all lines; None: those of a column, or train.
      reading: options.

    Returns:
      Texts: the path as it is written, and whole; the label, "" of a line
      without one; and train, test or validation.

    Raises:
      UserError: for lines that lack something, or columns of another name.
    """
    table = _read(file, reading)
    wanted = reading.csv_label_column
    path = _column(
        file, table, _PATHS, "csv_path_column", reading.csv_path_column
    )
    assert path is not None
    label = None
    if wanted != NO_FEATURE:
        label = _column(file, table, _LABELS, "csv_label_column", wanted)
    of_split = _column(file, table, _SPLITS, "split", "")
    if (row := pc.index(table[path], "").as_py()) >= 0:
        raise errors.UserError(
            f"{file}: line {row + 1} below the header has no path: write one"
        )
    others = [
        name
        for name in table.column_names
        if name not in (path, label, of_split)
        and pc.any(pc.not_equal(table[name], "")).as_py()
    ]
    if label is None and others and not wanted and split in (None, "train"):
        raise errors.UserError(
            f"{file}: which of its columns {few(others)} has the labels? Set"
            f" {errors.arg('csv_label_column', others[-1])}, another one, or"
            f" {NO_FEATURE}"
        )
    for other in others:
        if all(map(split_spec.meaning, pc.unique(table[other]).to_pylist())):
            raise errors.UserError(
                f"{file}: column {other} has splits: rename it to split"
            )
    base, none = os.path.dirname(file), paths.array_of([""] * len(table))

    def located(written: str) -> str:
        if "://" in written:
            return written
        return os.path.join(base, os.path.expanduser(written))

    def split_of(word: str) -> str:
        if meaning := split_spec.meaning(word):
            return meaning
        raise errors.UserError(
            f"{file}: column {of_split} has {word!r}, which is not a split:"
            " write train, test or validation in every line"
        )

    names = table[path].combine_chunks()
    labels = none if label is None else table[label].combine_chunks()
    is_bare = pc.is_in(pc.utf8_lower(labels), paths.array_of(_MISSING))
    if split or of_split is None:
        splits = paths.mapped(lambda _: split or "train", none)
    else:
        splits = paths.mapped(split_of, table[of_split].combine_chunks())
    columns = {
        "name": names,
        "path": paths.mapped(located, names),
        "label": pc.if_else(is_bare, "", labels),
        "split": splits,
    }
    return pa.table(columns)


# ---- Splits ------------------------------------------------------------------


def _tables(path: str) -> list[str]:
    is_file = tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    return [path] * is_file


def _splits(
    name: str, path: str, split: str, reading: Reading
) -> tuple[str, dict[str, pa.Table]]:
    """Reads all splits of a path; returns the one to open, and all."""
    base = split_spec.parse(split)[0]
    wanted = split_spec.meaning(base) or base
    by_split: dict[str, pa.Table] = {}
    if "{split}" in path:
        for one in ("train", "test", "validation"):
            _, found = split_spec.place(name, path, one, _tables)
            for file in found:
                by_split[one] = _lines(file, one, reading)
    elif not _tables(path):
        what = "is a folder" if tf.io.gfile.exists(path) else "does not exist"
        raise errors.AbsentDataError(
            f"{name}: {path} {what}: use a table, or folder:PATH"
        )
    else:
        lines = _lines(path, None, reading)
        for one in sorted(pc.unique(lines["split"]).to_pylist()):
            by_split[one] = lines.filter(pc.equal(lines["split"], one))
        if by_split.keys() == {"train"} and reading.test_fraction:
            wanted = "train" if wanted == "test" else wanted
    if wanted not in by_split:
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}, only {few(by_split) or 'none'}:"
            " write it into a column split, or a table for each split, with"
            " {split} in the path, or set"
            f" {errors.arg('test_fraction', '0.2')}"
        )
    if "{split}" in path or by_split.keys() != {"train"}:
        split_spec.refuse_fraction(name, reading, "it has splits")
    return wanted, by_split


# ---- Labels ------------------------------------------------------------------


def _numbers(
    name: str, split: str, by_split: dict[str, set[str]]
) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Numbers the classes: integers are used unchanged.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: the labels that occur.

    Returns:
      (label -> number, name per class or (), number of classes).
    """
    labels = set().union(*by_split.values())
    _check_single(name, labels)
    numbers = {label for label in labels if _NUMBER.fullmatch(label)}
    if names := labels - numbers:
        if numbers:
            terminal.warning(
                f"{name}: labels such as {min(numbers)} are names, since"
                f" {len(names):,} are no numbers, such as {min(names)}"
            )
        number = number_names(name, split, by_split)
        return number, tuple(number), len(number)
    number = {}
    for label in labels:
        if not (match := _INTEGER.fullmatch(label)):
            raise errors.UserError(
                f"{name}: label {label[:20]}: write integers from 0, or names"
            )
        number[label] = int(match[1] + match[2])
    of_split = {key: {number[x] for x in x_} for key, x_ in by_split.items()}
    return number, (), count_integers(name, split, of_split)


def _check_single(name: str, labels: set[str]) -> None:
    """Refuses labels of several classes."""
    several = set(filter(_SEVERAL.fullmatch, labels))
    for label in labels:
        parts = re.split(r"[\s,&+]+", label)
        if len(parts) > 1 and labels.issuperset(parts):
            several.add(label)
    if several:
        raise errors.UserError(
            f"{name}: label {min(several)} has several classes: write one class"
            f" for each image, {OWN}"
        )


def _check_repeated(
    name: str, lines: pa.Table, labels: np.ndarray | None
) -> None:
    """Warns of files that occur twice; refuses those with two labels."""
    located = lines["path"].combine_chunks()
    places = paths.array_of(paths.real(paths.texts(located)))
    place = places.dictionary_encode().indices.to_numpy()
    _, first = np.unique(place, return_index=True)
    firsts = first[place]
    again = np.flatnonzero(firsts < np.arange(len(place)))
    if not len(again):
        return
    if labels is not None:
        other = again[labels[again] != labels[firsts[again]]]
        if len(other):
            raise errors.UserError(
                f"{name}: {len(other):,} of {len(place):,} lines give a file"
                f" another label, such as {lines['name'][int(other[0])]}: write"
                " one line for each file"
            )
    terminal.warning(
        f"{name}: {len(again):,} of {len(place):,} lines repeat a file, such as"
        f" {lines['name'][int(again[0])]}: each counts as an image"
    )


# ---- The listing -------------------------------------------------------------


def open_table(name: str, options: CSV, split: str, access: Access) -> Source:
    """Opens `csv:PATH`.

    Relative paths start at the folder of the table. Splits are in tables of
    their own, whose name or folder is `{split}` in PATH, or in a column.
    """
    reading, path = access.reading, os.path.expanduser(options.path)
    own, by_split = _splits(name, path, split, reading)
    lines = by_split[own]
    missing = {"", *["-1"] * reading.admits_unlabelled}
    occurring = {
        key: {*pc.unique(table["label"]).to_pylist()}
        for key, table in by_split.items()
    }
    labelled = {key: x - missing for key, x in occurring.items() if x - missing}
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    count = None
    about = "none"
    if own in labelled:
        number, classes, count = _numbers(name, own, labelled)
        known = lines["label"].combine_chunks().dictionary_encode()
        numbers = [number.get(x, -1) for x in known.dictionary.to_pylist()]
        # Larger ones are refused, by the number of classes.
        of_text = np.minimum(numbers, 2**31 - 1).astype(np.int32)
        labels = of_text[known.indices.to_numpy()]
        about = "column of labels"
        if not reading.admits_unlabelled and (labels < 0).any():
            row = int(labels.argmin())
            raise errors.UserError(
                f"{name}: {(labels < 0).sum():,} of {len(labels):,} lines have"
                f" no label, such as that of {lines['name'][row]}: label every"
                " line, or none, or set"
                f" {errors.arg('unlabelled', 'own_views')}"
            )
    elif labelled:
        terminal.warning(
            f"{name}: {own} has no labels, and {few(sorted(labelled))} has"
        )
    _check_repeated(name, lines, labels)
    found = {
        "lines": f"{len(lines):,}",
        "labels": about,
        "without_label": without_label(
            0 if labels is None else (labels < 0).sum(), len(lines)
        ),
        "splits": ", ".join(
            f"{key} ({'labelled' if key in labelled else 'no labels'})"
            for key in by_split
        ),
    }
    listing = Listing(
        path,
        lines["path"].combine_chunks(),
        lines["name"].combine_chunks(),
        found,
        labels,
        classes,
        count,
        holds_out=by_split.keys() == {"train"} and reading.test_fraction > 0,
    )
    return image_files.open_listing(name, split, access, listing)
