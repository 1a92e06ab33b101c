"""Lists of images and labels in text files: `csv:PATH`."""

import itertools
import os
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import CSV
from tf_contrastive.datasets import classes, image_files, split_spec
from tf_contrastive.datasets.image_files import (
    ImageFiles,
    few,
    without_label,
)
from tf_contrastive.datasets.list_tables import (
    FACT_COLUMN,
    LABEL_COLUMN,
    PATH_COLUMN,
    ROW_COLUMN,
    SPLIT_COLUMN,
    Rows,
    Table,
    columns_of_images,
    exists,
    plain,
    read,
)
from tf_contrastive.datasets.names import Names
from tf_contrastive.datasets.source import Access, Source

# Of a label: more do not fit into any integer of TensorFlow.
_MAX_DIGITS = 18
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?", re.ASCII)
_INTEGER = re.compile(r"([-+]?)0*(\d+)(\.0*)?", re.ASCII)
# Such as is_train, fold, split_id: they may be splits, and are not read.
_MAY_BE_SPLIT = re.compile(r".*(train|test|valid|split|fold|partition).*")
# So many different labels of as many images are no surprise.
_FEW = 10
# What data frames write where there is no value.
_MISSING = {"", "nan", "<na>", "null", "n/a", "#n/a"}
_BOOLEANS = {"0", "1", "0.0", "1.0", "true", "false"}


class _Columns(NamedTuple):
    """Numbers of columns, from 0; None: absent."""

    path: int
    label: int | None
    split: int | None


class _Lines(NamedTuple):
    """The lines of a split.

    Attributes:
      table: the list.
      rows: its lines of the split.
      named: their paths as they are written.
      labels: their labels, or None.
      found: rows of `Info.found`.
    """

    table: Table
    rows: Rows
    named: Names
    labels: Names | None
    found: tuple[tuple[str, str], ...]


# ---- Columns -----------------------------------------------------------------


def _chosen(table: Table, option: str, reading: Reading) -> int | None:
    """Returns the column that an option names; None: the option is empty."""
    name = getattr(reading, option)
    if not name:
        return None
    if name.isdecimal() and 0 < int(name) <= table.width:
        return int(name) - 1
    names = [*map(plain, table.header)]
    if plain(name) in names:
        return names.index(plain(name))
    named = f" ({', '.join(table.header)})" if names else ", and no header"
    raise errors.UserError(
        f"{table.file}: there is no column {errors.arg(option, name)}: it has"
        f" {table.width} columns{named}"
    )


def _undecided(
    table: Table, what: str, columns: list[int], option: str
) -> errors.UserError:
    names = ", ".join(map(table.named, columns))
    return errors.UserError(
        f"{table.file}: which of its columns {names} has the {what}? Set"
        f" {errors.arg(option, table.named(columns[-1]))}, or another one"
    )


def _names_labels(table: Table, reading: Reading) -> bool:
    """Whether the header of a list names the column of labels."""
    option = reading.csv_label_column
    if option and not option.isdecimal():
        return plain(option) in map(plain, table.header)
    return not option and bool(table.matching(LABEL_COLUMN))


def _columns(
    table: Table, reading: Reading, is_named: bool = False
) -> _Columns:
    """Finds the columns; `is_named`: a header without labels has none."""
    path = _path_column(table, reading)
    is_bare = is_named and table.header and not _names_labels(table, reading)
    label = None if is_bare else _label_column(table, path, reading)
    others = (c for c in range(table.width) if c not in (path, label))
    split = next((c for c in others if _is_of_splits(table, c)), None)
    return _Columns(path, label, split)


def _path_column(table: Table, reading: Reading) -> int:
    option = "csv_path_column"
    if (chosen := _chosen(table, option, reading)) is not None:
        return chosen
    named, images = table.matching(PATH_COLUMN), columns_of_images(table)
    candidates = [c for c in named if c in images] or images or named or [0]
    if len(candidates) > 1:
        first = table.rows[0]
        present = [c for c in candidates if exists(table, first.cell(c))]
        if len(present) > 1:
            raise _undecided(table, "paths", present, option)
        candidates = present or candidates
    return candidates[0]


