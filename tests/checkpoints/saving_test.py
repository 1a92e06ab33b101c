"""Checkpoints: resume, damage, killed writers, a full disk, replicas."""

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    errors,
    heads,
    losses,
    optimizers,
)
from tf_contrastive.checkpoints import storage
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution import failures
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel

INFO = datasets.Info("digits", "train", 100, 10, (8, 8, 3))


def _model(strategy=None, units=4):
    tf.keras.utils.set_random_seed(0)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        encoder = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=(2, 2, 3)),
                tf.keras.layers.Dense(units, name="first"),
                BatchNormalization(name="norm"),
            ]
        )
        model = ContrastiveModel(
            encoder, heads.build("linear", output=4), losses.build("ntxent")
        )
        model.compile(optimizer=optimizers.LARS(0.1))
    return model


def _run(workdir, **options):
    return fields.replace(Pretrain(), workdir=str(workdir), **options)


def _checkpoints(workdir, model=None, **options):
    return checkpoints.Checkpoints(
        model or _model(), _run(workdir, **options), INFO
    )


def _advance(model, value):
    """Replaces a step: all values of a checkpoint become `value`."""
    for variable in (*model.encoder.weights, *model.optimizer.variables):
        if variable.dtype.is_floating:
            variable.assign(tf.fill(variable.shape, float(value)))
    model.optimizer.iterations.assign(value)


def _trained(workdir, steps=(1, 2, 3), **options):
    model = _model()
    saver = _checkpoints(workdir, model, **options)
    for step in steps:
        _advance(model, step)
        saver.save()
    saver.finish()
    return model


def _newest(workdir, suffix):
    path, _ = checkpoints.newest(os.path.join(workdir, "checkpoints"))
    return path + suffix


@pytest.mark.parametrize("name", ["run*", "run?", "run[12]", "run\\1"])
def test_characters_of_patterns_match_no_other_folder(name, tmp_path):
    _trained(tmp_path / "run1")
    unfinished = tmp_path / "run1" / "checkpoints" / "ckpt-4_temp"
    unfinished.mkdir()
    before = sorted((tmp_path / "run1").rglob("*"))
    assert _checkpoints(tmp_path / name).restore() == 0
    assert sorted((tmp_path / "run1").rglob("*")) == before
    # A run that was moved there is found.
    shutil.rmtree(tmp_path / name)
    shutil.copytree(tmp_path / "run1", tmp_path / name)
    assert checkpoints.step_of(_newest(tmp_path / name, "")) == 3
    assert len(checkpoints.saved(str(tmp_path / name))) == 3


def test_other_files_are_no_checkpoints(tmp_path):
    _trained(tmp_path)
    folder = tmp_path / "checkpoints"
    for name in ("ckpt-best", "ckpt-3 (copy)", "ckpt-", "ckpt-04"):
        shutil.copy(folder / "ckpt-3.index", folder / f"{name}.index")
    steps = [checkpoints.step_of(p) for p in checkpoints.saved(str(tmp_path))]
    assert steps == [1, 2, 3]


def test_another_tensorflow_resumes_with_a_warning(
    tmp_path, capsys, monkeypatch
):
    _trained(tmp_path)
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    _checkpoints(tmp_path)
    assert "resumes with 2.99.0" in capsys.readouterr().err


def test_changed_data_are_refused_by_count(tmp_path):
    data = dataclasses.replace(INFO, num_classes=2, label_names=("a", "b"))

    def resume(allow=False, **changes):
        run = _run(tmp_path, allow_changed_data=allow)
        info = dataclasses.replace(data, **changes)
        return checkpoints.Checkpoints(_model(), run, info)

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
    for changes, named in (
        (
            {"num_classes": 3, "label_names": ["a", "b", "c"]},
            "3 classes, there",
        ),
        ({"label_names": ["a", "c"]}, "2 classes have other names"),
    ):
        with pytest.raises(errors.UserError, match=named):
            resume(allow=True, **more, **changes)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"steps: 3"])
def test_a_damaged_list_of_checkpoints_is_written_again(content, tmp_path):
    _trained(tmp_path)
    file = tmp_path / "checkpoints" / "checkpoint"
    file.write_bytes(content)
    model = _model()
    saver = _checkpoints(tmp_path, model, keep_checkpoints=1)
    assert saver.restore() == 3
    assert b"ckpt-3" in file.read_bytes()
    _advance(model, 4)
    saver.save()
    saver.finish()
    assert checkpoints.step_of(_newest(tmp_path, "")) == 4


@pytest.mark.parametrize("where", ["local", "ram"])
def test_a_checkpoint_holds_the_values_at_its_step(where, tmp_path):
    workdir = str(tmp_path) if where == "local" else f"ram://{tmp_path.name}"
    model = _model()
    saver = _checkpoints(workdir, model)
    assert saver.restore() == 0
    _advance(model, 5)
    saver.save()
    _advance(model, 6)  # While the files are being written.
    saver.save()
    _advance(model, 7)
    saver.finish()
    for path, step in (("ckpt-5", 5), ("ckpt-6", 6), ("ckpt-7", 7)):
        reader = tf.compat.v1.train.NewCheckpointReader(
            os.path.join(workdir, "checkpoints", path)
        )
        for name in reader.get_variable_to_shape_map():
            if "CHECKPOINTABLE" not in name and "save_counter" not in name:
                value = reader.get_tensor(name)
                if "rate" not in name and "projection" not in name:
                    np.testing.assert_array_equal(value, step, err_msg=name)
    again = _model()
    assert _checkpoints(workdir, again).restore() == 7
    for old, new in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


