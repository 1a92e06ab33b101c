"""What the doctor says of a run: numbers that hold, warnings that fit."""

import dataclasses
import itertools
import json
import os
import sys
import threading
import time

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import (
    __main__,
    checkpoints,
    config,
    datasets,
    encoders,
    training,
)
from tf_contrastive import model as models
from tf_contrastive.commands import doctor
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Doctor, Pretrain
from tf_contrastive.doctor import advice, memory, positives, rates

_SMALL = {
    "dataset": "digits",
    "split": "train[:256]",
    "encoder": "resnet10",
    "width": 0.125,
    "projection_output": 16,
    "loss": "supcon",
    "batch_size": 64,
    "epochs": 100,
}


def _options(**changes):
    return fields.replace(Doctor(), **(_SMALL | changes))


def _main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", "doctor", *arguments])
    # How it leaves a measurement behind that a busy machine has not finished:
    # not by the end of the tests.
    monkeypatch.setattr(os, "_exit", lambda status: None)
    return __main__.main()


def _flags(**changes):
    return [f"--{name}={value}" for name, value in (_SMALL | changes).items()]


@pytest.fixture(autouse=True)
def _brief(monkeypatch):
    """Measurements of an instant: here nothing depends on how they come out."""
    for name in ("_INPUT", "_STEPS", "_LABELS"):
        monkeypatch.setattr(doctor, name, 0.1)


# ---- The command -------------------------------------------------------------


@small.encoder()
def test_it_tells_of_a_run_and_leaves_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert _main(monkeypatch, *_flags()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for told in (
        "tensorflow 2.15",
        "replicas 1",
        "dataset digits train[:256]",
        "examples 256 classes 10",
        "stem cifar",
        "view size 8",
        "optimizer lars",
        "peak learning rate 0.075",
        "steps per epoch 4 steps 400 warm-up steps 40",
        "of each replica 64",
        "in all MiB",
        "input images/s",
        "hours of the run",
        "warnings: 0",
    ):
        assert told in shown, told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@small.encoder()
def test_it_writes_json_beside_a_run_that_it_does_not_touch(
    monkeypatch, capsys, tmp_path
):
    flags = _flags(epochs=1, split="train[:64]", workdir=tmp_path)
    run = _options(epochs=1, split="train[:64]", workdir=str(tmp_path))
    values = {f.name: v for _, f, v in fields.fields(run)}
    training.pretrain(fields.replace(Pretrain(), **values))

    def files():
        return {
            path: path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file()
        }

    before = files()
    assert _main(monkeypatch, *flags) == 0
    after = files()
    written = json.loads(after.pop(tmp_path / doctor.RESULT_FILE))
    assert after == before
    assert checkpoints.load_run(str(tmp_path)).step == 1
    assert written["schedule"]["steps"] == 1
    assert written["model"]["parameters of the probe"] == 64 * 10 + 10
    assert list(written["warnings"]) == ["few_steps"]
    assert "warnings: 1\n  few_steps: 1 steps in all" in capsys.readouterr().out


@small.encoder()
def test_what_takes_too_long_is_waited_for_no_longer(monkeypatch):
    """A step cannot be stopped: the report comes without it."""

    class Impatient(rates.Bounded):
        left = property(lambda self: 0.0 if self.abandoned else 4.0)

    ended = threading.Event()
    monkeypatch.setattr(rates, "Bounded", Impatient)
    monkeypatch.setattr(rates, "step_time", lambda *_: ended.wait(60))
    monkeypatch.setattr(rates, "input_rate", lambda *_: 1.0)
    monkeypatch.setattr(doctor, "_GRAPH_BY_MODEL", 0.0)
    report = doctor.inspect(_options())
    ended.set()
    assert report.abandoned
    assert report.sections["speed"]["step images/s in float32"] is None


def test_it_is_waited_until_an_end_and_errors_come_through():
    bounded = rates.Bounded(time.perf_counter() + 30)
    assert bounded.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        bounded.call(lambda: 1 / 0)
    assert not bounded.abandoned
    ended = threading.Event()
    short = rates.Bounded(time.perf_counter() + 0.05)
    assert short.call(lambda: ended.wait(60)) is None
    # What still runs would falsify the next measurement.
    assert short.abandoned and short.left == 0
    assert short.call(lambda: 3) is None
    ended.set()


def test_measurements_end_though_steps_are_long(monkeypatch):
    monkeypatch.setattr(rates, "cpu_rate", lambda: 1e3)
    report = doctor.inspect(_options())
    assert report.facts.step_rates == {}
    assert report.facts.hours is None
    assert report.sections["speed"]["step images/s in float32"] is None
    assert report.facts.input_rate > 0


# ---- Positives ---------------------------------------------------------------

_LABELS = np.array([0] * 3 + [1] * 2 + [2])


def _expected(labels=_LABELS, **changes):
    run = fields.replace(
        Pretrain(), **({"loss": "supcon", "batch_size": 3} | changes)
    )
    counts = np.unique(labels, return_counts=True)[1]
    return positives.expect(run, counts, len(labels))


def _by_enumeration(views, batch):
    """(positives, negatives, share without) over all batches and anchors."""
    found = []
    for rows in itertools.combinations(range(len(_LABELS)), batch):
        labels = np.repeat(_LABELS[list(rows)], views)
        same = labels[:, None] == labels
        found += [(row.sum() - 1, (~row).sum()) for row in same]
    found = np.array(found)
    return (*found.mean(0), (found[:, 0] == 0).mean())


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 3, 5])
def test_expected_positives_are_those_of_all_possible_batches(views, batch):
    found = _expected(views=views, batch_size=batch)
    np.testing.assert_allclose(
        (found.positives, found.negatives, found.without),
        _by_enumeration(views, batch),
        rtol=1e-9,
    )
    assert found.lone_classes == 1


