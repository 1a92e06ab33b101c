"""Images that two splits share, and copies of images within a split.

Images are the same if they are read from the same place: a file, or a record
of a file. Copies are files, images of TFRecord files, or arrays, with the same
bytes; those of other datasets are not read for this.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tf_contrastive.base import errors
from tf_contrastive.datasets import paths, remembered, split_spec
from tf_contrastive.datasets.source import Source

# Copies from which a test split is refused, as a fraction of its images: its
# score is that of the training images. A few are common in published splits.
_MAX_COPIES = 0.5
# Images that are named.
_NAMED = 3


class Overlap(NamedTuple):
    """The images of a test split that a training split has, too."""

    same: np.ndarray  # Read from the same places, bool [n].
    copies: np.ndarray  # Of other files with the same bytes, bool [n].
    compared: bool  # Whether the bytes of both were read.


class Copies(NamedTuple):
    """Images of a split with the bytes of an earlier one."""

    number: int
    names: str  # Of the first ones, and of what they are copies of.
    relabelled: int  # Those of an image of another class.
    relabelled_names: str


class Seen(NamedTuple):
    """Images to score that an encoder was trained on."""

    number: int
    text: str  # Empty: none.
    # Whether their labels were learnt from, and they are more than a few.
    are_known: bool


class _Places(NamedTuple):
    """Where images are read from."""

    names: Sequence[str]
    name: np.ndarray  # Index into the names, int64 [n].
    row: np.ndarray  # In that place, int64 [n].


def find_overlap(train: Source, test: Source) -> Overlap:
    """Returns the images of `test` that are also in `train`."""
    copies = same = np.zeros([test.info.num_examples], bool)
    ours, theirs = _digests(train), _digests(test)
    compared = False
    if ours is not None and theirs is not None:
        compared = True
        copies = np.isin(theirs, ours)
        if not copies.any():  # The usual case, in which no path is looked at.
            return Overlap(same, copies, compared)
    of_train, of_test = _places(train), _places(test)
    if of_train and of_test:
        number = {name: i for i, name in enumerate(of_train.names)}
        known = np.array([number.get(name, -1) for name in of_test.names])
        # A file may be named twice, for two parts of it.
        own = np.array([number[name] for name in of_train.names])
        length = 1 + max(of_train.row.max(), of_test.row.max())
        keys = own[of_train.name] * length + of_train.row
        others = known[of_test.name]
        same = np.isin(others * length + of_test.row, keys)
    return Overlap(same, copies & ~same, compared)


def check_disjoint(
    train: Source,
    test: Source,
    learn: str = "split",
    score: str = "test_split",
) -> errors.Message | None:
    """Checks that what is scored on has no image that is learnt from.

    Args:
      train, test: splits of a dataset.
      learn, score: the arguments that name them.

    Returns:
      A warning of a few copies, or None.

    Raises:
      UserError: for common images, or if most are copies.
    """
    found = find_overlap(train, test)
    ours = errors.arg(learn, train.info.split)
    theirs = errors.arg(score, test.info.split)
    if count := np.count_nonzero(found.same):
        images = f"{count:,} image{'s' * bool(count > 1)}"
        one = f"{test.info.name}: {theirs} has {images} of {ours}"
        covers = count == train.info.num_examples
        base, advised = apart(train.info.split, test.info.split, covers)
        if advised == train.info.split or not base:
            names = _few(test, np.flatnonzero(found.same))
            raise errors.UserError(
                f"{one} ({names}): remove them from one of the two, or use"
                " other splits"
            )
        if advised:
            raise errors.UserError(f"{one}: use {errors.arg(learn, advised)}")
        raise errors.UserError(
            f"{one}: use slices without common images, such as"
            f" {errors.arg(learn, f'{base}[:90%]')} and"
            f" {errors.arg(score, f'{base}[90%:]')}"
        )
    rows = np.flatnonzero(found.copies)
    if not len(rows):
        return None
    text = (
        f"{test.info.name}: {len(rows):,} of the {len(found.copies):,} images"
        f" of {theirs} are copies of images of {ours}"
        f" ({_pairs(train, test, rows)}): remove them from one of the two"
    )
    if len(rows) >= _MAX_COPIES * len(found.copies):
        raise errors.UserError(text)
    return errors.Message(text)


def find_seen(trained: Source, test: Source, labelled: bool) -> Seen:
    """Says which images of `test` an encoder was trained on.

    Args:
      trained: the images that it was trained on.
      test: the images to score.
      labelled: whether it was trained on their labels, too.
    """
    found = find_overlap(trained, test)
    seen = np.count_nonzero(found.same | found.copies)
    if not seen:
        return Seen(0, "", False)
    total = test.info.num_examples
    text = (
        f"the encoder was trained on {seen:,} of the {total:,} images to score"
        + " and on their labels" * labelled
    )
    few = not found.same.any() and seen < _MAX_COPIES * total
    return Seen(int(seen), text, labelled and not few)


def apart(train: str, test: str, covers: bool) -> tuple[str | None, str | None]:
    """Returns (the whole split of both, the slice of train outside of test).

    Each is None if there is none, or if it cannot be told. `covers` is whether
    test has all images of train.
    """
    base, start, stop = split_spec.parse(train)
    other, first, last = split_spec.parse(test)
    if base != other:
        return None, None
    if not covers:
        if first and _is_below(start, first):
            return base, f"{base}[{start or ''}:{first}]"
        if last and _is_below(last, stop):
            return base, f"{base}[{last}:{stop or ''}]"
    return base, None


def _is_below(a: str | None, b: str | None) -> bool:
    """Whether a boundary of a slice is below another one, for certain.

    None is the first image for `a`, and the end for `b`.
    """
    kinds = {(x.endswith("%"), x.startswith("-")) for x in (a, b) if x}
    if len(kinds) > 1:
        return False
    low, high = (int((x or "0").rstrip("%")) for x in (a, b))
    return not b or low < high


def find_copies(source: Source) -> Copies | None:
    """Returns the copies in a split; None if the bytes were not read."""
    digests = _digests(source)
    if digests is None:
        return None
    _, first, image = np.unique(digests, True, True)
    originals = first[image]
    rows = np.flatnonzero(originals < np.arange(len(image)))
    relabelled = rows[:0]
    if source.arrays is not None and source.info.has_labels:
        labels = source.labels()
        relabelled = rows[labels[rows] != labels[originals[rows]]]
    names = (_pairs(source, source, some) for some in (rows, relabelled))
    return Copies(len(rows), next(names), len(relabelled), next(names))


def _pairs(train: Source, test: Source, rows: np.ndarray) -> str:
    """Names the first of some images of `test`, and what they are copies of."""
    ours, theirs = _digests(train), _digests(test)
    assert ours is not None and theirs is not None
    rows, more = rows[:_NAMED], ", ..." * (len(rows) > _NAMED)
    firsts = [np.argmax(ours == theirs[row]) for row in rows]
    named = _names(test, rows), _names(train, np.array(firsts, np.int64))
    pairs = map(" = ".join, zip(*named, strict=True))
    return ", ".join(pairs) + more


def _few(source: Source, rows: np.ndarray) -> str:
    names = _names(source, rows[:_NAMED])
    return ", ".join(names) + ", ..." * (len(rows) > _NAMED)


def _names(source: Source, rows: np.ndarray) -> list[str]:
    if source.files is not None:
        name, row = source.files.positions()
        files = source.files.names
        return [f"record {row[i]} of {files[name[i]]}" for i in rows]
    if source.paths is not None:
        return list(source.paths.take(rows))
    return [f"image {i}" for i in rows]


def _digests(source: Source) -> np.ndarray | None:
    """Returns digests of the images' bytes; None: they were not read."""
    arrays = source.arrays or {}
    if source.decoded:
        images = arrays["image"].numpy()
        return np.array([remembered.digest(image) for image in images])
    is_made = source.files is None and source.paths is None
    return None if is_made else source.digests


def _places(source: Source) -> _Places | None:
    """Returns where the images of a source are; None if that is not known."""
    if source.paths is not None:
        names = list(paths.real(iter(source.paths)))
        numbers = np.arange(len(names))
        return _Places(names, numbers, np.zeros_like(numbers))
    if source.files is not None:
        names = list(paths.real(iter(source.files.names)))
        return _Places(names, *source.files.positions())
    if source.digests is not None:
        zeros = np.zeros_like(source.digests)
        return _Places([""], zeros, source.digests)
    return None
