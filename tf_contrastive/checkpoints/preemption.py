"""Preemption: signals and cloud notices, in time to save a checkpoint.

They are noted at once. The training loop acts on them between two executions of
the step. (TensorFlow's own `PreemptionCheckpointHandler` does nothing on Google
Cloud's TPU and CPU machines.)
"""

import os
import signal
import threading
import types
import urllib.request
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution

_METADATA_HOST = "http://metadata.google.internal"
_METADATA_PATH = "/computeMetadata/v1/instance/"
# Path -> the answers while nothing is announced that ends the machine.
_NO_NOTICE = {
    "preempted": ("FALSE",),
    "maintenance-event": ("NONE", "MIGRATE_ON_HOST_MAINTENANCE"),
}
# Holds the maker's name, on machines of Google Cloud "Google Compute Engine".
_PRODUCT_FILE = "/sys/class/dmi/id/product_name"
_POLL_SECONDS = 5.0
_TIMEOUT_SECONDS = 5.0


class PreemptionListener:
    """Context in which signals and cloud notices are noted, not acted on.

    The second signal of a kind has its usual effect.

    Args:
      strategy: whose workers must agree to stop at the same step.
      metadata_host: server of notices; None: `$GCE_METADATA_HOST`, or Google's
        on a machine of Google Cloud; empty: none.
      action: what the message about a signal announces.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        metadata_host: str | None = None,
        action: str = "saving after this step",
    ) -> None:
        self._action = action
        self._strategy = strategy
        if metadata_host is None:
            host = os.environ.get("GCE_METADATA_HOST")
            metadata_host = f"http://{host}" if host else ""
            if not host and _on_google_cloud():
                metadata_host = _METADATA_HOST
        self._metadata_host = metadata_host
        self._reason: str | None = None
        self._closed = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "PreemptionListener":
        # Python allows signal handlers in the main thread only; a notebook may
        # run this in another one.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._on_signal)
        if self._metadata_host:
            threading.Thread(target=self._poll, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed.set()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        name = signal.Signals(number)
        signal.signal(number, self._handlers.pop(name))
        self._reason = name.name
        message = f"\n{name.name}: {self._action}; again: ends at once\n"
        # print is not reentrant, and the signal may have interrupted one.
        os.write(2, message.encode())

    def _poll(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            if notice := _notice(self._metadata_host):
                self._reason = notice
                return

    def stop_reason(self) -> str | None:
        """Returns why the run should stop now, or None.

        A collective of all workers: each must call it equally often, and all
        get a reason at the same call.
        """
        if not distribution.any_worker(self._strategy, bool(self._reason)):
            return None
        return self._reason or "the interruption of another worker"


def _notice(host: str) -> str | None:
    """Returns the metadata server's announcement, if there is any."""
    for path, no_notice in _NO_NOTICE.items():
        request = urllib.request.Request(
            f"{host}{_METADATA_PATH}{path}",
            headers={"Metadata-Flavor": "Google"},
        )
        try:
            with urllib.request.urlopen(
                request, timeout=_TIMEOUT_SECONDS
            ) as response:
                answer = response.read().decode().strip()
        except OSError:  # urllib's errors included.
            continue
        if answer and answer not in no_notice:
            return f"notice of the cloud machine, {path}: {answer}"
    return None


def _on_google_cloud() -> bool:
    try:
        with open(_PRODUCT_FILE) as file:
            return "Google" in file.read()
    except OSError:
        return False
