"""Runs of two stages: the encoder's own, then a classifier on it, frozen."""

import contextlib
import io
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import contexts
import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import checkpoints, embedding
from tf_contrastive import train as training
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate as evaluate_command
from tf_contrastive.commands import pretrain as command
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.evaluation import linear_stage

pytestmark = pytest.mark.usefixtures("small_encoder")

_FIRST = {**small.DIGITS, "test_split": "test[:200]"}
_EPOCHS = 6
_SECOND = {
    "linear_epochs": _EPOCHS,
    "linear_batch_size": 64,
    "linear_learning_rate": 2.0,
    "linear_label_smoothing": 0.05,
}


def _options(workdir, **changes):
    values = {**_FIRST, "workdir": str(workdir), **changes}
    return fields.replace(small.RUN, **values)


def _read(path):
    return json.loads(Path(path).read_text())


def _points(workdir, tag):
    return contexts.points(Path(workdir) / "events")[tag]


def _classifier(workdir):
    """All values of the linear stage's last checkpoint."""
    path, _ = checkpoints.newest(str(Path(workdir) / linear_stage.STATE))
    reader = tf.train.load_checkpoint(path)
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH" and "save" not in name
    }


def _assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def _scores(report):
    (result,) = report["results"]
    return result["top1"], result["top5"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first stage alone: its folder and its result."""
    workdir = tmp_path_factory.mktemp("first")
    return workdir, training.pretrain(_options(workdir))


@pytest.fixture
def begun(first, tmp_path):
    """A copy of the first stage to go on from."""
    return Path(shutil.copytree(first[0], tmp_path / "begun"))


def _stage(result, workdir, **changes):
    """The linear stage by itself, of a run whose first stage is done."""
    run = result.run.with_options(workdir=str(workdir), **(_SECOND | changes))
    train, _, test = training.open_data(run.options)
    return linear_stage.run(run.options, train, test, run.strategy)


class _Usual(NamedTuple):
    """The stage of the options as they are."""

    workdir: Path
    report: dict[str, Any]
    classifier: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def usual(first, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("usual") / "run"
    shutil.copytree(first[0], workdir)
    report = _stage(first[1], workdir)
    return _Usual(workdir, report, _classifier(workdir))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run of both stages: its folder, and what it says on stdout."""
    workdir = tmp_path_factory.mktemp("both")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command.run(_options(workdir, **_SECOND)) == 0
    return workdir, out.getvalue()


# ---- One run, two stages -----------------------------------------------------


def test_one_command_trains_and_tells_both_stages(both):
    workdir, out = both
    report = _read(workdir / "linear.json")
    assert (report["dataset"], report["step"]) == ("digits", 8)
    top1, top5 = _scores(report)
    assert 0.2 < top1 < top5  # Chance is 0.1.
    rows = _read(workdir / "pretrain.json")
    assert rows["steps"] == 8 and rows["loss"] > 0
    assert rows["linear_top1"] == round(top1, 4)
    assert f"linear_top1           {round(top1, 4)}" in out
    (row,) = [x.split() for x in out.splitlines() if x.startswith("trained")]
    assert row[1] == "linear"
    # Of ten classes top-5 says little.
    assert "linear_top5" not in rows and f"{top5:.4f}" not in row
    assert {f"{top1:.4f}", "200"} <= set(row)
    assert f"encoder checksum unchanged: {report['checksum'][:12]}" in out


@pytest.mark.slow
def test_the_linear_stage_leaves_the_run_as_it_was(first, both):
    found, expected = (
        {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if name.startswith("encoder/")
        }
        for reader in (
            tf.train.load_checkpoint(str(workdir / "checkpoints"))
            for workdir in (both[0], first[0])
        )
    )
    assert len(expected) == 20
    _assert_same(found, expected)
    run = checkpoints.load_run(str(both[0]))
    checksum = embedding.checksum(checkpoints.load_encoder(run))
    assert _read(both[0] / "linear.json")["checksum"] == checksum


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", ["none", "randaugment"])
def test_it_is_what_evaluate_does(augmentation, first, begun):
    chosen = {**_SECOND, "linear_augmentation": augmentation}
    chosen |= {"linear_optimizer": "rmsprop", "linear_learning_rate": 0.2}
    report = _stage(first[1], begun, **chosen)
    options = fields.replace(
        Evaluate(),
        workdir=str(begun),
        train_split=_FIRST["split"],
        test_split=_FIRST["test_split"],
        protocols="linear",
        untrained=False,
        **chosen,
    )
    assert evaluate_command.run(options) == 0
    found = _read(begun / "evaluation.json")
    assert found["checksum"] == report["checksum"]
    (mine,), (theirs,) = report["results"], found["results"]
    assert mine.pop("seconds") > 0 and theirs.pop("seconds") > 0
    assert mine == theirs
    assert mine["hyperparameters"]["augmentation"] == augmentation


def test_the_same_command_again_repeats_what_it_found(both, capsys):
    workdir, _ = both
    before = _read(workdir / "linear.json")
    assert command.run(_options(workdir, **_SECOND)) == 0
    out = capsys.readouterr().out
    assert "is finished: step 8 of 8, nothing left" in out
    assert f"{_scores(before)[0]:.4f}" in out
    # Not even the seconds are others: nothing was trained.
    assert _read(workdir / "linear.json") == before


# ---- Stopped and gone on -----------------------------------------------------


class _Killed(Exception):
    pass


@pytest.mark.slow
def test_a_stage_that_was_killed_goes_on_bit_for_bit(
    first, begun, tmp_path, monkeypatch, capsys
):
    chosen = {
        "linear_augmentation": "crop",
        "linear_optimizer": "rmsprop",
        "linear_learning_rate": 0.2,
    }
    straight = shutil.copytree(begun, tmp_path / "straight")
    expected = _stage(first[1], straight, **chosen)
    follow = linear_stage.Progress.epoch

    def kill(self, done, metrics):
        # The third epoch is trained, and kept by nobody.
        if done == 3:
            raise _Killed
        follow(self, done, metrics)

    monkeypatch.setattr(linear_stage, "_SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patched, pytest.raises(_Killed):
        patched.setattr(linear_stage.Progress, "epoch", kill)
        _stage(first[1], begun, **chosen)
    assert not (begun / "linear.json").exists()
    found = _stage(first[1], begun, **chosen)
    assert "linear stage: resumed after epoch 2" in capsys.readouterr().err
    assert _scores(found) == _scores(expected)
    _assert_same(_classifier(begun), _classifier(straight))


@pytest.mark.slow
def test_sigterm_saves_the_stage_and_ends_it(first, begun, usual, monkeypatch):
    follow = linear_stage.Progress.epoch

    def signalled(self, done, metrics):
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        follow(self, done, metrics)

    with (
        monkeypatch.context() as patched,
        pytest.raises(
            errors.InterruptedRunError,
            match="SIGTERM, saved at epoch 2 of the linear stage: repeat",
        ) as ended,
    ):
        patched.setattr(linear_stage.Progress, "epoch", signalled)
        _stage(first[1], begun)
    assert ended.value.status == errors.EXIT_RESUME
    assert _scores(_stage(first[1], begun)) == _scores(usual.report)
    _assert_same(_classifier(begun), usual.classifier)
    # Each epoch has its point, once.
    steps = [step for step, _ in _points(begun, "linear/loss")]
    assert sorted(steps) == [4 * n for n in range(1, 7)]
