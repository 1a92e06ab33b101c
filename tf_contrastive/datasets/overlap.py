"""Images that two splits share, and copies of them.

Images are the same if they are read from the same place: a file, or a record
of a file. Copies are files, images of TFRecord files, or arrays, with the same
bytes; those of other datasets are not read for this.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tf_contrastive.base import errors
from tf_contrastive.datasets import paths, remembered
from tf_contrastive.datasets.paths import few
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


def find_overlap(train: Source, test: Source) -> Overlap:
    """Returns the images of `test` that are also in `train`."""
    copies = same = np.zeros([test.info.num_examples], bool)
    ours, theirs = _digests(train), _digests(test)
    if ours is not None and theirs is not None:
        copies = np.isin(theirs, ours)
        if not copies.any():  # The usual case, in which no path is looked at.
            return Overlap(same, copies)
    of_train, of_test = _places(train), _places(test)
    if of_train is not None and of_test is not None:
        same = np.isin(of_test, of_train)
    return Overlap(same, copies & ~same)


def check_disjoint(
    train: Source, test: Source, learn: str = "split", score: str = "test_split"
) -> errors.UserError | None:
    """Checks that what is scored on has no image that is learnt from.

    `learn` and `score` are the arguments that name the two.

    Returns:
      The error, not raised, if a few images are copies: a warning. Or None.

    Raises:
      UserError: for common images, or if most are copies.
    """
    found = find_overlap(train, test)
    ours = errors.arg(learn, train.info.split)
    theirs = errors.arg(score, test.info.split)
    if count := np.count_nonzero(found.same):
        names = _names(test, np.flatnonzero(found.same))
        raise errors.UserError(
            f"{test.info.name}: {theirs} has {count:,} image(s) of {ours}"
            f" ({names}): use slices without common images, such as"
            f" {errors.arg(learn, 'train[:90%]')} and"
            f" {errors.arg(score, 'train[90%:]')}, or remove them from one of"
            " the two"
        )
    rows = np.flatnonzero(found.copies)
    if not len(rows):
        return None
    error = errors.UserError(
        f"{test.info.name}: {len(rows):,} of the {len(found.copies):,} images"
        f" of {theirs} are copies of images of {ours}"
        f" ({_names(test, rows)}): remove them from one of the two"
    )
    if len(rows) >= _MAX_COPIES * len(found.copies):
        raise error
    return error


def _names(source: Source, rows: np.ndarray) -> str:
    """Names the first of some images."""
    rows = rows[: _NAMED + 1]
    if source.files is not None:
        file, row = source.files.positions()
        names = source.files.names
        return few(f"record {row[i]} of {names[file[i]]}" for i in rows)
    if source.paths is not None:
        return few(source.paths.take(rows))
    return few(f"image {row}" for row in rows)


def _digests(source: Source) -> np.ndarray | None:
    """Returns digests of the images' bytes; None: they were not read."""
    if source.decoded and source.arrays is not None:
        images = source.arrays["image"].numpy()
        return np.array([remembered.digest(image) for image in images])
    is_made = source.files is None and source.paths is None
    return None if is_made else source.digests


def _places(source: Source) -> np.ndarray | None:
    """Returns numbers of the images' places, int64 [n]; None: unknown."""
    if source.paths is not None:
        return _numbers(source.paths)
    if source.files is not None:
        files, rows = source.files.positions()
        return _numbers(source.files.names)[files] + rows
    return source.digests


def _numbers(names: Iterable[str]) -> np.ndarray:
    """Returns a number for each path, int64 [n]."""
    encoded = (os.fsencode(name) for name in paths.real(iter(names)))
    return np.fromiter(map(remembered.digest, encoded), np.int64)
