"""Tables in text files with columns of paths, of labels, or of splits."""

import array
import codecs
import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding
from tf_contrastive.datasets.image_files import is_image
from tf_contrastive.datasets.names import BLOCK, Names, Writer

# The mark that spreadsheets write before the text -> its encoding.
_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# Characters in which the delimiter is found.
_SAMPLE = 1 << 16
# Names of columns, in lower case, with "_" for spaces and hyphens.
PATH_COLUMN = re.compile(
    r"((full|relative|rel|local|absolute|abs)_?)?(file|image|img|photo|picture)?"
    r"_?(path|file|filename|file_name|file_?path|fname|image|img|photo|picture"
    r"|url|uri|(?<=.)name|(?<=.)id)s?"
)
LABEL_COLUMN = re.compile(
    r"(label|class|category)(e?s|_?(name|id|idx|index|no|number)s?)?|categories"
    r"|targets?|ground_?truth"
)
SPLIT_COLUMN = re.compile(r"splits?|(data_?)?(sub)?set|partition|phase|usage")
# Of facts on an image, which are no classes.
FACT_COLUMN = re.compile(
    r"(.*_)?(width|height|size|bytes|md5|sha\d*|hash|checksum|date|datetime"
    r"|timestamp|license|captions?|descriptions?|comments?|notes?|bbox|lat|lon"
    r"|latitude|longitude|channels|[xy]_?(min|max))"
)
# Of columns that number the lines, or name them.
ROW_COLUMN = re.compile(r"|ids?|idx|index|no|nr|row|number|unnamed:_\d+|uu?id")


class Row(NamedTuple):
    """A line, or several if a cell has line breaks; `line` is from 1."""

    line: int
    cells: list[str]

    def cell(self, column: int) -> str:
        """Returns a cell, or an empty text."""
        return self.cells[column] if column < len(self.cells) else ""


class Rows(Sequence[Row]):
    """Lines in columns, which take less memory than a `Row` each."""

    def __init__(
        self, lines: np.ndarray, widths: np.ndarray, columns: list[Names]
    ) -> None:
        """Numbers of the lines, and of their cells, int [n]; all cells."""
        self.lines, self.widths, self.columns = lines, widths, columns

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Rows":
        """Returns the rows; cells beyond the end of a row are empty."""
        waiting, writers = iter(rows), list[Writer]()
        lines, widths, count = array.array("q"), array.array("q"), 0
        while block := list(itertools.islice(waiting, BLOCK)):
            lines.extend(row.line for row in block)
            widths.extend(len(row.cells) for row in block)
            while len(writers) < max(widths[count:]):
                writers.append(Writer())
                writers[-1].extend([""] * count)
            count += len(block)
            for column, writer in enumerate(writers):
                writer.extend([row.cell(column) for row in block])
        columns = [writer.names() for writer in writers]
        return cls(np.array(lines), np.array(widths), columns)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> "Rows": ...

    def __getitem__(self, index: int | slice) -> "Row | Rows":
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        columns = self.columns[: self.widths[index]]
        return Row(int(self.lines[index]), [c[index] for c in columns])

    def take(self, rows: np.ndarray) -> "Rows":
        """Returns some of the rows, int [m]."""
        columns = [column.take(rows) for column in self.columns]
        return Rows(self.lines[rows], self.widths[rows], columns)

    def column(self, number: int) -> Names:
        """Returns a column."""
        if number < len(self.columns):
            return self.columns[number]
        return Names(b"", np.zeros([len(self)], np.int64))  # Empty texts.

    def where(self, cells: list[str]) -> np.ndarray:
        """Returns the places of rows with these cells, int [m]."""
        places = self.column(0).where(cells[0])
        same = [i for i in places.tolist() if self[i].cells == cells]
        return np.array(same, np.int64)


