"""Runs of two stages: the encoder's own, then a classifier on it, frozen."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import signal
from pathlib import Path

import contexts
import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, embedding
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


def _classifier(workdir):
    """All values of the linear stage's last checkpoint."""
    path, _ = checkpoints.newest(str(Path(workdir) / linear_stage.STATE))
    reader = tf.train.load_checkpoint(path)
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH" and "save" not in name
    }


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


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run of both stages: its folder, and what it says on stdout."""
    workdir = tmp_path_factory.mktemp("both")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command.run(_options(workdir, **_SECOND)) == 0
    return workdir, out.getvalue()


# ---- One run, two stages -----------------------------------------------------


@pytest.mark.slow
def test_one_command_trains_and_tells_both_stages(both):
    workdir, out = both
    report = _read(workdir / "linear.json")
    assert (report["dataset"], report["step"]) == ("digits", 8)
    top1, top5 = _scores(report)
    assert 0.2 < top1 < top5  # Chance is 0.1.
    rows = _read(workdir / "pretrain.json")
    assert rows["linear_top1"] == round(top1, 4)
    (row,) = [x.split() for x in out.splitlines() if x.startswith("trained")]
    assert row[1] == "linear"
    # Of ten classes top-5 says little.
    assert "linear_top5" not in rows and f"{top5:.4f}" not in row
    assert {f"{top1:.4f}", "200"} <= set(row)
    assert f"encoder checksum unchanged: {report['checksum'][:12]}" in out


@pytest.mark.slow
def test_the_linear_stage_leaves_the_run_as_it_was(first, both):
    found, expected = (
        embedding.checksum(checkpoints.load_encoder(checkpoints.load_run(x)))
        for x in (str(both[0]), str(first[0]))
    )
    assert found == expected == _read(both[0] / "linear.json")["checksum"]


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


def test_the_same_command_again_repeats_what_it_found(both, capsys, tmp_path):
    workdir, _ = both
    before = _read(workdir / "linear.json")
    assert command.run(_options(workdir, **_SECOND)) == 0
    out = capsys.readouterr().out
    assert "is finished: step 8 of 8, nothing left" in out
    assert f"{_scores(before)[0]:.4f}" in out
    # Not even the seconds are others: nothing was trained.
    assert _read(workdir / "linear.json") == before
    train, test = (datasets.source("digits", x) for x in ("train", "test"))
    labels = (test.arrays["label"] + 1) % 10
    test = dataclasses.replace(test, arrays=test.arrays | {"label": labels})
    config = checkpoints.load_run(str(shutil.copytree(workdir, tmp_path / "r")))
    strategy = tf.distribute.get_strategy()
    after = linear_stage.run(config.config, train, test, strategy)
    assert after["stage"] != before["stage"]


# ---- Stopped and gone on -----------------------------------------------------


class _Killed(Exception):
    pass


def _kill():
    raise _Killed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "signalled"])
def test_a_stage_that_was_stopped_goes_on_bit_for_bit(
    how, first, begun, tmp_path, monkeypatch, capsys
):
    chosen, stop, ending = {}, _kill, _Killed
    if how == "killed":
        chosen = {"linear_augmentation": "crop", "linear_optimizer": "rmsprop"}
        chosen["linear_learning_rate"] = 0.2
        monkeypatch.setattr(linear_stage, "SAVE_SECONDS", 0.0)
    else:
        stop = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
        ending = errors.InterruptedRunError
    straight = shutil.copytree(begun, tmp_path / "straight")
    expected = _stage(first[1], straight, **chosen)
    follow = linear_stage.Progress.epoch

    def stopped(self, done, metrics):
        # A killed one has trained the third epoch, which nobody has kept.
        if done == (3 if how == "killed" else 2):
            stop()
        follow(self, done, metrics)

    with monkeypatch.context() as patched, pytest.raises(ending) as ended:
        patched.setattr(linear_stage.Progress, "epoch", stopped)
        _stage(first[1], begun, **chosen)
    if how == "signalled":
        assert "SIGTERM, saved at epoch 2 of the linear" in str(ended.value)
        assert ended.value.status == errors.EXIT_RESUME
    assert not (begun / "linear.json").exists()
    found = _stage(first[1], begun, **chosen)
    assert "linear stage: resumed after epoch 2" in capsys.readouterr().err
    assert _scores(found) == _scores(expected)
    small.check_equal(_classifier(straight), _classifier(begun))
    # Each epoch has its point, once.
    points = contexts.points(begun / "events")
    steps, rates = zip(*sorted(points["linear/learning_rate"]), strict=True)
    assert [*steps] == [4 * n for n in range(1, 7)]
    # Of the last of 24 steps.
    rate = (_SECOND | chosen)["linear_learning_rate"] * 64 / 256
    rate *= 0.5 * (1 + np.cos(np.pi * 23 / 24))
    assert rates[-1] == pytest.approx(rate, rel=1e-4)