def _label_column(table: Table, path: int, reading: Reading) -> int | None:
    """Returns the column of the labels; None: there is none."""
    option = "csv_label_column"
    if (chosen := _chosen(table, option, reading)) is not None:
        return chosen
    named = [c for c in table.matching(LABEL_COLUMN) if c != path]
    if named:
        columns = [table.column(column) for column in named]
        pairs = {*zip(*columns, strict=True)}
        if any(len({*column}) != len(pairs) for column in columns):
            raise _undecided(table, "labels", named, option)
        return named[0]
    rows = table.matching(ROW_COLUMN)
    others = [
        column
        for column in range(table.width)
        if column not in (path, *rows)
        and any(table.column(column))
        and not (column < path and _numbers_lines(table.column(column)))
        and not _is_of_splits(table, column)
    ]
    facts = [c for c in table.matching(FACT_COLUMN) if c in others]
    if facts:
        others = [column for column in others if column not in facts]
    if facts and not others:
        first = table.named(facts[0])
        terminal.warning(
            f"{table.file}: no labels are read: if they are in"
            f" {few(map(table.named, facts))}, set {errors.arg(option, first)}"
        )
    if len(others) > 1 and all(
        cell.lower() in _BOOLEANS
        for column in others
        for cell in table.column(column)
    ):
        names = few(map(table.named, others))
        raise errors.UserError(
            f"{table.file}: its {len(others)} columns {names} are 0 or 1, as of"
            " one class each: write one column with the name of the class"
        )
    if len(others) > 1:
        raise _undecided(table, "labels", others, option)
    if not others:
        return None
    if len(table.rows) > _FEW and _all_differ(table.column(others[0])):
        raise errors.UserError(
            f"{table.file}: each line has a value of its own in column"
            f" {table.named(others[0])}: if these are labels, set"
            f" {errors.arg(option, table.named(others[0]))}, else remove the"
            " column"
        )
    return others[0]


def _all_differ(cells: Names) -> bool:
    seen = set[str]()
    for cell in cells:
        if cell in seen:
            return False
        seen.add(cell)
    return True


def _numbers_lines(cells: Names) -> bool:
    """Whether a column counts the lines, from 0 or 1, as data frames do."""
    return len(cells) > 1 and any(
        all(cell == str(i) for i, cell in enumerate(cells, first))
        for first in (0, 1)
    )


def _is_of_splits(table: Table, column: int) -> bool:
    """Whether a column has the name of a split in each line."""
    meanings = set[str]()
    for cell in table.column(column):
        if (meaning := split_spec.meaning(cell)) is None:
            return False
        meanings.add(meaning)
    return column in table.matching(SPLIT_COLUMN) or len(meanings) > 1


# ---- Splits ------------------------------------------------------------------


def _lists(path: str, base: str) -> dict[str, str]:
    """Returns the lists of all splits, by what `{split}` is in their paths.

    Those of other names belong if they are `base`, or differ from it in digits
    only, such as fold1 and fold2.
    """

    def kind(split: str) -> str:
        return re.sub(r"\d+", "0", split)

    literal = re.sub(r"([*?\[\]\\])", r"\\\1", path)
    # TensorFlow begins relative paths with it, where a pattern is their start.
    here = "./"
    parts = path.removeprefix(here).split("{split}")
    first, *others = map(re.escape, parts)
    pattern = rf"{first}(?P<split>[^/]*){'(?P=split)'.join(others)}"
    lists = {}
    for file in sorted(tf.io.gfile.glob(literal.replace("{split}", "*"))):
        match = re.fullmatch(pattern, file.removeprefix(here), re.DOTALL)
        if match and not tf.io.gfile.isdir(file):
            key = match["split"]
            if split_spec.meaning(key) or kind(key) == kind(base):
                lists[key] = file
    return lists


