"""Specifications of splits and slices, as in TFDS: `train[10%:500]`."""

import functools
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable

import numpy as np

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading

_SPLIT = re.compile(r"([\w-]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?")
# Name of a folder, a table or a cell, in any letter case -> its split.
_MEANINGS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
}
_WORD = "|".join(sorted(_MEANINGS, key=len, reverse=True))
_INSIDE = re.compile(rf"(?=({_WORD}))")


def parse(split: str) -> tuple[str, str | None, str | None]:
    """Splits `train[10%:500]` into ("train", "10%", "500"), or `UserError`."""
    match = _SPLIT.fullmatch(split)
    if not match:
        raise errors.UserError(
            f"split {split!r} is not understood: use a split such as train,"
            " test, train[:1000] or train[10%:]"
        )
    return match[1], match[2], match[3]


def meaning(name: str) -> str | None:
    """Returns the split that a name means: train, test, validation or None."""
    return _MEANINGS.get(name.strip().lower())


def base(split: str) -> str:
    """Returns the split of a slice, `testing[:10%]`, as it is meant, "test"."""
    name, *_ = parse(split)
    return meaning(name) or name


def find(
    name: str, pattern: str, split: str, look: Callable[[str], list[str]]
) -> tuple[str, list[str]]:
    """Returns a split's path, and the files there, of `look(path)`.

    `{split}` in `pattern` is any word for the split.

    Raises:
      UserError: if there are files of several words.
    """
    wanted = meaning(split)
    words = {split, *(w for w, other in _MEANINGS.items() if other == wanted)}
    paths = {pattern.replace("{split}", word) for word in words}
    there = [(path, found) for path in sorted(paths) if (found := look(path))]
    if len(there) > 1:
        raise errors.UserError(
            f"{name}: {' and '.join(path for path, _ in there)} both mean the"
            f" split {split}: rename or join them"
        )
    return there[0] if there else (pattern.replace("{split}", split), [])


def look_alikes(names: Iterable[str]) -> list[str]:
    """Returns names that differ in the word for a split only, or [].

    Also if they differ in numbers, such as 01_train and 02_test.
    """
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        for match in _INSIDE.finditer(name.lower()):
            start, word = match.start(), match[1]
            parts = name[:start], "*", name[start + len(word) :]
            rest = re.sub(r"[\W\d_]+", " ", "".join(parts).lower())
            groups.setdefault(rest, {})[_MEANINGS[word]] = name
    return next((list(g.values()) for g in groups.values() if len(g) > 1), [])


def bounds(split: str, num_examples: int) -> tuple[int, int]:
    """Returns (start, stop) of a split such as `train[10%:]` or `train[-500:]`.

    A percentage of the whole split's `num_examples` is rounded to the nearest
    example, as in TFDS.

    Raises:
      UserError: for a range beyond the examples, or an empty one.
    """
    _, start, stop = parse(split)
    first = _absolute(start, num_examples, 0)
    last = _absolute(stop, num_examples, num_examples)
    is_inside = max(abs(first), abs(last)) <= num_examples
    first = first + num_examples if first < 0 else first
    last = last + num_examples if last < 0 else last
    if not is_inside or first >= last:
        raise errors.UserError(
            f"split {split} is empty, or exceeds the {num_examples} examples:"
            " use another slice"
        )
    return first, last


def _absolute(boundary: str | None, num_examples: int, default: int) -> int:
    if boundary is None:
        return default
    if boundary.endswith("%"):
        return round(int(boundary[:-1]) * num_examples / 100)
    return int(boundary)


def only_train(name: str, split: str, hint: str) -> None:
    """Raises `AbsentSplitError` unless `split` is `train` or a slice of it."""
    if (base := parse(split)[0]) != "train":
        raise errors.AbsentSplitError(
            f"{name} has no split {base!r}, only train: {hint}"
        )


def refuse_fraction(name: str, reading: Reading, reason: str) -> None:
    """Raises `UserError` if a part is to be held out where none can be."""
    if fraction := reading.test_fraction:
        raise errors.UserError(
            f"{name}: {errors.arg('test_fraction', format(fraction, 'g'))} has"
            f" no effect, since {reason}: remove it, and use those splits, or"
            " slices such as train[:80%] and train[80%:]"
        )


def random_order(names: Iterable[str]) -> np.ndarray:
    """Returns an order of names, int [n], that depends on each name alone."""
    # Not for security: hosts in FIPS mode refuse it otherwise.
    md5 = functools.partial(hashlib.md5, usedforsecurity=False)
    digests = (md5(name.encode()).digest() for name in names)
    return np.argsort(np.fromiter(digests, "S16"), kind="stable")


def without_copies(chosen: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """Returns the chosen examples, bool [n], without copies of the others.

    So that copies of an image are on one side. Of digests, int64 [n], 0 is that
    of no image.
    """
    return chosen & ~np.isin(digests, digests[~chosen & (digests != 0)])


def numbered(place: str, rows: np.ndarray) -> np.ndarray:
    """Returns digests of a place's rows, int64 [n], that are no files."""
    return zlib.crc32(place.encode()) >> 1 << 32 | rows.astype(np.int64)


def held_out(
    order: np.ndarray, labels: np.ndarray | None, fraction: float
) -> np.ndarray:
    """Chooses a fraction of each class, at least one of two: bool [n].

    They are the first in `order`, int [n]; labels of -1, none, are left out.
    """
    chosen = np.zeros([len(order)], bool)
    classes = np.zeros_like(order) if labels is None else labels[order]
    for label in np.unique(classes[classes >= 0]):
        rows = order[classes == label]
        count = round(fraction * len(rows))
        chosen[rows[: min(max(count, 1), len(rows) - 1)]] = True
    return chosen