@pytest.mark.parametrize("batch", [2, 3, 4, 7, 9])
def test_expected_positives_of_balanced_classes(batch):
    classes = np.arange(batch) % 3
    same = (classes[:, None] == classes).sum(1) - 1
    found = _expected(batch_size=batch, views=1, sampler="class_balanced")
    assert found.positives == pytest.approx(same.mean())
    assert found.without == pytest.approx((same == 0).mean())


def test_expected_positives_of_what_compares_views():
    for changes, wanted in (
        ({"loss": "ntxent", "views": 3}, (2, 6)),
        ({"loss": "margin"}, (1, 2)),
        ({"loss": "moco", "queue_size": 100}, (1, 100)),
    ):
        found = _expected(**changes)
        assert (found.positives, found.negatives) == wanted, changes
    assert _expected(positives_cap=1).positives == 1
    assert _expected(loss="npairs").positives == pytest.approx(
        1 - _expected(views=1).without
    )
    assert _expected(loss="cross_entropy") is None


def test_labels_in_files_are_counted_for_a_while(tmp_path):
    labels = np.arange(600) % 3
    source = datasets.from_arrays(np.zeros([600, 2, 2], np.uint8), labels)
    assert positives.count_labels(source, 0.0).tolist() == [200] * 3
    in_files = dataclasses.replace(source, arrays=None)
    assert positives.count_labels(in_files, 60.0).tolist() == [200] * 3
    assert positives.count_labels(in_files, 0.0).sum() == positives._LABELS


# ---- Memory ------------------------------------------------------------------


def _saved_bytes(encoder, images, side):
    """Bytes that TensorFlow hands from the forward to the backward pass."""
    forward = tf.function(lambda x: encoder(x, training=True))
    spec = tf.TensorSpec([images, side, side, 3])
    concrete = forward.get_concrete_function(spec)
    _, backward = concrete._delayed_rewrite_functions.forward_backward()
    found = {}
    for tensor in backward.captured_inputs:
        # Names of the same numbers.
        while tensor.op.type in ("Identity", "IdentityN", "StopGradient"):
            tensor = tensor.op.inputs[tensor.value_index]
        of_variable = [tensor.op, *(x.op for x in tensor.op.inputs)]
        if any(op.type == "ReadVariableOp" for op in of_variable[:2]):
            continue
        # What has no known shape are shapes; the images are counted apart.
        if (
            tensor.shape.is_fully_defined()
            and tensor.dtype != tf.resource
            and tensor.op.type != "Placeholder"
        ):
            found[tensor.op.name, tensor.value_index] = tensor
    return sum(x.shape.num_elements() * x.dtype.size for x in found.values())


@pytest.mark.parametrize(
    ("name", "side", "stem", "precision"),
    [
        ("resnet18", 32, "cifar", "float32"),
        ("resnet18", 32, "cifar", "mixed_bfloat16"),
        ("resnet10", 96, "imagenet", "float32"),
        ("resnet50", 16, "cifar", "float32"),
    ],
)
def test_activations_are_what_the_gradient_keeps(name, side, stem, precision):
    with models.precision(precision):
        encoder = encoders.build(
            name, width=0.25, stem=stem, image_shape=(side, side, 3)
        )
    predicted = 4 * memory._per_image(memory.kept_tensors(encoder))
    saved = _saved_bytes(encoder, 4, side)
    assert predicted == pytest.approx(saved, rel=0.1)