@dataclasses.dataclass(frozen=True)
class Table:
    """A list.

    Attributes:
      file: its path.
      header: names of columns, or [].
      rows: the lines below it.
      about: how they are written.
    """

    file: str
    header: list[str]
    rows: Rows
    about: str

    @functools.cached_property
    def width(self) -> int:
        """The number of columns."""
        counts = np.bincount(self.rows.widths)
        most = np.flatnonzero(counts == counts.max())[-1]
        return len(self.header) or int(most)

    def named(self, column: int) -> str:
        """Returns the name of a column, or its number."""
        name = self.header[column] if self.header else ""
        return name or str(column + 1)

    def matching(self, names: re.Pattern[str]) -> list[int]:
        """Returns the columns whose name in the header matches."""
        return [
            column
            for column, name in enumerate(self.header)
            if names.fullmatch(plain(name))
        ]

    def column(self, number: int) -> Names:
        """Returns a column."""
        return self.rows.column(number)

    def path(self, written: str) -> str:
        """Returns the path that a list means."""
        if "://" in written:
            return written
        here = os.path.dirname(self.file)
        return os.path.join(here, os.path.expanduser(written))


def plain(name: str) -> str:
    """Returns the name of a column in the form of the patterns above."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


# ---- Text --------------------------------------------------------------------


def read(path: str, reading: Reading) -> Table:
    """Reads a list.

    Raises:
      UserError: if it is no text, or has no lines.
    """
    try:
        content = files.read(path)
        marks = (mark for mark in _ENCODINGS if content.startswith(mark))
        if encoding := _ENCODINGS.get(next(marks, b"")):
            content = content.decode(encoding).encode()
        if b"\0" in content:  # Pythons differ in it.
            raise ValueError("it has zero bytes")
        start = content[: 4 * _SAMPLE].decode(errors="ignore")[:_SAMPLE]
        # As Excel tells itself the delimiter.
        if match := re.match(r'"?sep=(.)"?\r?(?=\n)', start, re.IGNORECASE):
            content = content[len(match[0].encode()) :]
        delimiter = match[1] if match else _delimiter(start, path)
        comments: list[str] = []
        # The text of a large file at once takes more memory than its rows.
        lines = io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")
        rows = Rows.of(_records(lines, delimiter, path, comments))
    except (ValueError, csv.Error) as error:
        raise errors.UserError(
            f"{path} is not a CSV file ({errors.first_line(error)}): write"
            " lines of path,label, in UTF-8"
        ) from error
    if rows_like := [line for line in comments if _names_image(line)]:
        terminal.warning(
            f"{path}: {len(rows_like):,} line(s) that start with # are"
            f" comments, such as {rows_like[0]}: a name that does needs quotes"
        )
    separator = _DELIMITERS.get(delimiter, repr(delimiter))
    if rows and rows.widths.max() == 1:
        rows, separator = _split_at_space(rows)
    table = Table(path, [], rows, "")
    if rows and _is_header(table, reading):
        header = rows[0].cells
        # Lists that were joined have several.
        rows = rows.take(np.setdiff1d(np.arange(len(rows)), rows.where(header)))
        table = Table(path, header, rows, "")
    if not rows:
        raise errors.UserError(f"{path} is empty: write lines of path,label")
    of_columns = f"separated by {separator}" if table.width > 1 else ""
    names = f"header {', '.join(table.header)}" if table.header else "no header"
    left_out = f"{len(comments)} comments" if comments else ""
    parts = (f"{len(rows):,} lines", of_columns, names, left_out)
    about = ", ".join(filter(None, parts))
    return dataclasses.replace(table, about=about)


def _records(
    text: Iterable[str], delimiter: str, path: str, comments: list[str]
) -> Iterator[Row]:
    """Yields the lines of a list; adds those that are comments to `comments`.

    Raises:
      ValueError, csv.Error: for lines that are not understood.
    """
    number = start = 0
    is_begun = False

    def lines() -> Iterator[str]:
        nonlocal number, start, is_begun
        for line in text:
            number += 1
            if is_begun:  # In quotes.
                yield line
            elif "#" in line and _is_comment(line, delimiter, path):
                comments.append(line.strip())
            else:
                start, is_begun = number, True
                yield line
        if is_begun:
            raise ValueError(f"a quote in line {start} is not closed")

    reader = csv.reader(lines(), delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        is_begun = False
        cells = [cell.strip() for cell in row]
        while cells and not cells[-1]:  # Spreadsheets fill lines up.
            cells.pop()
        if cells:
            yield Row(start, cells)


def _is_comment(line: str, delimiter: str, path: str) -> bool:
    """Whether a line starts with "#", which is not that of a file's name."""
    line = line.strip()
    name = line.split(delimiter)[0].rstrip()
    return line.startswith("#") and not (
        is_image(name) and _exists(os.path.join(os.path.dirname(path), name))
    )


