"""A job that owns its folder, and saves a checkpoint when it must end.

The training loop acts on signals between two executions of the step.
(TensorFlow's own `PreemptionCheckpointHandler` does nothing on Google Cloud's
TPU and CPU machines.)
"""

import contextlib
import os
import signal
import threading
import types
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, distribution
from tf_contrastive.base import errors
from tf_contrastive.checkpoints.lock import FolderLock
from tf_contrastive.checkpoints.saving import Checkpoints


class PreemptionListener:
    """Context in which signals are noted, not acted on.

    The second signal of a kind has its usual effect. The workers of `strategy`
    agree to stop at the same step.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._reason: str | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "PreemptionListener":
        # Python allows signal handlers in the main thread only; a notebook may
        # run this in another one.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        name = signal.Signals(number)
        signal.signal(number, self._handlers.pop(name))
        self._reason = name.name
        message = (
            f"\n{name.name}: saving after this step; again: ends at once\n"
        )
        # print is not reentrant, and the signal may have interrupted one.
        os.write(2, message.encode())

    def stop_reason(self) -> str | None:
        """Returns why the run should stop now, or None.

        A collective of all workers: each must call it equally often, and all
        get a reason at the same call.
        """
        if not distribution.any_worker(self._strategy, bool(self._reason)):
            return None
        return self._reason or "the interruption of another worker"


@contextlib.contextmanager
def session(
    workdir: str, strategy: tf.distribute.Strategy
) -> Iterator[tuple[FolderLock, PreemptionListener]]:
    """Context in which a job owns its folder, and hears when it must end.

    Yields the lock, which the chief has, and the listener.
    """
    lock = FolderLock(workdir)
    with contextlib.ExitStack() as resources:
        if distribution.is_chief(strategy):
            resources.enter_context(lock)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Until the chief has the lock.
            distribution.any_worker(strategy, False)
            if distribution.any_worker(strategy, not lock.is_visible()):
                raise errors.UserError(
                    f"{errors.arg('workdir', workdir)}: not all workers see"
                    " what the first one writes there: use a folder that they"
                    " share, or gs://"
                )
        listener = PreemptionListener(strategy)
        yield lock, resources.enter_context(listener)


@contextlib.contextmanager
def saving_on_error(
    saved: Checkpoints,
    strategy: tf.distribute.Strategy,
) -> Iterator[None]:
    """Saves the present step before an error of the input ends the run."""
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Without saving, which needs all workers.
            raise
        if not (named := datasets.name_unreadable(error)):
            raise  # A step that had its batch has changed some variables.
        saved.finish()
        raise errors.UserError(
            f"{named}; saved at step {saved.step:,}"
        ) from error