def test_variables_are_counted_exactly():
    run = training.resolve(
        _options(loss="moco", queue_size=64),
        datasets.source("digits", "train[:256]").info,
        tf.distribute.get_strategy(),
    )
    model = models.build(run, 10)
    training.compile_model(model, run, 4)
    found = memory.predict(model, run, 2)

    def nbytes(variables):
        return sum(v.numpy().nbytes for v in variables)

    assert found.parameters == nbytes(
        [
            *model.encoder.variables,
            *model.projection_head.variables,
            *model.probe.variables,
            *model.key_branch.variables,
        ]
    )
    assert found.optimizer == nbytes(
        [*model.optimizer.variables, *model.probe_optimizer.variables]
    )
    assert found.gradients == nbytes(
        [*model.pretrained_variables, *model.probe.trainable_variables]
    )
    # Of 32 images one view each is encoded with a gradient.
    assert found.views == 32 * 2 * 8 * 8 * 3 * 4
    assert found.block == (32, 64 + 64)
    less = fields.replace(run, grad_cache_chunks=4)
    assert memory.predict(model, less, 2).activations * 4 == found.activations


# ---- Speed -------------------------------------------------------------------


def test_a_step_is_extrapolated_by_what_another_image_costs():
    assert rates.extrapolate({4: 1.0}, 16) == 4.0
    # 0.4 s a step and 0.1 s an image.
    assert rates.extrapolate({4: 0.8, 8: 1.2}, 16) == pytest.approx(2.0)
    # Noise: an image is not free.
    assert rates.extrapolate({4: 1.2, 8: 1.0}, 16) == pytest.approx(1.5)
    assert rates.extrapolate({8: 1.0}, 8) == 1.0


@pytest.mark.slow
@small.encoder()
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "moco", "queue_size": 64},
        {
            "loss": "cross_entropy",
            "mixup_alpha": 0.2,
            "augment_on": "device",
            "virtual_devices": 2,
        },
        {"loss": "ntxent", "grad_cache_chunks": 2},
        {"sampler": "class_balanced", "batch_size": 6},
    ],
    ids=str,
)
def test_steps_and_input_of_any_run_are_measured(changes, monkeypatch):
    monkeypatch.setattr(config, "PRECISIONS", ("auto", "float32"))
    report = doctor.inspect(_options(**changes))
    assert set(report.facts.step_rates) == {"float32"}
    assert report.facts.input_rate > 0
    assert report.facts.hours > 0


# ---- Warnings ----------------------------------------------------------------


def _facts(given=None, **changes):
    """Of a run that nothing is wrong with, changed."""
    given = {
        "dataset": "cifar10",
        "image_size": 32,
        "stem": "cifar",
        "flip": True,
        "blur": False,
        "color_jitter_strength": 0.5,
        "warmup_epochs": 10.0,
        "precision": "float32",
        "loss": "ntxent",
        **(given or {}),
    }
    run = fields.replace(Pretrain(), **given)
    name = run.data.dataset
    info = datasets.Info(name, "train", 50_000, 10, (32, 32, 3))
    counts = np.full([10], 5_000)
    facts = advice.Facts(
        run=run,
        info=info,
        replicas=1,
        steps_per_epoch=50_000 // run.schedule.batch_size,
        peak_learning_rate=0.3,
        expected=positives.expect(run, counts, info.num_examples),
        memory=memory.Memory(1, 1, 1, 1, 1, 1, 2**30, (1, 1)),
        available_memory=2**34,
        input_rate=2000.0,
        step_rates={"float32": 1000.0},
    )
    return dataclasses.replace(facts, **changes)


def _known(name, examples):
    return datasets.Info(name, "train", examples, 10, (32, 32, 3))


