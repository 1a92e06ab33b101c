"""What an error of TensorFlow means: a lost worker, a full disk, no memory.

Whatever needs the others raises the error of a lost worker, and its type is
often that of another problem, such as a full disk.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.eager import context

from tf_contrastive.base import errors

# What TensorFlow writes where a collective or a call of another worker failed.
_REMOTE = re.compile(r"collective.*abort|grpc|remote target|heartbeat", re.I)
_MEMORY = re.compile(r"\bOOM\b|out of memory|allocat", re.I)
# What it may raise without these words. Unreadable data raise others.
_AMBIGUOUS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
# How long a lost worker may still seem to answer, and an answer may take.
DYING_SECONDS = 3.0
_ANSWER_SECONDS = 5.0
# A worker that does not answer so often, at such intervals, is lost, in 20 to
# 40 s. TensorFlow gives up one that its first worker misses after 10 s.
_CHECK_EVERY_SECONDS = 5.0
_UNANSWERED = 4

# The other workers of this process's cluster. A process joins at most one.
others: tuple[tuple[str, int], ...] = ()


class LostWorkerError(errors.InterruptedRunError):
    """Another worker of the run is lost."""


def set_others(addresses: Sequence[tuple[str, int]]) -> None:
    """Sets (host, port) of each other worker that this process depends on."""
    global others
    others = tuple(addresses)


def watch_others() -> None:
    """Lets what needs the others fail once one of them cannot be reached.

    TensorFlow asks only the first worker whether the others are there: two that
    reach it but not each other would wait forever. What a worker computes, and
    how long, does not matter: its operating system answers.
    """
    if others:
        threading.Thread(target=watch, daemon=True).start()


def watch() -> None:
    """Aborts all collectives once another worker does not answer."""
    unanswered = dict.fromkeys(others, 0)
    while max(unanswered.values()) < _UNANSWERED:
        time.sleep(_CHECK_EVERY_SECONDS)
        for each in others:
            unanswered[each] = 0 if answers(*each) else unanswered[each] + 1
    host, port = max(unanswered, key=unanswered.__getitem__)
    context.context().abort_collective_ops(
        tf.errors.UNAVAILABLE, f"{host}:{port} does not answer this worker"
    )


def meaning(error: Exception) -> errors.UserError | None:
    """Returns the error to report instead of TensorFlow's; None: that one."""
    if errors.is_full_disk(error):
        return errors.UserError(
            f"cannot write ({errors.first_line(error)}): {errors.FREE_SPACE}"
        )
    if lost := _lost_worker(error):
        return LostWorkerError(
            f"a worker is lost ({lost}): repeat the command on all of them to"
            " resume"
        )
    is_exhausted = isinstance(error, tf.errors.ResourceExhaustedError)
    if is_exhausted and (reason := _line(error, _MEMORY)):
        return errors.UserError(
            f"out of memory ({reason}): use a smaller"
            f" {errors.arg('batch_size')}, or {errors.arg('grad_cache_chunks')}"
        )
    return None


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Context, or decorator, that raises `meaning` for errors that have one."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        if known := meaning(error):
            raise known from error
        raise


def _lost_worker(error: Exception) -> str | None:
    """Returns why another worker is taken for lost; None: it is not."""
    if not others or not isinstance(error, tf.errors.OpError):
        return None
    if reason := _line(error, _REMOTE):
        return reason
    if isinstance(error, _AMBIGUOUS):
        until = time.monotonic() + DYING_SECONDS
        while time.monotonic() < until:
            for host, port in others:
                if not answers(host, port):
                    return f"{host}:{port} does not answer"
            time.sleep(0.5)
    return None


def _line(error: Exception, pattern: re.Pattern) -> str | None:
    """Returns the first line of an error that a pattern matches, if any.

    TensorFlow puts headings and locations in the graph before the reason.
    """
    for line in str(error).splitlines():
        if pattern.search(line):
            return line.rpartition("}} ")[2].strip()
    return None


def answers(host: str, port: int) -> bool:
    """Whether something accepts a connection there."""
    try:
        socket.create_connection((host, port), _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
