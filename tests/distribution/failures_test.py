"""Errors of TensorFlow: a lost worker, a full disk, no memory, a bug."""

import errno
import socket
import types
from unittest import mock

import pytest
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.distribution import failures

_FULL = "/run/checkpoints/ckpt-8_temp/part-0; No space left on device"


@pytest.fixture(params=["there", "gone"])
def others(request, monkeypatch):
    """Whether the other worker of this process's cluster is there."""
    monkeypatch.setattr(failures, "DYING_SECONDS", 0.2)
    server = socket.create_server(("127.0.0.1", 0))
    if request.param == "gone":
        server.close()
        server = socket.socket()  # Its port is free, and nobody listens.
        server.bind(("127.0.0.1", 0))
    monkeypatch.setattr(failures, "others", (server.getsockname(),))
    yield request.param
    server.close()


def _status(kind, text):
    """The exit status of a command that such an error ends."""
    try:
        with failures.reported():
            raise kind(None, None, text) if text else kind
    except errors.UserError as error:
        return error.status
    except (OSError, tf.errors.OpError):
        return 1  # A traceback.


# Error -> exit status while the other worker is there, and is gone.
_CASES = {
    "call": (tf.errors.UnavailableError, "Connection reset by peer", 1, 42),
    "cuda": (tf.errors.InternalError, "cuDNN launch failure", 1, 42),
    "heartbeat": (tf.errors.UnavailableError, "missed heartbeat", 42, 42),
    "collective": (
        tf.errors.ResourceExhaustedError,
        "2 root error(s) found.\n (0) UNAVAILABLE: {{node c}} Collective ops is"
        " aborted by: Socket closed",
        42,
        42,
    ),
    "full disk": (tf.errors.ResourceExhaustedError, _FULL, 2, 2),
    "own memory": (
        tf.errors.ResourceExhaustedError,
        "OOM when allocating tensor with shape[4096,2048]",
        2,
        2,
    ),
    "files": (tf.errors.ResourceExhaustedError, "Too many open files", 1, 1),
    "full disk of Python": (OSError(errno.ENOSPC, "full"), "", 2, 2),
    "Python": (OSError(errno.EPIPE, "pipe"), "", 1, 1),
}


@pytest.mark.parametrize("name", _CASES)
def test_what_ends_a_run_with_which_status(name, others):
    kind, text, there, gone = _CASES[name]
    assert _status(kind, text) == {"there": there, "gone": gone}[others]


@pytest.mark.parametrize(("dies_after", "status"), [(2, 42), (9, 1)])
def test_a_worker_may_die_seconds_after_the_error(
    dies_after, status, monkeypatch
):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(failures, "time", clock)
    monkeypatch.setattr(failures, "others", (("worker", 1),))
    monkeypatch.setattr(failures, "answers", lambda *_: clock.now < dies_after)
    found = _status(tf.errors.UnavailableError, "Connection reset by peer")
    assert found == status


def test_a_worker_is_lost_once_it_does_not_answer_four_times(monkeypatch):
    answers = {"127.0.0.1": iter([1] * 9), "gone": iter([0, 0, 0, 1] + [0] * 5)}
    sleeps, runtime = [], mock.Mock()
    monkeypatch.setattr(
        failures, "answers", lambda host, port: next(answers[host])
    )
    monkeypatch.setattr(failures.time, "sleep", sleeps.append)
    monkeypatch.setattr(failures.context, "context", lambda: runtime)
    monkeypatch.setattr(failures, "others", (("127.0.0.1", 1), ("gone", 1)))
    failures.watch()
    assert sleeps == [5.0] * 8
    runtime.abort_collective_ops.assert_called_once_with(
        14, "gone:1 does not answer this worker"
    )


@pytest.mark.parametrize(
    "path, advice",
    # A device on which every write fails as on a full disk, and no file.
    [("/dev/full", "free some space"), ("/proc/none", "choose another file")],
)
def test_a_full_disk_is_named_whatever_is_written(path, advice):
    with (
        pytest.raises(errors.UserError, match=advice),
        errors.write_errors(path, "choose another file"),
        tf.io.gfile.GFile(path, "w") as file,
    ):
        file.write("x" * 200_000)