@pytest.mark.parametrize(
    ("name", "given", "changes", "told"),
    [
        ("stem", {"stem": "imagenet"}, {}, "8 of 32 pixels a side"),
        (
            "stem",
            {"image_size": 224, "blur": True},
            {},
            "--stem=cifar at 224 pixels needs 16 times",
        ),
        (
            "strong_colours",
            {"color_jitter_strength": 1.0},
            {},
            "give --color_jitter_strength=0.5",
        ),
        ("strong_colours", {"blur": True}, {}, "give --noblur"),
        ("mirrored_signs", {"dataset": "mnist"}, {}, "give --noflip"),
        ("memory", {}, {"available_memory": 2**30}, "needs about 1.0 GiB"),
        ("input", {}, {"input_rate": 250.0}, "wait 75% of the time"),
        (
            "no_positives",
            {"loss": "supcon", "views": 1, "batch_size": 8},
            {},
            "of the anchors have no positive in a batch",
        ),
        (
            "no_positives",
            {"loss": "supcon", "batch_size": 8},
            {},
            "meets 0.70 other images of its class",
        ),
        (
            "lone_classes",
            {"loss": "supcon", "views": 1},
            {"expected": positives.Expected(9, 99, 9, 0.01, 3, 100)},
            "3 classes have a single example",
        ),
        ("few_negatives", {"batch_size": 16}, {}, "has 30 negatives"),
        (
            "few_negatives",
            {"loss": "supcon"},
            {"expected": positives.Expected(511, 0, 255, 0, 0, 50_000)},
            "no anchor has a negative",
        ),
        (
            "queue",
            {"loss": "moco", "queue_size": 65_536},
            {},
            "holds every one of the 50,000 images",
        ),
        ("temperature", {"temperature": 0.01}, {}, "become NaN"),
        ("temperature", {"temperature": 5.0}, {}, "hardly tells near"),
        ("normalization", {"loss_normalize": False}, {}, "leave it out"),
        (
            "learning_rate",
            {"optimizer": "sgd"},
            {"peak_learning_rate": 4.8},
            "a peak learning rate of 4.8 is one for lars; sgd diverges",
        ),
        (
            "learning_rate",
            {"optimizer": "adamw"},
            {"peak_learning_rate": 0.3},
            "adamw diverges",
        ),
        (
            "learning_rate",
            {},
            {"peak_learning_rate": 0.001},
            "hardly moves a weight by lars",
        ),
        (
            "warmup",
            {"batch_size": 4096, "warmup_epochs": 0.0},
            {},
            "give --warmup_epochs=10",
        ),
        (
            "normalized_images",
            {"grad_cache_chunks": 64},
            {},
            "statistics of 8 views at a time",
        ),
        ("small_share", {}, {"replicas": 128}, "2 image(s) per replica"),
        (
            "dropped",
            {},
            {"info": _known("cifar10", 300)},
            "every epoch drops 44 of 300 images",
        ),
        ("few_steps", {"epochs": 1}, {"steps_per_epoch": 9}, "9 steps in all"),
        ("blind", {"probe": False}, {}, "--noprobe"),
        (
            "unsaved",
            {},
            {"step_rates": {"float32": 1.0}},
            "a crash would cost up to 13.9 hours",
        ),
    ],
)
def test_a_known_bad_combination_is_warned_of(name, given, changes, told):
    found = advice.advise(_facts(given, **changes))
    assert told in found[name]
    # One line that says what to do.
    assert "\n" not in found[name]
    assert "give" in found[name] or "leave" in found[name]


def test_every_check_is_tried():
    marks = test_a_known_bad_combination_is_warned_of.pytestmark[0].args[1]
    checks = {check.__name__.lstrip("_") for check in advice.CHECKS}
    assert {mark[0] for mark in marks} == checks


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"loss": "supcon", "temperature": 0.07},
        {"loss": "supcon", "views": 1},
        {"loss": "cross_entropy", "augmentation": "autoaugment"},
        {"loss": "moco", "queue_size": 8192},
        {"loss": "npairs"},
        {"loss": "swd_normal"},
        {"image_size": 224, "stem": "imagenet", "blur": True},
        {"dataset": "mnist", "flip": False},
        {"batch_size": 4096, "epochs": 1000},
    ],
    ids=str,
)
def test_good_runs_are_warned_of_nothing(given):
    assert advice.advise(_facts(given)) == {}


def test_a_worthwhile_precision_is_recommended():
    for bfloat16, wanted in ((2000.0, "mixed_bfloat16"), (1050.0, None)):
        step_rates = {"float32": 1000.0, "mixed_bfloat16": bfloat16}
        facts = _facts(step_rates=step_rates)
        assert advice.recommended_precision(facts) == wanted
    assert advice.recommended_precision(_facts(step_rates={})) is None


def test_hours_are_those_of_the_slower_of_input_and_step():
    images = 100 * (50_000 // 256) * 256
    assert _facts().hours == pytest.approx(images / 1000 / 3600)
    slow = _facts(input_rate=100.0)
    assert slow.hours == pytest.approx(images / 100 / 3600)
    assert _facts(step_rates={}).hours is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