@pytest.mark.parametrize("harm", ["truncated", "flipped", "index", "data gone"])
def test_a_damaged_checkpoint_is_skipped(harm, tmp_path, capsys):
    _trained(tmp_path)
    data = Path(_newest(tmp_path, ".data-00000-of-00001"))
    contents = bytearray(data.read_bytes())
    if harm == "truncated":
        os.truncate(data, len(contents) // 2)
    elif harm == "flipped":
        contents[len(contents) // 2] ^= 1
        data.write_bytes(contents)
    elif harm == "index":
        os.truncate(_newest(tmp_path, ".index"), 10)
    else:
        os.remove(data)
    model = _model()
    assert _checkpoints(tmp_path, model).restore() == 2
    np.testing.assert_array_equal(model.encoder.weights[0].numpy(), 2.0)
    output = capsys.readouterr().err
    assert "ckpt-3 is damaged" in output and "going back to step 2" in output
    # `evaluate`, `export` and `embed` do the same.
    assert checkpoints.load_run(str(tmp_path)).step == 2


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    _trained(tmp_path, steps=(1,))
    os.truncate(_newest(tmp_path, ".data-00000-of-00001"), 5)
    with pytest.raises(errors.UserError, match=r"no checkpoint .* is whole"):
        _checkpoints(tmp_path).restore()


def test_an_unfinished_first_checkpoint_is_written_again(tmp_path, capsys):
    _trained(tmp_path, steps=(1,))
    folder = tmp_path / "checkpoints"
    # Killed between the making of the index and its contents.
    os.truncate(folder / "ckpt-1.index", 0)
    os.remove(folder / "checkpoint")
    with pytest.raises(errors.UserError, match=r"no checkpoint .* yet"):
        checkpoints.load_run(str(tmp_path))
    model = _model()
    saver = _checkpoints(tmp_path, model)
    assert saver.restore() == 0
    assert "ckpt-1 was never finished" in capsys.readouterr().err
    _advance(model, 1)
    saver.finish()
    assert _checkpoints(tmp_path, _model()).restore() == 1


def test_files_of_a_killed_writer_are_removed(tmp_path):
    _trained(tmp_path, steps=(1, 2), keep_checkpoints=2)
    folder = tmp_path / "checkpoints"
    state = (folder / "checkpoint").read_text()
    _trained(tmp_path, steps=(3,), keep_checkpoints=3)
    (folder / "checkpoint").write_text(state)  # Killed before it was updated.
    unfinished = folder / "ckpt-4_temp"
    unfinished.mkdir()
    (unfinished / "part-00000-of-00001.data").write_bytes(b"half")
    model = _model()
    saver = _checkpoints(tmp_path, model, keep_checkpoints=2)
    assert saver.restore() == 3
    assert not unfinished.exists()
    for step in (4, 5):
        _advance(model, step)
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
        return _checkpoints(
            tmp_path, model, keep_checkpoints=2, keep_checkpoint_every_hours=1.0
        )

    model = _model()
    saver = saver_of(model)
    for step in range(1, 13):
        now[0] += 1200  # Twenty minutes.
        if step == 7:
            now[0] += days * 86400
            if resumed:
                saver.restore()
                saver = saver_of(model)
        _advance(model, step)
        saver.finish()
        assert _present_steps(folder)[-1] == step
        assert tf.train.latest_checkpoint(str(folder)).endswith(f"ckpt-{step}")
    assert _listed_steps(folder) == [11, 12]
    assert not set(folder.glob("*.data*")) - {
        folder / f"ckpt-{step}.data-00000-of-00001"
        for step in _present_steps(folder)
    }
    # One of three stays. A jump costs, or adds, one interval.
    permanent = {-5: [3, 6, 10], 5: [3, 6, 7, 10]}[days]
    assert _present_steps(folder) == [*permanent, 11, 12]
    # TensorFlow's manager, of version 0.2.0, goes on from there.
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(), str(folder), max_to_keep=2
    )
    assert manager.latest_checkpoint.endswith("ckpt-12")


def test_a_list_of_the_future_deletes_by_step(tmp_path):
    """As TensorFlow's manager wrote it, before the clock was set back."""
    _trained(tmp_path, keep_checkpoints=3)
    folder = tmp_path / "checkpoints"
    text = (folder / "checkpoint").read_text()
    future = re.sub(r"(stamps?: )\d+", r"\g<1>4000000000", text)
    assert future != text
    (folder / "checkpoint").write_text(future)
    _trained(tmp_path, steps=(4, 5, 6), keep_checkpoints=3)
    assert _present_steps(folder) == [4, 5, 6]


def test_another_order_of_variables_is_refused(tmp_path):
    _trained(tmp_path)
    path = tmp_path / "checkpoints" / "metadata.json"
    metadata = json.loads(path.read_text())
    order = metadata["variables"]
    order[1], order[2] = order[2], order[1]
    path.write_text(json.dumps(metadata))
    with pytest.raises(
        errors.UserError, match="with other variables"
    ) as raised:
        _checkpoints(tmp_path)
    assert order[1][0] in str(raised.value)
    # Nothing was written.
    assert json.loads(path.read_text()) == metadata


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    model = _model(units=4000)
    saver = _checkpoints(tmp_path, model)
    _advance(model, 1)
    saver.finish()
    # No file may grow larger than 10 kB: what a full disk does to a writer.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        _advance(model, 2)
        with pytest.raises(
            errors.UserError, match="cannot be written"
        ) as raised:
            saver.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "at step 2" in str(raised.value)
    assert "newest whole checkpoint: step 1" in str(raised.value)
    again = _model(units=4000)
    assert _checkpoints(tmp_path, again).restore() == 1
    # With room again, it goes on.
    _advance(again, 2)
    _checkpoints(tmp_path, again).finish()
    assert checkpoints.newest(str(tmp_path / "checkpoints"))[0].endswith("-2")


@pytest.mark.parametrize(
    "change", ["removed", "moved", "replaced", "emptied", "other lock", "none"]
)
def test_a_save_notices_that_the_folder_is_another(change, tmp_path):
    model, folder = _model(), tmp_path / "run"
    _trained(tmp_path / "other", steps=(7,), seed=1)
    before = sorted((tmp_path / "other").rglob("*"))
    with checkpoints.FolderLock(str(folder)) as lock:
        saver = checkpoints.Checkpoints(model, _run(folder), INFO, lock)
        _advance(model, 1)
        saver.finish()
        if change in ("removed", "replaced"):
            shutil.rmtree(folder)
        if change == "moved":
            folder.rename(tmp_path / "elsewhere")
        if change == "replaced":
            shutil.copytree(tmp_path / "other", folder)
            before = sorted(folder.rglob("*"))
        if change == "emptied":
            shutil.rmtree(folder / "checkpoints")
        if change == "other lock":
            file = folder / "pretrain.lock"
            owner = json.loads(file.read_text())
            owner |= {"host": "other", "machine": "other", "token": "other"}
            file.write_text(json.dumps(owner))
        if change == "none":
            _advance(model, 2)
            saver.finish()
            assert _checkpoints(folder).restore() == 2
            return
        _advance(model, 2)
        for write in (saver.save, saver.finish):
            with pytest.raises(errors.UserError, match=str(folder)) as raised:
                write()
            assert raised.value.status == 2
    # Nothing was written, there or in the other run.
    if change in ("removed", "moved"):
        assert not folder.exists()
    if change == "replaced":
        assert sorted(folder.rglob("*")) == before


def test_a_folder_that_vanishes_during_the_last_save_is_noticed(
    tmp_path, monkeypatch
):
    model = _model()
    saver = _checkpoints(tmp_path / "run", model)
    _advance(model, 1)
    saver.save()
    damage_of = storage.damage_of

    def then_removed(path):
        damage = damage_of(path)
        shutil.rmtree(tmp_path / "run")
        return damage

    monkeypatch.setattr(storage, "damage_of", then_removed)
    with pytest.raises(errors.UserError, match="no longer the folder"):
        saver.finish()


def test_a_lost_worker_is_not_a_full_disk(tmp_path, monkeypatch):
    saver = _checkpoints(tmp_path)
    monkeypatch.setattr(failures, "_others", (("127.0.0.1", 1),))
    for text, status in (
        ("Collective ops is aborted by: Socket closed", 42),
        ("ckpt-0_temp/part-0; No space left on device", 2),
    ):

        def write(*_, text=text):
            raise tf.errors.ResourceExhaustedError(None, None, text)

        monkeypatch.setattr(tf.train.Checkpoint, "write", write)
        with pytest.raises(errors.UserError) as raised:
            saver.save()
        assert raised.value.status == status
        assert ("free some space" in str(raised.value)) == (status == 2)


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path):
    _trained(tmp_path)
    data = Path(_newest(tmp_path, ".data-00000-of-00001"))
    data.unlink()
    data.symlink_to("/proc/self/mem")  # Reading it is an error of input.
    with pytest.raises(errors.UserError, match=r"ckpt-3 .*make it"):
        _checkpoints(tmp_path).restore()


def test_checkpoints_do_not_depend_on_the_replicas(tmp_path):
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    mirrored = _model(strategy)
    saver = _checkpoints(tmp_path, mirrored)
    _advance(mirrored, 3)
    saver.save()
    saver.finish()
    single = _model()
    assert _checkpoints(tmp_path, single).restore() == 3
    for old, new in zip(mirrored.weights, single.weights, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())
    shutil.rmtree(tmp_path / "checkpoints")
    _trained(tmp_path, steps=(4,))
    again = _model(strategy)
    assert _checkpoints(tmp_path, again).restore() == 4
