"""Tables of images: `csv:PATH` lists `path`, `label` and `split` in columns.

The names of the columns are in a header, and nothing is guessed from values.
"""

import codecs
import functools
import itertools
import os
import re
from collections import Counter
from typing import NamedTuple

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
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
# Names of columns, in lower case and without spaces, hyphens and "_".
_PATHS = ("path", "image", "file", "filename")
_LABELS = ("label", "class", "target")
_SPLITS = ("split",)
# Such as is_train, fold, subset: they may have splits, and are not read.
_MAY_BE_SPLIT = re.compile(
    r".*(train|test|valid|split|fold|partition|subset).*"
)
# What data frames write where there is no value.
_MISSING = ("", "nan", "<na>", "null", "n/a", "#n/a")
_NUMBER = r"^[-+]?[0-9]+(\.[0-9]*)?$"
_INTEGER = re.compile(r"([-+]?)0*([0-9]+)(\.0*)?")
# Of a label: more do not fit into any integer of TensorFlow.
_MAX_DIGITS = 18


class _Split(NamedTuple):
    """The lines of a split.

    Attributes:
      file: the table.
      names: paths as they are written, LargeString [n].
      labels: texts, "" of a line without a label; None: no line has one.
      found: rows of `Info.found`.
    """

    file: str
    names: pa.Array
    labels: pa.Array | None
    found: dict[str, str]


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
        content = content.lstrip("\r\n")
        # As Excel tells itself the delimiter.
        if match := re.match(r'"?sep=(.)"?[\r\n]+', content, re.IGNORECASE):
            content = content[match.end() :]
        first = re.split(r"[\r\n]", content, maxsplit=1)[0]
        delimiters = [match[1]] if match else [*_DELIMITERS]
        for delimiter in delimiters:
            header = [cell.strip(' "\r') for cell in first.split(delimiter)]
            if wanted.intersection(map(_plain, header)):
                break
        else:
            raise errors.UserError(
                f"{file}: its first line, {first.strip()[:80]!r}, names no"
                f" column of paths ({', '.join(_PATHS)}): {_FORM}; for another"
                f" name, set {errors.arg('csv_path_column')}"
            )
        names = [name or str(i) for i, name in enumerate(header, 1)]
        if repeated := [n for n, count in Counter(names).items() if count > 1]:
            raise ValueError(f"several columns are named {repeated[0]}")
        text = pa.large_string()
        table = pyarrow.csv.read_csv(
            pa.py_buffer(content.encode()),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, skip_rows=1
            ),
            pyarrow.csv.ParseOptions(delimiter=delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, text),
                strings_can_be_null=False,
            ),
        )
    except (ValueError, pa.ArrowException) as error:
        raise errors.UserError(
            f"{file} is not a table ({errors.first_line(error)}): {_FORM}, in"
            " UTF-8"
        ) from error
    for column in table.columns:
        if pc.any(pc.match_substring_regex(column, r'^\s+"')).as_py():
            raise errors.UserError(
                f"{file}: there are spaces before a quote: remove them"
            )
    columns = [pc.utf8_trim_whitespace(c).combine_chunks() for c in table]
    table = pa.table(dict(zip(names, columns, strict=True)))
    # Spreadsheets fill tables up.
    is_empty = functools.reduce(pc.and_, [pc.equal(x, "") for x in table])
    return table.filter(pc.invert(is_empty))


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


def _paths_of(file: str, table: pa.Table, reading: Reading) -> str:
    wanted = reading.csv_path_column
    return _column(file, table, _PATHS, "csv_path_column", wanted) or ""


def _lines(
    name: str,
    file: str,
    split: str | None,
    reading: Reading,
    lacks: bool = False,
) -> dict[str, _Split]:
    """Reads a table; returns its splits.

    Args:
      name: of the dataset.
      file: of the table.
      split: that of all lines; None: those of a column, or train.
      reading: options.
      lacks: whether the table may lack a column of labels beside others.

    Raises:
      UserError: for lines that lack something, or labels of another name.
    """
    table = _read(file, reading)
    if not table.num_rows:
        raise errors.UserError(f"{file} is empty: {_FORM}, and a line an image")
    path, wanted = _paths_of(file, table, reading), reading.csv_label_column
    label = None
    if wanted != NO_FEATURE:
        label = _column(file, table, _LABELS, "csv_label_column", wanted)
    of_split = _column(file, table, _SPLITS, "split", "")
    if (row := pc.index(table[path], "").as_py()) >= 0:
        raise errors.UserError(
            f"{file}: line {row + 1} below the header has no path: write one"
        )
    others = [x for x in table.column_names if x not in (path, label, of_split)]
    others = [x for x in others if any(paths.texts(table[x].combine_chunks()))]
    if label is None and others and wanted != NO_FEATURE and not lacks:
        raise errors.UserError(
            f"{file}: which of its columns {few(others)} has the labels? Set"
            f" {errors.arg('csv_label_column', others[-1])}, another one, or"
            f" {NO_FEATURE}"
        )
    for other in others:
        values = pc.unique(table[other]).to_pylist()
        if _MAY_BE_SPLIT.fullmatch(_plain(other)) or all(
            map(split_spec.meaning, values)
        ):
            terminal.warning(
                f"{name}: column {other} of {file} is not read: splits are in a"
                " column named split"
            )
    found = {
        "list": f"{file}: {table.num_rows:,} lines",
        "paths": f"column {path}",
        "labels": f"column {label}" if label else "none: no column of labels",
        "columns_not_read": few(others),
    }

    def lines_of(some: pa.Table) -> _Split:
        return _of_lines(some, path, label, file, found, reading)

    if split or of_split is None:
        return {split or "train": lines_of(table)}
    words = table[of_split].combine_chunks()
    meanings = paths.mapped(lambda x: split_spec.meaning(x) or "", words)
    if (row := pc.index(meanings, "").as_py()) >= 0:
        raise errors.UserError(
            f"{file}: column {of_split} has {words[row].as_py()!r}, which is"
            " not a split: write train, test or validation in every line"
        )
    return {
        one: lines_of(table.filter(pc.equal(meanings, one)))
        for one in sorted(pc.unique(meanings).to_pylist())
    }


