"""The lock on a folder: one process at a time, and takeover of stale locks."""

import json
import time
from pathlib import Path

import processes
import pytest
import small

from tf_contrastive import checkpoints, train
from tf_contrastive.base import errors, files
from tf_contrastive.checkpoints import lock
from tf_contrastive.config import fields

_HOLD = """
import sys
from tf_contrastive import checkpoints
with checkpoints.FolderLock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock of `tmp_path`."""
    words = processes.python(_HOLD, tmp_path)
    with processes.start(words, stdin=processes.PIPE) as process:
        process.until("locked")
        yield process


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_second_process_is_refused_until_the_first_ends(
    is_killed, holder, tmp_path, capsys
):
    named = rf"in use by process {holder.pid} on \S+ since \d{{4}}-"
    run = fields.replace(small.RUN, dataset="digits", workdir=str(tmp_path))
    with pytest.raises(errors.UserError, match=named):
        train.pretrain(run)
    assert [path.name for path in tmp_path.iterdir()] == ["pretrain.lock"]
    if is_killed:
        holder.kill()
    else:
        holder.stdin.close()
    holder.ended()
    assert bool(list(tmp_path.iterdir())) == is_killed
    with checkpoints.FolderLock(str(tmp_path)):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
    taken_over = f"lock of process {holder.pid}" in capsys.readouterr().err
    assert taken_over == is_killed


def _foreign(folder, **changes):
    """Writes the lock of another machine; returns its file."""
    with checkpoints.FolderLock(folder):
        file = Path(folder) / "pretrain.lock"
        owner = json.loads(file.read_text())
    owner |= {"host": "other", "place": "another boot", "token": "-"}
    file.write_text(json.dumps(owner | changes))
    return file


def _check(folder, is_free):
    lock = checkpoints.FolderLock(str(folder))
    if is_free:
        with lock:
            return
    with pytest.raises(errors.UserError, match=r"in use by .* delete .*\.lock"):
        lock.check()


@pytest.mark.parametrize(("seconds", "is_free"), [(580, False), (620, True)])
def test_another_machine_has_ten_minutes_to_renew(seconds, is_free, tmp_path):
    _foreign(str(tmp_path), renewed=time.time() - seconds)
    _check(tmp_path, is_free)


@pytest.mark.parametrize(
    ("its", "own", "is_free"),
    [
        ("job-1/0", "job-1/1", True),
        ("job-1/0", "job-1/0", False),
        ("job-1/0", "job-2/1", False),
        ("/0", "/1", False),
    ],
)
def test_a_later_attempt_of_a_job_need_not_wait(
    its, own, is_free, tmp_path, monkeypatch
):
    _foreign(str(tmp_path), renewed=time.time(), attempt=its)
    monkeypatch.setenv("TF_CONTRASTIVE_ATTEMPT", own)
    _check(tmp_path, is_free)


def test_the_owner_renews_and_leaves_the_lock_to_its_successor(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.02)
    file = tmp_path / "pretrain.lock"
    with checkpoints.FolderLock(str(tmp_path)):
        first = json.loads(file.read_text())
        processes.wait_for(
            lambda: json.loads(file.read_text())["renewed"] > first["renewed"]
        )

        def is_left():
            file.write_text(json.dumps(first | {"token": "other"}))
            time.sleep(0.1)  # A renewal that had begun has ended.
            return json.loads(file.read_text())["token"] == "other"

        processes.wait_for(is_left)
    assert json.loads(file.read_text())["token"] == "other"  # It is there.


def test_an_object_store_has_a_lock_too(monkeypatch):
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.0)
    with checkpoints.FolderLock("ram://lock"):
        assert files.entries("ram://lock", r".*\.lock")
    assert not files.entries("ram://lock", r".*\.lock")


@pytest.mark.parametrize(
    "changes",
    [None, {"renewed": "x"}, *({"process": x} for x in ("../../etc", -1, 1.5))],
)
def test_a_damaged_lock_is_an_error_that_names_it(changes, tmp_path):
    file = _foreign(str(tmp_path), **changes or {})
    if changes is None:
        file.write_text("[1, ")
    before = file.read_bytes()
    lock = checkpoints.FolderLock(str(tmp_path))
    with pytest.raises(errors.UserError, match=r"pretrain\.lock"):
        lock.check()
    assert file.read_bytes() == before
