"""Preemption: signals, in time to save a checkpoint.

They are noted at once. The training loop acts on them between two executions of
the step. (TensorFlow's own `PreemptionCheckpointHandler` does nothing on Google
Cloud's TPU and CPU machines.)
"""

import os
import signal
import threading
import types
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution


class PreemptionListener:
    """Context in which signals are noted, not acted on.

    The second signal of a kind has its usual effect.

    Args:
      strategy: whose workers must agree to stop at the same step.
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
