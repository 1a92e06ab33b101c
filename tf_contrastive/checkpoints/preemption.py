"""What ends a run before it is finished, told in time to save it.

Layer 5. SIGTERM and Ctrl-C, and notices of a cloud machine that is about to be
taken away. They are heard at once and acted upon when an execution of the
training step is over: TensorFlow's own handler does nothing on Google Cloud's
TPU and CPU machines.
"""

import os
import signal
import sys
import threading
import types
import urllib.error
import urllib.request
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution, errors

# Google Compute Engine's metadata server; what each path answers in peace.
_METADATA_HOST = "http://metadata.google.internal"
_METADATA = "/computeMetadata/v1/instance/"
_NOTICES = {"preempted": "FALSE", "maintenance-event": "NONE"}
# Names this machine's maker, without a network.
_PRODUCT_FILE = "/sys/class/dmi/id/product_name"
# Seconds between two questions for notices, and within which one is answered.
_POLL_SECONDS = 5.0
_PATIENCE = 5.0


class InterruptedRunError(errors.UserError):
    """A run ended early and was saved: the same command goes on with it."""

    status = errors.EXIT_RESUME


class LostServiceError(InterruptedRunError):
    """The data service is gone, and the run was saved.

    TensorFlow's threads go on asking for it, and whoever takes an iterator of
    it out of memory waits for them, for ever: let the process end without that,
    by `os._exit`.
    """

    threads_left = True


def lost_worker(error: Exception, directory: str) -> InterruptedRunError:
    """Tells in one line that another worker has gone, as `error` says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TensorFlow puts headings and the places in its graph before what it says.
    telling = [line for line in lines if "aborted" in line.lower()]
    reason = (telling or lines[:1] or [type(error).__name__])[0]
    reason = reason.rpartition("}} ")[2]
    return InterruptedRunError(
        f"a worker is lost ({reason}): repeat the command on all of them to go"
        f" on from the newest checkpoint in {directory}"
    )


def _notice(host: str) -> str | None:
    """What the metadata server announces, if anything."""
    for path, peace in _NOTICES.items():
        request = urllib.request.Request(
            host + _METADATA + path, headers={"Metadata-Flavor": "Google"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                said = answer.read().decode().strip()
        except (urllib.error.URLError, OSError):
            continue
        if said and said != peace:
            return f"notice of the cloud machine, {path}: {said}"
    return None


def _on_google_cloud() -> bool:
    try:
        with open(_PRODUCT_FILE) as file:
            return "Google" in file.read()
    except OSError:
        return False


class Interruption:
    """Listens, while its context is open, for what should end the run.

    A second signal of a kind ends the process at once, as without it.

    Args:
      strategy: whose workers must agree to end at the same step.
      metadata_host: asked for notices; None: Google's where this is one of its
        machines, or `$GCE_METADATA_HOST`; empty: none.
      promise: what is said to happen, of a signal.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        metadata_host: str | None = None,
        promise: str = "saving after this step",
    ) -> None:
        self._promise = promise
        self._strategy = strategy
        if metadata_host is None:
            named = os.environ.get("GCE_METADATA_HOST")
            metadata_host = f"http://{named}" if named else ""
            if not named and _on_google_cloud():
                metadata_host = _METADATA_HOST
        self._metadata_host = metadata_host
        self._reason: str | None = None
        self._closed = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        # Elsewhere, as in a notebook's thread, signals are not for us.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_signal)
        if self._metadata_host:
            threading.Thread(target=self._poll, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        name = signal.Signals(number)
        signal.signal(number, self._before.pop(name))
        self._reason = name.name
        # Not print, which must not be called again within itself.
        told = f"\n{name.name}: {self._promise}; again: ends at once\n"
        os.write(sys.__stderr__.fileno(), told.encode())

    def _poll(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            if notice := _notice(self._metadata_host):
                self._reason = notice
                return

    def agreed(self) -> str | None:
        """Why the run should end now, the same on all workers; or None.

        Where there are several workers each must ask as often as the others.
        """
        if not distribution.any_worker(self._strategy, bool(self._reason)):
            return None
        return self._reason or "another worker was told to end"