def _of_lists(
    name: str, path: str, split: str, reading: Reading
) -> tuple[str, dict[str, _Lines]]:
    """Reads a list for each split; see `_of_list`."""
    base = split_spec.parse(split)[0]
    lists = _lists(path, base)
    if (own := split_spec.find(name, base, lists)) is None:
        kind = errors.AbsentSplitError if lists else errors.AbsentDataError
        there = f"; there is {few(lists.values())}" if lists else ""
        raise kind(
            f"{name}: there is no file {path.replace('{split}', base)}{there}:"
            " use a CSV file of path,label for each split"
        )
    reason = "its splits are the files of {split}"
    split_spec.refuse_fraction(name, reading, reason)
    tables = {key: read(file, reading) for key, file in lists.items()}
    # A test list has the columns of a train list but for that of the labels.
    is_named = any(_names_labels(t, reading) for t in tables.values())
    by_split = {}
    for key, table in tables.items():
        columns = _columns(table, reading, is_named)._replace(split=None)
        by_split[key] = _lines(name, key, table, columns, table.rows, reading)
    return own, by_split


def _of_list(
    name: str, path: str, split: str, reading: Reading
) -> tuple[str, dict[str, _Lines]]:
    """Reads one list, which may have a column of splits.

    Returns:
      (the name of the split, lines by split).
    """
    _check_file(name, path)
    table = read(path, reading)
    columns = _columns(table, reading)
    if columns.split is None:
        if not image_files.holds_out(split, reading):
            split_spec.only_train(
                name,
                split,
                "put {split} into the path, or set"
                f" {errors.arg('test_fraction', '0.2')}",
            )
        lines = _lines(name, "train", table, columns, table.rows, reading)
        return "train", {"train": lines}
    column = table.column(columns.split)
    means = map(str, map(split_spec.meaning, column))
    numbers: dict[str, int] = {}
    group = np.fromiter(
        (numbers.setdefault(each, len(numbers)) for each in means), np.int64
    )
    groups = {
        key: table.rows.take(np.flatnonzero(group == number))
        for key, number in numbers.items()
    }
    words = sorted({cell.lower() for cell in column})
    where = f"column {table.named(columns.split)} of {path}"
    if columns.split not in table.matching(SPLIT_COLUMN):
        terminal.warning(f"{name}: {where} is read as the names of splits")
    if len(words) > len(groups):
        terminal.warning(
            f"{name}: {', '.join(words)} in {where} are read as"
            f" {', '.join(sorted(groups))}"
        )
    own = split_spec.find(name, split_spec.parse(split)[0], sorted(groups))
    if own is None:
        raise errors.AbsentSplitError(
            f"{name} has no split {split_spec.parse(split)[0]!r}: {where} has"
            f" {', '.join(sorted(groups))}"
        )
    split_spec.refuse_fraction(name, reading, f"its splits are in {where}")
    return own, {
        key: _lines(name, key, table, columns, rows, reading)
        for key, rows in groups.items()
    }


def _check_file(name: str, path: str) -> None:
    if not tf.io.gfile.exists(path):
        raise errors.AbsentDataError(
            f"{name}: there is no file {path}: use a CSV file of path,label"
        )
    if tf.io.gfile.isdir(path):
        names = sorted(tf.io.gfile.listdir(path))
        lists = [n for n in names if n.lower().endswith((".csv", ".tsv"))]
        hint = f", or csv:{os.path.join(path, lists[0])}" if lists else ""
        raise errors.AbsentDataError(
            f"{name}: {path} is a folder, no file: use folder:{path}{hint}"
        )


