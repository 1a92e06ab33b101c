"""Which checkpoints stay."""

import tensorflow as tf
from checkpoint_helpers import (
    advance,
    make_model,
    open_checkpoints,
    write_steps,
)

from tf_contrastive import checkpoints


def test_the_newest_stay_and_files_of_a_killed_writer_go(tmp_path):
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
    state = tf.train.get_checkpoint_state(str(folder))
    listed = [*map(checkpoints.step_of, state.all_model_checkpoint_paths)]
    present = [*map(checkpoints.step_of, checkpoints.saved(str(tmp_path)))]
    assert listed == present == [4, 5]
    data = {path.name.partition(".")[0] for path in folder.glob("*.data*")}
    assert data == {"ckpt-4", "ckpt-5"}
