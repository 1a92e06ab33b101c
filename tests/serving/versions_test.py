"""Which version is served, with models that are a file of JSON."""

import asyncio
import itertools
import json
import os
import shutil
import time
import weakref

import numpy as np
import processes
import pytest
from starlette.exceptions import HTTPException

from tf_contrastive import exporting
from tf_contrastive.base.errors import UserError
from tf_contrastive.serving import versions as module
from tf_contrastive.serving.rest import Signature
from tf_contrastive.serving.versions import SavedModel


class _Model(SavedModel):
    """A model whose graph is {signature: [outputs]}, or broken."""

    def __init__(self, path):
        with open(f"{path}/saved_model.pb") as file:
            self.text = file.read()
        outputs = json.loads(self.text)
        of_input = outputs.pop("input", "images"), np.dtype(np.uint8), (-1, 3)
        self.signatures = {
            k: Signature(*of_input, x) for k, x in outputs.items()
        }


_GOOD = '{"a": ["x", "y"], "b": ["x"]}'
_BETTER = '{"a": ["x", "y", "z"], "b": ["x"], "c": []}'
_BROKEN = '{"a": '


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    def counted(path, folders=exporting.folders):
        _polls[0] += 1
        return folders(path)

    monkeypatch.setattr(module, "SavedModel", _Model)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(exporting, "folders", counted)


@pytest.fixture
def base(tmp_path):
    _write(tmp_path, 1, _GOOD)
    return tmp_path


_times = itertools.count(1)


def _write(base, number, text):
    """Writes a version, each at another time."""
    path = base / str(number) / "saved_model.pb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (next(_times),) * 2)


def _served(versions):
    number, model = versions.model(None)
    return number, model.text


_polls = [0]


def _follow(versions, is_done=lambda: True):
    """Follows until a condition holds, and a few polls longer."""

    async def until(is_done):
        end = time.monotonic() + processes.LIMIT
        while not is_done():
            assert time.monotonic() < end
            await asyncio.sleep(0.001)

    async def run():
        following = asyncio.create_task(versions.follow())
        await until(is_done)
        last = _polls[0] + 4
        await until(lambda: _polls[0] >= last)
        assert not following.done()
        following.cancel()

    asyncio.run(run())


def test_at_the_start_the_newest_good_version_is_served(base):
    _write(base, 2, _BETTER)
    _write(base, 3, _BROKEN)
    (base / "4").mkdir()
    (base / "x").mkdir()
    versions = module.Versions(str(base))
    assert versions.number == 2
    for number in (1, 3, 4):
        with pytest.raises(HTTPException, match="404"):
            versions.model(number)


def test_a_version_by_itself_is_served_if_it_is_good(base):
    assert module.Versions(str(base / "1")).number == 1
    _write(base, 1, _BROKEN)
    with pytest.raises(UserError, match="saved_model"):
        module.Versions(str(base))


_BAD = {
    "broken": _BROKEN,
    "no signature": '{"a": ["x", "y"]}',
    "no output": '{"a": ["x"], "b": ["x"]}',
    "other input": '{"a": ["x", "y"], "b": ["x"], "input": "pixels"}',
}


@pytest.mark.parametrize("text", _BAD.values(), ids=list(_BAD))
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_bad_version_does_not_replace_the_served_one(
    base, text, number, caplog
):
    """A new one, or one in place of the served one; until it is repaired."""
    _write(base, 0, _GOOD)
    versions = module.Versions(str(base))
    _write(base, number, text)
    _follow(versions, lambda: "cannot serve" in caplog.text)
    assert caplog.text.count("cannot serve") == 1  # Not tried again.
    assert _served(versions) == (1, _GOOD)
    _write(base, number, _BETTER)
    _follow(versions, lambda: _served(versions) == (number, _BETTER))


def test_an_older_one_is_served_if_the_served_one_is_removed(base):
    """Even if it lacks a signature: somebody wants it back."""
    _write(base, 2, _BETTER)
    versions = module.Versions(str(base))
    # It is being replaced.
    (base / "2" / "saved_model.pb").unlink()
    _follow(versions)
    assert versions.number == 2
    shutil.rmtree(base / "2")
    _follow(versions, lambda: versions.number == 1)
    # Nothing is left: the last one stays.
    shutil.rmtree(base / "1")
    _follow(versions)
    assert _served(versions) == (1, _GOOD)


def test_files_that_change_while_loaded_are_not_served(base, monkeypatch):
    versions, loaded = module.Versions(str(base)), []

    def load(path):
        loaded.append(_Model(path))
        _write(base, 2, _BETTER)
        return loaded[-1]

    monkeypatch.setattr(module, "SavedModel", load)
    _write(base, 2, _GOOD)
    _follow(versions, lambda: len(loaded) > 1)
    assert versions.number == 1


def test_a_replaced_version_is_freed_after_its_last_request(base):
    versions = module.Versions(str(base))
    _, model = versions.model(None)
    there = weakref.ref(model)
    _write(base, 2, _GOOD)
    _follow(versions, lambda: versions.number == 2)
    assert there()
    del model
    assert not there()