def _lines(
    name: str,
    split: str,
    table: Table,
    columns: _Columns,
    rows: Rows,
    reading: Reading,
) -> _Lines:
    """Returns paths and labels of a split; "" of lines without a label.

    Raises:
      UserError: for lines that lack one of them, or have too many columns.
    """
    file = table.file
    named = rows.column(columns.path)

    def refuse(problem: str, bad: list[int], advice: str) -> None:
        if bad:
            raise errors.UserError(
                f"{file}: {len(bad):,} of {len(rows):,} lines {problem}, such"
                f" as line {rows[bad[0]].line} ({named[bad[0]]}): {advice}"
            )

    wide = np.flatnonzero(rows.widths > table.width).tolist()
    refuse(
        f"have more than {table.width} columns",
        wide,
        'put quotes around a cell that has a delimiter, such as "a,b.png", or'
        " name every column in the header",
    )
    pathless = [i for i, p in enumerate(named) if not p or "\n" in p]
    refuse("have no path, or a line break in it", pathless, "write one")
    labels, why = None, "no column of labels"
    if columns.label is not None:
        labels = rows.column(columns.label)
        may_lack = reading.admits_unlabelled
        missing = _MISSING | ({"-1"} if may_lack else set())
        bare = [i for i, x in enumerate(labels) if x.lower() in missing]
        if len(bare) == len(rows):
            labels, why = None, f"column {table.named(columns.label)} is empty"
            terminal.warning(f"{name}: {split} has no labels: {why} in {file}")
        elif may_lack:
            labels = Names.of("" if x.lower() in missing else x for x in labels)
        else:
            refuse(
                "have no label",
                bare,
                "label every line, or none, or set"
                f" {errors.arg('unlabelled', 'own_views')}",
            )
    unread = [c for c in range(table.width) if c not in columns]
    may_be_split = {
        *table.matching(_MAY_BE_SPLIT),
        *table.matching(SPLIT_COLUMN),
    }
    for column in sorted(may_be_split.intersection(unread)):
        meanings = list(map(split_spec.meaning, rows.column(column)))
        called = f"column {table.named(column)}"
        if any(meanings):
            refuse(
                f"have no name of a split in {called}",
                [i for i, meaning in enumerate(meanings) if not meaning],
                "write train, test or validation in every line",
            )
        if len({*meanings}) > 1 or None in meanings:
            terminal.warning(
                f"{name}: {called} of {file} is not read: its lines are of one"
                " split"
            )
    found = {
        "list": f"{file}: {table.about}",
        "paths": f"column {table.named(columns.path)}",
        "labels": f"none: {why}",
        "columns_not_read": few(map(table.named, unread)),
    }
    if labels is not None and columns.label is not None:
        found["labels"] = f"column {table.named(columns.label)}"
        found["without_label"] = without_label(labels.count(""), len(rows))
    return _Lines(
        table, rows, named, labels, tuple(i for i in found.items() if i[1])
    )


# ---- Labels ------------------------------------------------------------------


