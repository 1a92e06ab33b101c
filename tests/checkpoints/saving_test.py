"""Checkpoints: resume, a full disk, a folder that vanishes, replicas."""

import dataclasses
import json
import os
import resource
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_helpers import (
    INFO,
    advance,
    make_model,
    make_run,
    open_checkpoints,
    write_steps,
)

from tf_contrastive import checkpoints
from tf_contrastive.base import errors


def test_changed_data_are_refused_by_count(tmp_path):
    data = dataclasses.replace(INFO, num_classes=2, label_names=("a", "b"))

    def resume(allow=False, **changes):
        run = make_run(tmp_path, allow_changed_data=allow)
        info = dataclasses.replace(data, **changes)
        return checkpoints.Checkpoints(make_model(), run, info)

    saver = resume(num_examples=90)  # Nothing is trained yet.
    saver = resume()
    saver.save()
    saver.finish()
    more = {"num_examples": 150}
    with pytest.raises(errors.UserError, match=r"150 images, there 100.*allow"):
        resume(**more)
    resume(allow=True, **more)
    with pytest.raises(errors.UserError, match=r"100 images, there 150"):
        resume()
    three = {"num_classes": 3, "label_names": ["a", "b", "c"]}
    for changes, named in (
        (three, "3 classes, there"),
        ({"label_names": ["a", "c"]}, "names of classes"),
    ):
        with pytest.raises(errors.UserError, match=named):
            resume(allow=True, **more, **changes)


def test_a_run_that_ended_after_the_first_check_is_kept(tmp_path):
    second = make_run(tmp_path, learning_rate=0.6)
    write_steps(tmp_path, learning_rate=0.3)
    before = (tmp_path / "config.flags").read_bytes()
    with pytest.raises(errors.UserError, match="another experiment"):
        checkpoints.Checkpoints(make_model(), second, INFO)
    assert (tmp_path / "config.flags").read_bytes() == before


@pytest.mark.parametrize("where", ["local", "ram"])
def test_a_checkpoint_holds_the_values_at_its_step(where, tmp_path):
    workdir = str(tmp_path) if where == "local" else f"ram://{tmp_path.name}"
    model = make_model()
    saver = open_checkpoints(workdir, model)
    assert saver.restore() == 0
    advance(model, 5)
    saver.save()
    advance(model, 6)  # While the files are being written.
    saver.save()
    advance(model, 7)
    saver.finish()
    for path, step in (("ckpt-5", 5), ("ckpt-6", 6), ("ckpt-7", 7)):
        reader = tf.compat.v1.train.NewCheckpointReader(
            os.path.join(workdir, "checkpoints", path)
        )
        for name in reader.get_variable_to_shape_map():
            others = ("CHECKPOINTABLE", "counter", "rate", "projection", "sums")
            if not any(other in name for other in others):
                assert (reader.get_tensor(name) == step).all(), name
    again = make_model()
    assert open_checkpoints(workdir, again).restore() == 7
    np.testing.assert_equal(again.get_weights(), model.get_weights())


def test_another_order_of_variables_is_refused(tmp_path):
    write_steps(tmp_path)
    path = tmp_path / "checkpoints" / "metadata.json"
    metadata = json.loads(path.read_text())
    order = metadata["variables"]
    order[1], order[2] = order[2], order[1]
    path.write_text(json.dumps(metadata))
    with pytest.raises(errors.UserError, match="with other variables"):
        open_checkpoints(tmp_path)
    assert json.loads(path.read_text()) == metadata  # Nothing was written.
    # Some networks number their blocks in the process.
    tmp_path /= "other"
    for name in ("block1_conv", "block30_conv"):
        open_checkpoints(tmp_path, make_model(name=name)).finish()
    with pytest.raises(errors.UserError, match="with other variables"):
        open_checkpoints(tmp_path, make_model(name="block30_dense"))


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    model = make_model(units=4000)
    saver = open_checkpoints(tmp_path, model)
    advance(model, 1)
    saver.finish()
    # No file may grow larger than 10 kB: what a full disk does to a writer.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        advance(model, 2)
        with pytest.raises(errors.UserError, match="written") as raised:
            saver.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "newest whole checkpoint: step 1" in str(raised.value)
    again = make_model(units=4000)
    assert open_checkpoints(tmp_path, again).restore() == 1
    # With room again, it goes on.
    advance(again, 2)
    open_checkpoints(tmp_path, again).finish()
    assert checkpoints.newest(str(tmp_path / "checkpoints"))[0].endswith("-2")


@pytest.mark.parametrize(
    "change", ["moved", "replaced", "emptied", "other lock", "none"]
)
def test_a_save_notices_that_the_folder_is_another(change, tmp_path):
    model, folder = make_model(), tmp_path / "run"
    write_steps(tmp_path / "other", steps=(7,), seed=1)
    with checkpoints.FolderLock(str(folder)) as lock:
        saver = checkpoints.Checkpoints(model, make_run(folder), INFO, lock)
        advance(model, 1)
        saver.finish()
        if change in ("moved", "replaced"):
            folder.rename(tmp_path / "elsewhere")
        if change == "replaced":
            shutil.copytree(tmp_path / "other", folder)
            before = sorted(folder.rglob("*"))
        if change == "emptied":
            shutil.rmtree(folder / "checkpoints")
        if change == "other lock":
            file = folder / "pretrain.lock"
            owner = json.loads(file.read_text())
            owner |= {"host": "other", "place": "other", "token": "other"}
            file.write_text(json.dumps(owner))
        advance(model, 2)
        if change == "none":
            saver.finish()
            return
        for write in (saver.save, saver.finish):
            with pytest.raises(errors.UserError, match=str(folder)) as raised:
                write()
            assert raised.value.status == 2
    # Nothing was written, there or in the other run.
    if change == "moved":
        assert not folder.exists()
    if change == "replaced":
        assert sorted(folder.rglob("*")) == before


def test_checkpoints_do_not_depend_on_the_replicas(tmp_path):
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    mirrored = make_model(strategy)
    saver = open_checkpoints(tmp_path, mirrored)
    advance(mirrored, 3)
    saver.save()
    saver.finish()
    single = make_model()
    assert open_checkpoints(tmp_path, single).restore() == 3
    np.testing.assert_equal(single.get_weights(), mirrored.get_weights())
    shutil.rmtree(tmp_path / "checkpoints")
    write_steps(tmp_path, steps=(4,))
    again = make_model(strategy)
    assert open_checkpoints(tmp_path, again).restore() == 4
