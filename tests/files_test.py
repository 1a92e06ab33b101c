"""Files are whole or absent, whoever writes them, and whoever is killed."""

import json
import math
import multiprocessing
import os
import stat
import tempfile

import numpy as np
import processes
import pytest
import tensorflow as tf

from tf_contrastive.base import errors, files

# Begins to write its argument and a folder, and waits to be killed.
_HANG = """
import sys
from tf_contrastive.base import files
with files.replacing(sys.argv[1]) as unfinished:
    open(unfinished, "w").write("half")
    (kept := files.temporary_folder()).__enter__()
    print("writing", flush=True)
    sys.stdin.read()
"""


def _write_often(path, letter, count):
    for _ in range(count):
        files.write(path, letter * 200_000)


def test_two_writers_leave_one_whole_file(tmp_path):
    path = str(tmp_path / "result.json")
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_write_often, args=(path, letter, 40))
        for letter in "ab"
    ]
    for writer in writers:
        writer.start()
    reads = []
    while any(writer.is_alive() for writer in writers):
        if os.path.exists(path):
            reads.append(files.read(path))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(reads) > 10
    for content in reads:
        assert content in (b"a" * 200_000, b"b" * 200_000)
    assert os.listdir(tmp_path) == ["result.json"]


def test_leftovers_are_removed_once_their_writer_has_ended(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with processes.start(
        processes.python(_HANG, tmp_path / "target"),
        variables={"TMPDIR": str(tmp_path)},
        stdin=processes.PIPE,
    ) as hanging:
        hanging.until("writing")
        before = sorted(os.listdir(tmp_path))
        assert len(before) == 2  # A file and a temporary folder.
        assert all(name.startswith(".") for name in before)
        files.check_writable(str(tmp_path / "other"))
        with files.temporary_folder():
            assert {*before} < {*os.listdir(tmp_path)}  # It may go on writing.
        assert sorted(os.listdir(tmp_path)) == before
    assert sorted(os.listdir(tmp_path)) == before
    with files.temporary_folder() as own:
        assert os.listdir(tmp_path) == [os.path.basename(own)]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_another_process_makes_or_removes_has_a_lock(
    is_folder, tmp_path, monkeypatch
):
    lock, remove = files.lock, files.remove

    def late(path):
        monkeypatch.setattr(files, "lock", lock)
        files.remove_leftovers(str(tmp_path))  # By another process.
        return lock(path)

    def removed(path):
        with pytest.raises(BlockingIOError):
            lock(path)
        remove(path)

    monkeypatch.setattr(files, "lock", late)
    monkeypatch.setattr(files, "remove", removed)
    with files.partial(str(tmp_path / "x"), is_folder) as unfinished:
        assert os.listdir(tmp_path) == [os.path.basename(unfinished)]
    (tmp_path / f".x.partial-{'0f' * 16}").mkdir()
    files.remove_leftovers(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_nothing_is_removed_where_there_are_no_locks(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", fails)
    path = tmp_path / f".x.partial-{'0f' * 16}"
    path.mkdir()
    (tmp_path / ".x.partial-mine").write_text("not of this package")
    files.write(str(tmp_path / "y"), "written without locks, too")
    files.remove_leftovers(str(tmp_path))
    assert path.exists() and (tmp_path / ".x.partial-mine").exists()


def test_a_failed_write_keeps_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_text("before")

    def fails(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(errors.UserError) as error:
        files.write(str(path), "after")
    assert "No space left" in str(error.value)
    assert ".partial" not in str(error.value)
    assert os.listdir(tmp_path) == ["x"]
    assert path.read_text() == "before"


def test_a_folder_or_a_device_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        for write in (files.check_writable, lambda path: files.write(path, "")):
            with pytest.raises(errors.UserError, match=name):
                write(str(tmp_path / name))
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_the_target_of_a_link_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    target = tmp_path / "disk" / "target"
    target.write_text("before")
    (tmp_path / "link").symlink_to(target)
    files.write(str(tmp_path / "link"), "after")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "after"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_long_and_odd_names(scheme, tmp_path):
    for name in ("a" * 255, "\u20ac" * 85, "new\nline", "-x [1] {2}"):
        files.write(f"{scheme}{tmp_path}/sub/{name}", name)
        assert (tmp_path / "sub" / name).read_text() == name
    assert len(os.listdir(tmp_path / "sub")) == 4


def test_json_has_no_nan(tmp_path):
    path = str(tmp_path / "x.json")
    numbers = np.array([1.5, np.nan])
    content = {"a": math.nan, "b": [{"c": -math.inf}], "d": numbers}
    files.write_json(path, content | {"e": np.int64(3), "f": True})

    def refuse(name):
        raise AssertionError(name)

    with open(path) as file:
        read = json.load(file, parse_constant=refuse)
    expected = {"a": None, "b": [{"c": None}], "d": [1.5, None]}
    assert read == expected | {"e": 3, "f": True}


def test_json_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(str(path), {"a": [1, 2], "b": {"c": "d"}})
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(errors.UserError, match=r"x\.json"):
            files.read_json(str(path))


def test_the_content_is_on_the_disk_before_it_has_its_name(
    tmp_path, monkeypatch
):
    order, fsync, replace = [], os.fsync, os.replace

    def flushed(descriptor):
        order.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def replaced(*paths):
        order.append("replace")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    files.write(str(tmp_path / "x"), "content")
    folder, file = os.stat(tmp_path).st_ino, os.stat(tmp_path / "x").st_ino
    assert order == [file, "replace", folder]


def test_remote_files_are_replaced_too():
    path = "ram://files_test/sub/x"
    files.write(path, "a")
    files.write(path, "b")
    assert files.read(path) == b"b"
    assert tf.io.gfile.listdir("ram://files_test/sub") == ["x"]
    with pytest.raises(errors.UserError, match="folder"):
        files.write("ram://files_test/sub", "a")
