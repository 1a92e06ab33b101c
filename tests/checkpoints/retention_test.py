"""Which checkpoints stay."""

import re

import pytest
import tensorflow as tf
from checkpoint_helpers import (
    advance,
    make_model,
    open_checkpoints,
    write_steps,
)

from tf_contrastive import checkpoints


def test_files_of_a_killed_writer_are_removed(tmp_path):
    write_steps(tmp_path, steps=(1, 2), keep_checkpoints=2)
    folder = tmp_path / "checkpoints"
    state = (folder / "checkpoint").read_text()
    write_steps(tmp_path, steps=(3,), keep_checkpoints=3)
    (folder / "checkpoint").write_text(state)  # Killed before it was updated.
    unfinished = folder / "ckpt-4_temp"
    unfinished.mkdir()
    (unfinished / "part-00000-of-00001.data").write_bytes(b"half")
    model = make_model()
    saver = open_checkpoints(tmp_path, model, keep_checkpoints=2)
    assert saver.restore() == 3
    assert not unfinished.exists()
    for step in (4, 5):
        advance(model, step)
        saver.save()
    saver.finish()
    assert sorted(p.name for p in folder.glob("*.index")) == [
        "ckpt-4.index",
        "ckpt-5.index",
    ]


def _listed_steps(folder):
    state = tf.train.get_checkpoint_state(str(folder))
    return [
        checkpoints.step_of(path) for path in state.all_model_checkpoint_paths
    ]


def _present_steps(folder):
    return sorted(
        checkpoints.step_of(str(path.with_suffix("")))
        for path in folder.glob("*.index")
    )


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("days", [-5, 5])
def test_checkpoints_go_by_step_whatever_the_clock_says(
    days, resumed, tmp_path, monkeypatch
):
    now = [1e9]
    monkeypatch.setattr("time.time", lambda: now[0])
    folder = tmp_path / "checkpoints"

    def saver_of(model):
        return open_checkpoints(tmp_path, model, keep_checkpoints=2)

    model = make_model()
    saver = saver_of(model)
    for step in range(1, 13):
        now[0] += 1200  # Twenty minutes.
        if step == 7:
            now[0] += days * 86400
            if resumed:
                saver.restore()
                saver = saver_of(model)
        advance(model, step)
        saver.finish()
        assert _present_steps(folder)[-1] == step
        assert tf.train.latest_checkpoint(str(folder)).endswith(f"ckpt-{step}")
    assert _listed_steps(folder) == [11, 12]
    assert not set(folder.glob("*.data*")) - {
        folder / f"ckpt-{step}.data-00000-of-00001"
        for step in _present_steps(folder)
    }
    assert _present_steps(folder) == [11, 12]


def test_a_list_of_the_future_deletes_by_step(tmp_path):
    write_steps(tmp_path, keep_checkpoints=3)
    folder = tmp_path / "checkpoints"
    text = (folder / "checkpoint").read_text()
    future = re.sub(r"(stamps?: )\d+", r"\g<1>4000000000", text)
    assert future != text
    (folder / "checkpoint").write_text(future)
    write_steps(tmp_path, steps=(4, 5, 6), keep_checkpoints=3)
    assert _present_steps(folder) == [4, 5, 6]
