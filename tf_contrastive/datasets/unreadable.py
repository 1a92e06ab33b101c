"""Images that could be read when a dataset was opened, and no longer can.

An error of TensorFlow's decoders names no file. `explain` opens the datasets of
the process again, verifies every image, and names those that have become
unreadable. Verified files that are remembered are verified, too: what
rots on a disk keeps its size and time.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.datasets.source import Source

# What readers and decoders raise.
_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnknownError,
)
# The operation that passes their errors on, in any strategy.
_INPUT = "IteratorGetNext"


class State(NamedTuple):
    """What an opened dataset was like."""

    bad_images: tuple[str, ...]
    sizes: np.ndarray | None  # Of image files, int32 [n, 2].

    @classmethod
    def of(cls, source: Source) -> "State":
        """Returns the present state of a dataset."""
        sizes = (source.arrays or {}).get("size")
        return cls(
            source.info.bad_images, None if sizes is None else sizes.numpy()
        )


def explain(
    error: BaseException,
    opened: Iterable[tuple[Callable[[], Source], State, int]],
) -> errors.UserError | None:
    """Returns the error that names an image which can no longer be read.

    Args:
      error: the error that ended a command, or a run.
      opened: for each dataset, what opens it again and verifies all images,
        with any number of unreadable ones; its state when it was opened; and
        its `max_bad_images`.

    Returns:
      None, if the error has another reason. What was found unreadable is not
      remembered as verified: the next start counts it.
    """
    # TensorFlow's message may quote a record, which is no text.
    quotes_record = isinstance(error, UnicodeDecodeError)
    of_input = isinstance(error, _ERRORS) and _INPUT in str(error)
    if not (quotes_record or of_input):
        return None
    terminal.info("looking for the image that cannot be read")
    for open_again, before, limit in opened:
        try:
            source = open_again()
            if found := _difference(source, before, limit):
                return found
        except errors.UserError as found:
            return found
    return None


def _difference(
    source: Source, before: State, limit: int
) -> errors.UserError | None:
    """Returns the error for what has become unreadable in a dataset."""
    name, now = source.info.name, State.of(source)
    bad = now.bad_images
    known = set(before.bad_images)
    if new := [image for image in bad if image not in known]:
        one = f"{name}: {_few(new)} can no longer be read"
        total = len(bad) + source.info.num_examples
        count = f"{len(bad)} of {total} images cannot be read"
        if len(bad) > limit:
            return errors.UserError(
                f"{one}; {count}, more than"
                f" {errors.arg('max_bad_images', limit)}: restore or remove"
                f" them, or set {errors.arg('max_bad_images', len(bad))} to"
                " leave them out"
            )
        return errors.UserError(
            f"{one}: restore what is damaged, or repeat the command to go on"
            f" without it ({count}, and {errors.arg('max_bad_images', limit)})"
        )
    if before.sizes is not None and now.sizes is not None:
        if len(before.sizes) != len(now.sizes):
            return errors.UserError(
                f"{name} has changed since the start: repeat the command"
            )
        changed = np.flatnonzero((before.sizes != now.sizes).any(axis=1))
        if len(changed):
            assert source.paths is not None
            return errors.UserError(
                f"{name}: {_few(list(source.paths.take(changed)))} has"
                " changed since the start: restore what is damaged, or repeat"
                " the command"
            )
    if source.files and (record := source.files.unreadable(source.decode)):
        return errors.UserError(
            f"{name}: {record}: restore the file, or write it again"
        )
    return None


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