def _numbered(
    name: str, split: str, by_split: dict[str, Names], reading: Reading
) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Numbers the classes: integers are used unchanged.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: label of each line, or "".

    Returns:
      (label -> number, name per class or (), number of classes).
    """
    every = {key: {*labels} - {""} for key, labels in by_split.items()}
    labels = set().union(*every.values())
    numbers = {label for label in labels if _NUMBER.fullmatch(label)}
    if numbers != labels:
        names = labels - numbers
        if numbers:
            terminal.warning(
                f"{name}: labels such as {min(numbers)} are names, since"
                f" {len(names):,} are no numbers, such as {min(names)}"
            )
        _refuse_several(name, labels)
        _tell_combined(name, labels)
        label_names, number = classes.numbered(name, split, every)
        return number, label_names, len(label_names)
    first = reading.first_label or 0
    number = {}
    for label in sorted(labels, key=float):
        if not (match := _INTEGER.fullmatch(label)):
            raise errors.UserError(
                f"{name}: label {label}: write integers of at least 0, or names"
            )
        if len(match[2]) > _MAX_DIGITS:
            raise errors.UserError(
                f"{name}: {match[2][:_MAX_DIGITS]}... is too large for a label:"
                " number the classes from 0"
            )
        number[label] = int(match[1] + match[2]) - first
    of_split = {key: {number[x] for x in held} for key, held in every.items()}
    return number, (), classes.integers(name, split, of_split, reading)


def _refuse_several(name: str, labels: set[str]) -> None:
    """Raises `UserError` for a label that has several classes."""
    for label in sorted(labels):
        parts = [part.strip() for part in re.split(r"[;|,&+]", label)]
        several = len(parts) > 1 and labels.issuperset(parts)
        if several or re.fullmatch(r"\[.*\]|\d+(\s+\d+)+", label):
            raise errors.UserError(
                f"{name}: label {label} has several classes: write one class"
                " for each image"
            )


def _tell_combined(name: str, labels: set[str]) -> None:
    """Warns of labels that may be combinations of several classes.

    Those have parts in common: with `;` or `|` any; with spaces or commas more
    labels than parts, since names such as "hot dog" have them, too.
    """
    for separators, is_usual in ("[;|]", False), (r"[\s,]+", True):
        parts = {x: {*re.split(separators, x)} - {""} for x in labels}
        counts = Counter(itertools.chain.from_iterable(parts.values()))
        several = sorted(
            label
            for label, of in parts.items()
            if len(of) > 1 and any(counts[part] > 1 for part in of)
        )
        enough = len(labels) > len(counts) if is_usual else len(several) > 1
        if several and enough:
            terminal.warning(
                f"{name}: labels such as {few(map(repr, several), 2)} are read"
                " as one class each; if they are several classes, write one"
                " class for each image"
            )
            return


def _check_repeated(
    name: str, lines: _Lines, paths: Names, labels: np.ndarray | None
) -> None:
    """Warns of files that occur twice; refuses those with two labels."""
    # Of paths, a dict of all would be the largest part of the memory.
    hashes = map(hash, map(os.path.normpath, paths))
    _, first, same = np.unique(
        np.fromiter(hashes, np.int64, len(paths)), True, True
    )
    firsts = first[same.reshape(-1)]
    repeated, conflicts = [], []
    for i in np.flatnonzero(firsts < np.arange(len(paths))).tolist():
        j = int(firsts[i])
        if os.path.normpath(paths[i]) == os.path.normpath(paths[j]):
            repeated.append(i)
            if labels is not None and labels[i] != labels[j]:
                conflicts.append((j, i))
    if conflicts and lines.labels is not None:
        one, other = conflicts[0]
        raise errors.UserError(
            f"{name}: {len(conflicts):,} of {len(paths):,} lines give a file"
            f" another label, such as {lines.named[other]}"
            f" ({lines.labels[one]} in line {lines.rows[one].line},"
            f" {lines.labels[other]} in line {lines.rows[other].line}):"
            " write one line for each file"
        )
    if repeated:
        again = repeated[0]
        terminal.warning(
            f"{name}: {len(repeated):,} of {len(paths):,} lines repeat a file,"
            f" such as line {lines.rows[again].line} ({lines.named[again]}):"
            " each counts as an image"
        )


def csv_file(name: str, options: CSV, split: str, access: Access) -> Source:
    """Opens `csv:PATH`: lines of path,label, or of path alone.

    Columns are separated by commas, semicolons, tabs or bars, or by a space
    after the image, and found by their names in a header, or by their content.
    Relative paths start at the folder of the list. Labels that are integers are
    used unchanged, less `first_label`; names are numbered in sorted order.

    Splits are in lists of their own, whose name or folder is `{split}` in PATH,
    or in a column. Classes are those of all splits with labels. Otherwise the
    list is the split `train`.
    """
    reading = access.reading
    path = os.path.expanduser(options.path)
    of = _of_lists if "{split}" in path else _of_list
    own, by_split = of(name, path, split, reading)
    lines = by_split[own]
    splits = ", ".join(
        f"{key} ({'no labels' if x.labels is None else 'labelled'})"
        for key, x in by_split.items()
    )
    paths = Names.of(map(lines.table.path, lines.named))
    found = ImageFiles(
        path,
        paths,
        lines.named,
        np.arange(len(paths)),
        (*lines.found, ("splits", splits)),
        listed_in=os.path.dirname(lines.table.file),
    )
    labelled = {
        k: x.labels for k, x in by_split.items() if x.labels is not None
    }
    labels = None
    if lines.labels is not None:
        number, names, count = _numbered(name, own, labelled, reading)
        numbers = (number[x] if x else -1 for x in lines.labels)
        labels = np.fromiter(numbers, np.int64, len(paths))
        is_train = split_spec.meaning(own) == "train"
        if len(np.unique(labels)) == 1 < count and not is_train:
            terminal.warning(
                f"{name}: all images of {own} are of one class,"
                f" {lines.labels[0]}: if that is in the place of labels that"
                " are not known, leave them out"
            )
        found = found._replace(
            labels=labels, label_names=names, num_classes=count
        )
    elif labelled:
        terminal.warning(
            f"{name}: {own} has no labels, and {few(sorted(labelled))} has"
        )
    _check_repeated(name, lines, paths, labels)
    held_out = by_split.keys() == {"train"} and image_files.holds_out(
        split, reading
    )
    return image_files.source(name, split, access, found, held_out)
