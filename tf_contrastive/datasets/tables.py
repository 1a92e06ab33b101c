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
from tf_contrastive.datasets.image_files import OWN, Listing
from tf_contrastive.datasets.paths import few
from tf_contrastive.datasets.source import Access, Source

_FORM = f"write a header such as path,label,split, {OWN}"
# The marks that spreadsheets write before other text than UTF-8.
_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
# Names of columns, in lower case and without spaces, hyphens and "_".
_PATHS = ("path", "image", "file", "filename")
_LABELS = ("label", "class", "target")
# What data frames write where there is no value.
_MISSING = ("", "nan", "<na>", "null", "n/a", "#n/a")
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
    wanted = (reading.image_feature,) if reading.image_feature else _PATHS
    try:
        raw = files.read(file)
        is_utf16 = raw.startswith(_UTF16)
        content = raw.decode("utf-16" if is_utf16 else "utf-8-sig")
        if "\0" in content:
            raise ValueError("it has zero bytes")
        first = re.split(r"[\r\n]", content, maxsplit=1)[0]
        for delimiter in (",", ";", "\t"):
            header = [cell.strip(' "') for cell in first.split(delimiter)]
            if {*map(_plain, wanted)}.intersection(map(_plain, header)):
                break
        else:
            raise errors.UserError(
                f"{file}: its first line, {first.strip()[:80]!r}, names no"
                f" column of paths ({', '.join(wanted)}): {_FORM}; for another"
                f" name, set {errors.arg('image_feature', 'NAME')}"
            )
        names = [name or str(i) for i, name in enumerate(header, 1)]
        table = pyarrow.csv.read_csv(
            pa.py_buffer(content.encode()),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, skip_rows=1
            ),
            pyarrow.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_string()),
                strings_can_be_null=False,
            ),
        )
        if len({*names}) < len(names):
            raise ValueError("several columns have the same name")
    except errors.UserError:
        raise
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
    file: str,
    table: pa.Table,
    names: tuple[str, ...],
    option: str,
    wanted: str | None,
) -> str | None:
    """Returns the column of an option, or of one of the usual names."""
    known = (_plain(wanted),) if wanted else names
    found = [name for name in table.column_names if _plain(name) in known]
    if wanted and not found:
        column = f"column of {file} in {errors.arg(option)}"
        raise errors.unknown(column, wanted, table.column_names)
    if len(found) > 1:
        raise errors.UserError(
            f"{file}: which of its columns {', '.join(found)} is it? Set"
            f" {errors.arg(option, found[0])}, or another one"
        )
    return next(iter(found), None)


def _lines(file: str, split: str | None, reading: Reading) -> pa.Table:
    """Reads a table; returns rows of `Listing`.

    Without a `split` of all lines, it is that of a column, or train.

    Raises:
      UserError: for lines that lack something, or columns of another name.
    """
    lines = _read(file, reading)
    wanted, own = reading.label_feature, reading.image_feature
    path = _column(file, lines, _PATHS, "image_feature", own)
    assert path is not None
    label = None
    if wanted != NO_FEATURE:
        label = _column(file, lines, _LABELS, "label_feature", wanted)
    of_split = _column(file, lines, ("split",), "split", None)
    if (row := pc.index(lines[path], "").as_py()) >= 0:
        raise errors.UserError(
            f"{file}: line {row + 1} below the header has no path: write one"
        )
    for name in filter(None, (path, label, of_split)):
        if pc.any(pc.match_substring_regex(lines[name], '^".*"$')).as_py():
            raise errors.UserError(
                f"{file}: column {name} has quotes after a blank, which are"
                " part of the value: write no blank before them"
            )
    others = [
        name
        for name in lines.column_names
        if name not in (path, label, of_split)
        and pc.any(pc.not_equal(lines[name], "")).as_py()
    ]
    if label is None and others and not wanted and split in (None, "train"):
        raise errors.UserError(
            f"{file}: which of its columns {few(others)} has the labels? Set"
            f" {errors.arg('label_feature', others[-1])}, another one, or"
            f" {NO_FEATURE}"
        )
    for other in others:
        if all(map(split_spec.meaning, pc.unique(lines[other]).to_pylist())):
            raise errors.UserError(
                f"{file}: column {other} has splits: rename it to split"
            )
    base, none = os.path.dirname(file), paths.array_of([""] * len(lines))

    def located(written: str) -> str:
        return written if "://" in written else os.path.join(base, written)

    def split_of(word: str) -> str:
        if split or of_split is None:
            return split or "train"
        if meaning := split_spec.meaning(word):
            return meaning
        raise errors.UserError(
            f"{file}: column {of_split} has {word!r}, which is not a split:"
            " write train, test or validation in every line"
        )

    names = lines[path].combine_chunks()
    labels = none if label is None else lines[label].combine_chunks()
    splits = none if of_split is None else lines[of_split].combine_chunks()
    is_bare = pc.is_in(pc.utf8_lower(labels), paths.array_of(_MISSING))
    files = map(located, paths.texts(names))
    words = map(split_of, paths.texts(splits))
    columns = {
        "path": paths.array_of(files, len(lines)),
        "name": names,
        "label": pc.if_else(is_bare, "", labels).dictionary_encode(),
        "split": paths.array_of(words, len(lines)).dictionary_encode(),
    }
    return pa.table(columns)


