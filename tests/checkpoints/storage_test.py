"""Folders of checkpoints: which are whole, which are read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_helpers import (
    advance,
    make_model,
    newest_path,
    open_checkpoints,
    write_steps,
)

from tf_contrastive import checkpoints
from tf_contrastive.base import errors


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"steps: 3"])
def test_a_damaged_list_and_other_files_are_no_checkpoints(content, tmp_path):
    write_steps(tmp_path)
    folder = tmp_path / "checkpoints"
    for name in ("ckpt-best", "ckpt-3 (copy)", "ckpt-", "ckpt-04"):
        shutil.copy(folder / "ckpt-3.index", folder / f"{name}.index")
    (folder / "checkpoint").write_bytes(content)
    model = make_model()
    saver = open_checkpoints(tmp_path, model, keep_checkpoints=1)
    assert saver.restore() == 3
    assert b"ckpt-3" in (folder / "checkpoint").read_bytes()
    advance(model, 4)
    saver.finish()
    assert checkpoints.step_of(newest_path(tmp_path, "")) == 4


@pytest.mark.parametrize("harm", ["flipped", "index", "data gone"])
def test_a_damaged_checkpoint_is_skipped(harm, tmp_path, capsys):
    write_steps(tmp_path)
    data = Path(newest_path(tmp_path, ".data-00000-of-00001"))
    contents = bytearray(data.read_bytes())
    if harm == "flipped":
        contents[len(contents) // 2] ^= 1
        data.write_bytes(contents)
    elif harm == "index":
        os.truncate(newest_path(tmp_path, ".index"), 10)
    else:
        os.remove(data)
    model = make_model()
    assert open_checkpoints(tmp_path, model).restore() == 2
    np.testing.assert_array_equal(model.encoder.weights[0].numpy(), 2.0)
    output = capsys.readouterr().err
    assert "ckpt-3 is damaged" in output and "going back to step 2" in output
    # `evaluate`, `export` and `embed` do the same.
    assert checkpoints.load_run(str(tmp_path)).step == 2


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    write_steps(tmp_path, steps=(1,))
    os.truncate(newest_path(tmp_path, ".data-00000-of-00001"), 5)
    with pytest.raises(errors.UserError, match=r"no checkpoint .* is whole"):
        open_checkpoints(tmp_path).restore()


def test_an_unfinished_first_checkpoint_is_written_again(tmp_path, capsys):
    write_steps(tmp_path, steps=(1,))
    folder = tmp_path / "checkpoints"
    # Killed between the making of the index and its contents.
    os.truncate(folder / "ckpt-1.index", 0)
    os.remove(folder / "checkpoint")
    with pytest.raises(errors.UserError, match=r"no checkpoint .* yet"):
        checkpoints.load_run(str(tmp_path))
    model = make_model()
    saver = open_checkpoints(tmp_path, model)
    assert saver.restore() == 0
    assert "ckpt-1 was never finished" in capsys.readouterr().err
    advance(model, 1)
    saver.finish()
    assert open_checkpoints(tmp_path, make_model()).restore() == 1


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path):
    write_steps(tmp_path)
    data = Path(newest_path(tmp_path, ".data-00000-of-00001"))
    data.unlink()
    data.symlink_to("/proc/self/mem")  # Reading it is an error of input.
    with pytest.raises(errors.UserError, match=r"ckpt-3 .*make it"):
        open_checkpoints(tmp_path).restore()
