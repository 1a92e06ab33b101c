"""Parts of a dataset: splits as TFDS writes them, and shares of each class."""

import re

import numpy as np

from tf_contrastive import errors

_SPLIT = re.compile(r"([\w-]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?")


def parse(split: str) -> tuple[str, str | None, str | None]:
    """Splits `train[10%:500]` into ("train", "10%", "500").

    Raises:
      UserError: if `split` is not of that form.
    """
    match = _SPLIT.fullmatch(split)
    if not match:
        raise errors.UserError(
            f"split {split!r} is not understood: give a split such as train,"
            " test, train[:1000] or train[10%:]"
        )
    return match.groups()


def bounds(split: str, num_examples: int) -> tuple[int, int]:
    """Returns the range of examples that `split` asks for.

    Args:
      split: such as `train[:1000]`, `train[10%:]` or `train[-500:]`; a per
        cent is rounded to the nearest example, as TFDS does.
      num_examples: how many examples the whole split has.

    Returns:
      (start, stop), a range that is not empty.

    Raises:
      UserError: if it asks for more examples than there are, or for none.
    """
    _, start, stop = parse(split)
    first = _absolute(start, num_examples, 0)
    last = _absolute(stop, num_examples, num_examples)
    if max(abs(first), abs(last)) > num_examples:
        raise errors.UserError(
            f"split {split} asks for more than the {num_examples} examples"
            " there are: give a slice of those"
        )
    first = first + num_examples if first < 0 else first
    last = last + num_examples if last < 0 else last
    if first >= last:
        raise errors.UserError(
            f"split {split} of {num_examples} examples holds none: give a"
            " wider slice"
        )
    return first, last


def _absolute(boundary: str | None, num_examples: int, default: int) -> int:
    if boundary is None:
        return default
    if boundary.endswith("%"):
        return round(int(boundary[:-1]) * num_examples / 100)
    return int(boundary)


def balanced_rows(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draws the same number of examples of every class.

    A smaller share's examples are among those of a larger one, by the same
    seed.

    Args:
      labels: int [n].
      fraction: share of all examples, in (0, 1]; rounded to whole examples of
        a class, at least one. 1 takes all, balanced or not.
      seed: of the draw.

    Returns:
      int [m], increasing. A class of fewer examples gives all that it has.
    """
    if fraction >= 1:
        return np.arange(len(labels))
    classes = np.unique(labels)
    count = max(round(fraction * len(labels) / len(classes)), 1)
    # RandomState's stream is frozen for good; Generator's is not.
    random = np.random.RandomState(seed % 2**32)
    drawn = [
        random.permutation(np.flatnonzero(labels == label))[:count]
        for label in classes
    ]
    return np.sort(np.concatenate(drawn))


def only_train(name: str, split: str, hint: str) -> None:
    """Raises `UserError` unless `split` is of `train`, the only one."""
    base = parse(split)[0]
    if base != "train":
        raise errors.UserError(
            f"{name} has no split {base!r}, only train: {hint}"
        )