# ---- Labels ------------------------------------------------------------------


def _check_repeated(name: str, rows: pa.Table) -> None:
    """Warns of files that occur twice; refuses those with two labels."""
    located = rows["path"].combine_chunks()
    places = paths.array_of(paths.real(paths.texts(located)), len(rows))
    place = places.dictionary_encode().indices.to_numpy()
    _, first = np.unique(place, return_index=True)
    firsts = first[place]
    again = np.flatnonzero(firsts < np.arange(len(place)))
    if not len(again):
        return
    columns = (rows[key].combine_chunks() for key in ("label", "split"))
    label, split = (column.indices.to_numpy() for column in columns)
    other = again[
        (label[again] != label[firsts[again]])
        & (split[again] == split[firsts[again]])
    ]
    if len(other):
        raise errors.UserError(
            f"{name}: {len(other):,} of {len(place):,} lines give a file"
            f" another label, such as {rows['name'][int(other[0])]}: write one"
            " line for each file"
        )
    terminal.warning(
        f"{name}: {len(again):,} of {len(place):,} lines repeat a file, such as"
        f" {rows['name'][int(again[0])]}: each counts as an image"
    )


# ---- The listing -------------------------------------------------------------


def _tables(path: str) -> list[str]:
    is_file = tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    return [path] * is_file


def _list(name: str, path: str, reading: Reading) -> Listing:
    """Lists the images of all splits.

    Raises:
      UserError: for tables of another form.
    """
    parts = []
    if "{split}" in path:
        for split in ("train", "test", "validation"):
            _, found = split_spec.find(name, path, split, _tables)
            parts += [_lines(file, split, reading) for file in found]
    elif _tables(path):
        parts = [_lines(path, None, reading)]
    if not parts:
        what = "is a folder" if tf.io.gfile.exists(path) else "does not exist"
        raise errors.AbsentDataError(
            f"{name}: {path} {what}: use a table, or folder:PATH"
        )
    rows = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    labels = pc.unique(rows["label"]).to_pylist()
    if several := sorted(filter(_SEVERAL.fullmatch, labels)):
        raise errors.UserError(
            f"{name}: label {several[0]} has several classes: write one class"
            f" for each image, {OWN}"
        )
    _check_repeated(name, rows)
    return Listing(path, rows, {"lines": f"{len(rows):,}"}, has_numbers=True)


def open_table(name: str, options: CSV, split: str, access: Access) -> Source:
    """Opens `csv:PATH`.

    Relative paths start at the folder of the table. Splits are in tables of
    their own, whose name or folder is `{split}` in PATH, or in a column.
    """
    listing = _list(name, os.path.expanduser(options.path), access.reading)
    return image_files.open_listing(name, split, access.reading, listing)