def _of_lines(
    table: pa.Table,
    path: str,
    label: str | None,
    file: str,
    found: dict[str, str],
    reading: Reading,
) -> _Split:
    """Returns paths and labels of lines."""
    names = table[path].combine_chunks()
    if label is None:
        return _Split(file, names, None, found)
    labels = table[label].combine_chunks()
    may_lack = reading.admits_unlabelled
    missing = [*_MISSING, *["-1"] * may_lack]
    is_bare = pc.is_in(pc.utf8_lower(labels), pa.array(missing, labels.type))
    count = pc.sum(is_bare).as_py()
    if count == len(labels):
        terminal.warning(f"{file}: no labels are read: column {label} is empty")
        found = found | {"labels": f"none: column {label} is empty"}
        return _Split(file, names, None, found)
    if count and not may_lack:
        raise errors.UserError(
            f"{file}: {count:,} of {len(labels):,} lines have no label, such as"
            f" that of {names[pc.index(is_bare, True).as_py()]}: label every"
            " line, or none, or set"
            f" {errors.arg('unlabelled', 'own_views')}"
        )
    about = without_label(count, len(labels))
    labels = pc.if_else(is_bare, "", labels)
    return _Split(file, names, labels, found | {"without_label": about})


# ---- Splits ------------------------------------------------------------------


def _splits(
    name: str, path: str, split: str, reading: Reading
) -> tuple[str, dict[str, _Split]]:
    """Reads all splits of a path; returns the one to open, and all."""
    base = split_spec.parse(split)[0]
    wanted = split_spec.meaning(base) or base
    if "{split}" in path:
        tables: dict[str, str] = {}
        for word in split_spec.spellings():
            file = path.replace("{split}", word)
            meaning = split_spec.meaning(word) or ""
            if tf.io.gfile.exists(file) and not tf.io.gfile.isdir(file):
                same = tables.setdefault(meaning, file)
                if same != file:
                    raise errors.UserError(
                        f"{name}: {same} and {file} both mean the split"
                        f" {meaning}: rename or join them"
                    )
        if wanted not in tables:
            kind = errors.AbsentSplitError if tables else errors.AbsentDataError
            there = f", only {few(tables.values())}" if tables else ""
            raise kind(
                f"{name}: there is no file {path.replace('{split}', base)}"
                f"{there}: write a table for each split"
            )
        split_spec.refuse_fraction(name, reading, "its splits are tables")
        by_split: dict[str, _Split] = {}
        for one, file in tables.items():
            by_split |= _lines(name, file, one, reading, one != "train")
        return wanted, by_split
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        what = "is a folder" if tf.io.gfile.exists(path) else "does not exist"
        raise errors.AbsentDataError(
            f"{name}: {path} {what}: use a table, or folder:PATH"
        )
    by_split = _lines(name, path, None, reading)
    if by_split.keys() != {"train"}:
        split_spec.refuse_fraction(name, reading, "it has a column of splits")
    elif wanted == "test" and reading.test_fraction:
        wanted = "train"
    if wanted not in by_split:
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}, only {', '.join(by_split)}: write"
            " it into a column split, or put {split} into the path, or set"
            f" {errors.arg('test_fraction', '0.2')}"
        )
    return wanted, by_split


# ---- Labels ------------------------------------------------------------------


