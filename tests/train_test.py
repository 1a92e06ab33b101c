"""The main job, end to end: files, resume, refusals, the numbers it gives."""

import dataclasses
import json
import re
import shutil
import sys

import numpy as np
import processes
import pytest
import small
import tensorflow as tf
from dataset_helpers import class_folders, write

from tf_contrastive import (
    callbacks,
    checkpoints,
    datasets,
    exporting,
    flags,
    train,
)
from tf_contrastive.base import errors
from tf_contrastive.commands import pretrain as command
from tf_contrastive.config import dataset, fields
from tf_contrastive.config import pretrain as configs
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import Machine
from tf_contrastive.datasets import color_statistics as dataset_statistics
from tf_contrastive.tensorboard import histograms, scalars

pytestmark = [pytest.mark.usefixtures("small_encoder"), pytest.mark.early]


def _options(workdir, **changes):
    options = {"workdir": str(workdir), "log_every_steps": 2, **changes}
    return small.run(**options)


def _events(workdir):
    """TensorBoard tag -> its points, (step, tensor)."""
    tags = {}
    for path in (workdir / "events").glob("events.out.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                tags.setdefault(value.tag, []).append(
                    (event.step, value.tensor)
                )
    return tags


def _curves(workdir):
    """TensorBoard tag -> step -> number."""
    return scalars.read(str(workdir / "events"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its folder and its result."""
    workdir = tmp_path_factory.mktemp("run")
    return workdir, train.pretrain(_options(workdir))


def test_a_run_leaves_config_checkpoints_and_events(finished):
    workdir, result = finished
    assert result.step == 2 * (256 // 64)
    assert result.start_step == 0
    assert set(result.metrics) >= {"loss", "probe_accuracy"}
    assert (workdir / "checkpoints").is_dir()
    # What `auto` chose, which repeats the run.
    text = (workdir / "config.flags").read_text()
    assert "--stem=cifar" in text and "workdir" not in text
    again = flags.read_file(Pretrain, str(workdir / "config.flags"))
    assert fields.values(again) == fields.values(result.run.options)
    ((step, _),) = _events(workdir)["views"]
    assert step == 0
    curves = _curves(workdir)
    for tag in ("loss/contrastive", "probe/accuracy", "input/wait_fraction"):
        assert list(curves[tag]) == [2, 4, 6, 8], tag


@pytest.mark.slow
def test_a_workdir_need_not_be_on_a_disk(tmp_path, monkeypatch):
    # TensorFlow's own filesystem in memory stands for gs:// and others.
    workdir = f"ram://{tmp_path.name}/run"
    options = _options(workdir, epochs=1, schedule="constant")
    expected = fields.values(train.pretrain(options).run.options)
    run = checkpoints.load_run(workdir)
    assert run.step == 4 and fields.values(run.config) == expected
    assert checkpoints.load_encoder(run).output_shape == (None, 64)
    assert tf.io.gfile.glob(f"{workdir}/events/*")
    monkeypatch.chdir(tmp_path)
    assert command.run(options) == 0  # It is finished.
    assert exporting.export(workdir, str(tmp_path / "export"))
    assert list(tmp_path.iterdir()) == [tmp_path / "export"]


def test_the_same_command_on_a_finished_run_says_so(finished, capsys):
    workdir, result = finished
    before = small.weights(workdir)
    assert command.run(_options(workdir)) == 0
    assert "is finished: step 8 of 8, nothing left" in capsys.readouterr().out
    # The process that trained ended before it wrote its results.
    rows = json.loads((workdir / "pretrain.json").read_text())
    for name, value in result.metrics.items():
        assert rows[name] == round(value, 4)
    small.check_equal(before, small.weights(workdir))


def test_another_experiment_is_refused_naming_the_flags(finished):
    workdir, _ = finished
    with pytest.raises(
        errors.UserError, match=r"temperature=0.5.*; batch_size=32, there 64"
    ):
        train.pretrain(_options(workdir, temperature=0.5, batch_size=32))
    # What does not decide what is computed may change.
    train.pretrain(_options(workdir, log_every_steps=7))


def _resumed(options, monkeypatch, last, start):
    """Stops within the last epoch, after a step that no checkpoint holds.

    Returns the result of the run that goes on, from step `start`.
    """

    class Stopped(Exception):
        pass

    keep = callbacks.CheckpointCallback.on_train_batch_end

    def stop(self, batch, logs):
        keep(self, batch, logs)
        if self._checkpoints.step == last:
            self._checkpoints._checkpoint.sync()  # As the end of a process.
            raise Stopped

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(
            callbacks.CheckpointCallback, "on_train_batch_end", stop
        )
        train.pretrain(fields.replace(options, steps_per_execution=1))
    result = train.pretrain(options)
    assert result.start_step == start
    return result


def test_a_stopped_run_resumes_bit_for_bit(finished, tmp_path, monkeypatch):
    options = _options(tmp_path, checkpoint_every_steps=3)
    result = _resumed(options, monkeypatch, last=7, start=6)
    small.check_equal(small.weights(finished[0]), small.weights(tmp_path))
    # The means of the last epoch are of all its steps.
    assert result.metrics == finished[1].metrics
    resumed, straight = _curves(tmp_path), _curves(finished[0])
    tag = "loss/contrastive"
    assert resumed[tag][8] == straight[tag][8]


# ---- What follows from the data ---------------------------------------------


@pytest.mark.parametrize(
    ("name", "side", "given", "expected"),
    [
        ("cifar10", 32, {}, (True, 0.5, False)),
        ("folder:/mine", 224, {}, (True, 1.0, True)),
        ("mnist:3.0.1", 28, {}, (False, 0.5, False)),
        ("svhn_cropped", 96, {}, (False, 1.0, True)),
        ("digits", 8, {"flip": True, "blur": True}, (True, 0.5, True)),
        ("multidigits:count=3", 32, {}, (False, 0.5, False)),
        ("randbit:bits=3,of=mnist:3.0.1", 32, {}, (False, 0.5, False)),
        ("cifar10", 32, {"color_jitter_strength": 0.0}, (True, 0.0, False)),
    ],
)
def test_views_follow_the_recipe_of_the_data(name, side, given, expected):
    run = fields.replace(small.RUN, **given)
    data = {"dataset": name, "image_shape": (side, side, 3)}
    resolved = configs.resolve(run, **data)
    views = resolved.views
    assert views.image_size == side
    assert (
        views.policy.flip,
        views.policy.color_jitter_strength,
        views.policy.blur,
    ) == expected
    # What is resolved stays.
    assert configs.resolve(resolved, **data) == resolved


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({}, ("float32", "host", "off")),
        ({"on_tpu": True}, ("mixed_bfloat16", "device", "off")),
        ({"gpu_capability": (8, 0)}, ("mixed_bfloat16", "device", "on")),
        ({"gpu_capability": (7, 0)}, ("mixed_float16", "device", "on")),
        ({"gpu_capability": (6, 1)}, ("float32", "device", "on")),
    ],
)
def test_precision_and_compilation_follow_from_the_devices(devices, expected):
    data = {"dataset": "cifar10", "image_shape": (32, 32, 3)}
    machine = Machine(**devices)
    run = configs.resolve(small.RUN, machine, **data)
    runtime = run.runtime
    assert (runtime.precision, run.views.augment_on, runtime.xla) == expected
    half = fields.replace(small.RUN, precision="mixed_float16")
    if "on_tpu" in devices:
        with pytest.raises(errors.UserError, match="set precision=mixed_bfl"):
            configs.resolve(half, machine, **data)


@pytest.mark.slow
def test_compiled_and_half_precision_steps_train_as_plain_ones(tmp_path):
    def change(name, **given):
        run = _options(tmp_path / name, epochs=1, learning_rate=0.1, **given)
        train.pretrain(run)
        saved = checkpoints.load_run(run.runtime.workdir)
        before, after = (
            checkpoints.load_encoder(saved, trained=trained).get_weights()
            for trained in (False, True)
        )
        pairs = zip(before, after, strict=True)
        return np.concatenate([(b - a).ravel() for a, b in pairs])

    plain = change("plain")
    for options in ({"xla": "on"}, {"precision": "mixed_float16"}):
        other = change("other-" + "".join(options), **options)
        difference = np.linalg.norm(plain - other)
        assert difference < 0.1 * np.linalg.norm(plain), options


def test_unknown_colours_are_computed_from_evenly_spread_examples(
    monkeypatch, capsys
):
    images = np.random.default_rng(0).integers(0, 256, [30, 6, 6, 3], np.uint8)
    monkeypatch.setattr(dataset_statistics, "STANDARDIZE_EXAMPLES", 3)
    found = datasets.channel_statistics(datasets.from_arrays(images))
    assert "3 of 30 images" in capsys.readouterr().err
    few = images[[0, 14, 29]] / 255
    np.testing.assert_allclose(found.mean, few.mean((0, 1, 2)), atol=1e-9)
    np.testing.assert_allclose(found.std, few.std((0, 1, 2)), atol=1e-9)
    flat = datasets.from_arrays(np.full([4, 2, 2], 51, np.uint8))
    constant = datasets.channel_statistics(flat)
    np.testing.assert_allclose(constant, ((0.2,) * 3, (1 / 255,) * 3))


def test_the_known_colours_of_digits_are_theirs():
    digits = datasets.source("digits")
    info = dataclasses.replace(digits.info, name="unknown")
    other = dataclasses.replace(digits, info=info)
    found = datasets.channel_statistics(other)
    known = datasets.channel_statistics(digits)
    assert known == dataset.facts("digits").statistics
    np.testing.assert_allclose(found, known, atol=5.1e-5)


@pytest.mark.slow
def test_the_views_that_are_shown_do_not_depend_on_replicas(
    finished, tmp_path, capsys, monkeypatch
):
    """No strategy has to do with them."""
    views_of = histograms.views_of

    def made(run):
        assert not tf.distribute.has_strategy()
        return views_of(run)

    monkeypatch.setattr(histograms, "views_of", made)
    train.pretrain(_options(tmp_path, virtual_devices=2, epochs=1))
    assert "on 2 replica(s)" in capsys.readouterr().err
    shown = (_events(x)["views"][0][1] for x in (finished[0], tmp_path))
    np.testing.assert_array_equal(*map(tf.make_ndarray, shown))


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    options = _options(
        tmp_path, optimizer="sgd", learning_rate=1e38, warmup_epochs=0
    )
    with pytest.raises(
        callbacks.NonFiniteError,
        match=r"not finite at step \d+ on replica\(s\) 0",
    ):
        train.pretrain(options)
    assert tf.train.latest_checkpoint(tmp_path / "checkpoints") is None


@pytest.mark.slow
def test_both_branches_start_and_a_resumed_run_needs_no_start(
    finished, tmp_path
):
    start = shutil.copytree(finished[0], tmp_path / "start")
    run = _options(
        tmp_path / "next",
        **{"init_from": str(start), "epochs": 1},
        **{"loss": "moco", "queue_size": 64},
    )
    model, _ = train.prepare(run).build()
    expected = checkpoints.load_encoder(checkpoints.load_run(str(finished[0])))
    for encoder in (model.encoder, model.key_branch.encoder):
        for old, new in zip(expected.weights, encoder.weights, strict=True):
            np.testing.assert_array_equal(old, new)
    assert train.pretrain(run).step == 4
    shutil.rmtree(start)
    assert train.pretrain(run).start_step == 4


_LABELLED = ("cat", "dog")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "loss", "fraction", "following"),
    [
        # Nothing of it can be scored by labels.
        ((".",), "ntxent", 0.0, "export"),
        (
            *(_LABELLED, "ntxent", 0.0),
            "evaluate --scale=cpu --test_fraction=0.2",
        ),
        # All labels were learned.
        (_LABELLED, "supcon", 0.0, "export"),
        (_LABELLED, "ntxent joint", 0.0, "export"),
        (_LABELLED, "supcon", 0.2, "evaluate --scale=cpu"),
    ],
)
def test_folders_are_trained_on_and_the_next_command_can_be_run(
    classes, loss, fraction, following, tmp_path, capsys
):
    images = class_folders(tmp_path / "images", classes, per_class=10)
    write(images / classes[0] / "broken.png", b"no picture")
    run = tmp_path / "run"
    given = {"dataset": f"folder:{images}", "split": "train"}
    given |= {"loss": loss.split()[0]}
    given |= {"cross_entropy_weight": float(loss.endswith("joint"))}
    sizes = {"image_size": 8, "batch_size": 8, "epochs": 1}
    given |= {"test_fraction": fraction, **sizes}
    assert command.run(_options(run, **given)) == 0
    said = capsys.readouterr()
    assert re.search(r"skipped 1 image.*broken\.png", said.err, re.S)
    assert ("probe" in said.out) == (classes is _LABELLED)
    line = said.out.splitlines()[-1]
    assert line == f"next: python -m tf_contrastive {following} --workdir={run}"


# ---- Memory ---


@pytest.mark.slow
def test_epochs_do_not_add_to_memory(tmp_path):
    # A process of its own, in which nothing else comes and goes. Each thread's
    # own heap would grow and shrink by megabytes.
    words = [sys.executable, "-m", "tests.memory_growth", str(tmp_path)]
    done = processes.run(words, variables={"MALLOC_ARENA_MAX": "1"})
    growth, lost = map(float, done.stdout.split()[-2:])
    assert growth - lost < 1.5 * 2**20