def _exists(path: str) -> bool:
    """Whether a file exists; not, if its scheme is unknown, such as https."""
    try:
        return tf.io.gfile.exists(path)
    except tf.errors.OpError:
        return False


def _names_image(comment: str) -> bool:
    return any(map(is_image, re.split(r"[,;\t|\s\"]", comment)))


def _delimiter(text: str, path: str) -> str:
    """Returns what separates the columns, by the start of a text.

    It leaves most cells with the name of an image, of which the first exists,
    and then most lines with equally many columns.
    """

    def score(delimiter: str) -> tuple[int, bool, int]:
        rows, lines = [], io.StringIO(text, newline="")
        # The sample may end in quotes.
        with contextlib.suppress(ValueError, csv.Error):
            for row in _records(lines, delimiter, path, []):
                rows.append(row)
        several = Rows.of(row for row in rows if len(row.cells) > 1)
        table = Table(path, [], several, "")
        images = [next(filter(is_image, r.cells), "") for r in table.rows]
        named = [image for image in images if image]
        exists = bool(named) and _exists(table.path(named[0]))
        widths = Counter(len(row.cells) for row in table.rows)
        return len(named), exists, max(widths.values(), default=0)

    return max(_DELIMITERS, key=score)


def _split_at_space(rows: Rows) -> tuple[Rows, str]:
    """Splits lines such as "a b.png hot dog" after the name of the image.

    Returns:
      (rows, what separates them).
    """
    endings = "|".join(map(re.escape, decoding.extensions()))
    after_image = re.compile(rf"(.*?(?:{endings}))\s+(.+)", re.IGNORECASE)

    def split(row: Row) -> Row | None:
        match = after_image.fullmatch(row.cells[0])
        if not match or after_image.match(match[2] + " ."):
            return None
        return Row(row.line, [match[1], match[2]])

    def parts() -> Iterator[Row]:
        for place, row in enumerate(rows):
            part, words = split(row), row.cells[0].split()
            is_pair = len(words) == 2 and not any(map(is_image, words))
            if part is None and place == 0 and is_pair:
                part = Row(row.line, words)  # A header.
            if part is None:
                raise ValueError
            yield part

    try:
        return Rows.of(parts()), "spaces"
    except ValueError:
        return rows, ""


# ---- The header --------------------------------------------------------------


def _is_header(table: Table, reading: Reading) -> bool:
    """Whether the first row of a list names its columns."""
    first, others = table.rows[0], table.rows[1:]
    names = [*map(plain, first.cells)]
    chosen = (reading.csv_path_column, reading.csv_label_column)
    if any(plain(c) in names for c in chosen if c and not c.isdecimal()):
        return True
    for column, cell in enumerate(first.cells):
        # Whole lines that recur are those of joined lists.
        same = (
            others[place].cells != first.cells
            for place in others.column(column).where(cell).tolist()
        )
        if is_image(cell) or (cell and any(same)):
            return False
    known = (PATH_COLUMN, LABEL_COLUMN, SPLIT_COLUMN, ROW_COLUMN)
    if any(p.fullmatch(name) for p in known for name in names if name):
        return True
    # Of other names: a line without an image before those that have one.
    images = columns_of_images(dataclasses.replace(table, rows=others))
    if images:
        return not exists(table, first.cell(images[0]))
    # Or one without a file before one that has one.
    present = [exists(table, row.cell(0)) for row in table.rows[:2]]
    return present == [False, True]


def columns_of_images(table: Table) -> list[int]:
    """Returns the columns in which most cells name an image."""
    if not table.rows:
        return []
    return [
        column
        for column in range(table.width)
        if 2 * sum(map(is_image, table.column(column))) > len(table.rows)
    ]


def exists(table: Table, written: str) -> bool:
    """Whether a file exists, possibly with an extension."""
    path = table.path(written)
    endings = ("", *decoding.extensions())
    return any(tf.io.gfile.exists(path + ending) for ending in endings)