def _numbers(
    name: str, split: str, by_split: dict[str, set[str]], reading: Reading
) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Numbers the classes: integers are used unchanged, less `first_label`.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: the labels that occur.

    Returns:
      (label -> number, name per class or (), number of classes).
    """
    labels = set().union(*by_split.values())
    numbers = {label for label in labels if re.match(_NUMBER, label)}
    if names := labels - numbers:
        if numbers:
            terminal.warning(
                f"{name}: labels such as {min(numbers)} are names, since"
                f" {len(names):,} are no numbers, such as {min(names)}"
            )
        _check_single(name, labels)
        number = number_names(name, split, by_split)
        return number, tuple(number), len(number)
    number = {}
    for label in labels:
        if not (match := _INTEGER.fullmatch(label)):
            raise errors.UserError(
                f"{name}: label {label}: write integers of at least 0, or names"
            )
        if len(match[2]) > _MAX_DIGITS:
            raise errors.UserError(
                f"{name}: {match[2][:_MAX_DIGITS]}... is too large for a label:"
                " number the classes from 0"
            )
        number[label] = int(match[1] + match[2]) - (reading.first_label or 0)
    of_split = {key: {number[x] for x in x_} for key, x_ in by_split.items()}
    return number, (), count_integers(name, split, of_split, reading)


def _check_single(name: str, labels: set[str]) -> None:
    """Refuses labels of several classes; warns of those that may be."""
    several = [x for x in labels if re.fullmatch(r"\[.*\]|\d+(\s+\d+)+", x)]
    for label in labels:
        parts = [part.strip() for part in re.split(r"[;|,&+]", label)]
        if len(parts) > 1 and labels.issuperset(parts):
            several.append(label)
    if several:
        raise errors.UserError(
            f"{name}: label {min(several)} has several classes: write one class"
            f" for each image, {OWN}"
        )
    # Of words all must come again: polar bear and black bear are one class
    # each.
    for separators, are_enough in (r"[;|]", any), (r"[\s,]+", all):
        parts_of = {x: {*re.split(separators, x)} - {""} for x in labels}
        often = Counter(itertools.chain.from_iterable(parts_of.values()))
        combined = sorted(
            label
            for label, parts in parts_of.items()
            if len(parts) > 1 and are_enough(often[x] > 1 for x in parts)
        )
        if combined:
            terminal.warning(
                f"{name}: labels such as {few(map(repr, combined), 2)} are read"
                " as one class each; if they are several classes, write one"
                " class for each image"
            )
            return


def _check_repeated(
    name: str, lines: _Split, located: pa.Array, labels: np.ndarray | None
) -> None:
    """Warns of files that occur twice; refuses those with two labels."""
    places = paths.array_of(paths.real(paths.texts(located)))
    place = places.dictionary_encode().indices.to_numpy()
    _, first = np.unique(place, return_index=True)
    firsts = first[place]
    again = np.flatnonzero(firsts < np.arange(len(place)))
    if not len(again):
        return
    if labels is not None and lines.labels is not None:
        other = again[labels[again] != labels[firsts[again]]]
        if len(other):
            i, j = int(other[0]), int(firsts[other[0]])
            raise errors.UserError(
                f"{name}: {len(other):,} of {len(place):,} lines give a file"
                f" another label, such as {lines.names[i]}"
                f" ({lines.labels[j]!s}, and {lines.labels[i]!s}): write one"
                " line for each file"
            )
    terminal.warning(
        f"{name}: {len(again):,} of {len(place):,} lines repeat a file, such as"
        f" {lines.names[int(again[0])]}: each counts as an image"
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
    base = os.path.dirname(lines.file)

    def located(written: str) -> str:
        if "://" in written:
            return written
        return os.path.join(base, os.path.expanduser(written))

    whole = paths.mapped(located, lines.names)
    labelled = {
        key: x.labels for key, x in by_split.items() if x.labels is not None
    }
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    count = None
    if lines.labels is not None:
        occurring = {
            key: {*pc.unique(x).to_pylist()} - {""}
            for key, x in labelled.items()
        }
        number, classes, count = _numbers(name, own, occurring, reading)
        known = lines.labels.dictionary_encode()
        numbers = [number.get(x, -1) for x in known.dictionary.to_pylist()]
        # Larger ones are refused, by the number of classes.
        of_text = np.minimum(numbers, 2**31 - 1).astype(np.int32)
        labels = of_text[known.indices.to_numpy()]
        if own != "train" and len(np.unique(labels)) == 1 < count:
            terminal.warning(
                f"{name}: all images of {own} are of one class,"
                f" {lines.labels[0]}: if that is in the place of labels that"
                " are not known, leave them out"
            )
    elif labelled:
        terminal.warning(
            f"{name}: {own} has no labels, and {few(sorted(labelled))} has"
        )
    _check_repeated(name, lines, whole, labels)
    splits = (
        f"{key} ({'labelled' if key in labelled else 'no labels'})"
        for key in by_split
    )
    listing = Listing(
        path,
        whole,
        lines.names,
        lines.found | {"splits": ", ".join(splits)},
        labels,
        classes,
        count,
        holds_out=by_split.keys() == {"train"} and reading.test_fraction > 0,
        base=base,
    )
    return image_files.open_listing(name, split, access, listing)
