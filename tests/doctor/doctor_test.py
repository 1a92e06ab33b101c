"""What the doctor predicts and measures, and the combinations it warns of."""

import dataclasses
import itertools
import json
import subprocess
import sys

import doctor_facts
import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import (
    __main__,
    checkpoints,
    datasets,
    doctor,
    encoders,
    train,
)
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import advice, memory, positives, speed
from tf_contrastive.model import networks

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


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch):
    monkeypatch.setattr(doctor, "_INPUT", 0.1)
    monkeypatch.setattr(doctor, "_STEPS", 3.0)
    # However busy the machine is.
    monkeypatch.setattr(doctor, "_MAX_TRACE", float("inf"))


# ---- The command -------------------------------------------------------------


@small.encoder()
def test_the_command_reports_and_changes_nothing_but_its_file(
    monkeypatch, capsys, tmp_path
):
    flags = _SMALL | {"epochs": 1, "workdir": tmp_path}
    run = fields.replace(Pretrain(), **(flags | {"workdir": str(tmp_path)}))
    prepared = train.prepare(run)
    model, _ = prepared.build()
    saved = checkpoints.Checkpoints(
        model, prepared.options, prepared.source.info
    )
    saved.save()
    saved.finish()

    def files():
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in paths}

    before = files()
    # Of a machine whose half precision is not faster.
    monkeypatch.setattr(doctor.speed, "half_speed", lambda _: 0.9)
    words = [f"--{name}={value}" for name, value in flags.items()]
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", "doctor", *words])
    assert __main__.main() == 0
    after = files()
    report = json.loads(after.pop(tmp_path / "doctor.json"))
    assert after == before
    assert report["environment"]["tensorflow"] == tf.__version__
    assert report["devices"]["replicas"] == 1
    assert report["data"]["examples"] == 256
    assert report["model"]["stem"] == "cifar"
    assert report["model"]["probe_parameters"] == 64 * 10 + 10
    assert report["schedule"]["peak_learning_rate"] == pytest.approx(0.075)
    assert report["schedule"]["steps"] == 4
    assert report["batch"]["positives_per_anchor"] > 1
    sizes = report["memory"]
    assert report["memory_per_replica"]["total_mib"] > 0
    assert sizes["process_mib"] > 300 and sizes["available_mib"] > 0
    assert report["speed"]["input_images_per_second"] > 0
    assert report["speed"]["hours"] is not None
    assert report["speed"]["mixed_bfloat16_by_float32"] == 0.9
    assert list(report["warnings"]) == ["few_steps"]
    printed = capsys.readouterr().out
    assert "warnings: 1\n  few_steps: 4 steps in total" in printed
    assert "a smaller --batch_size" in printed


@pytest.mark.slow
@small.encoder()
@pytest.mark.parametrize(
    "changes",
    [
        {
            "loss": "cross_entropy",
            "mixup_alpha": 0.2,
            "augment_on": "device",
            "virtual_devices": 2,
        },
        {"loss": "moco", "queue_size": 64, "grad_cache_chunks": 2},
    ],
    ids=str,
)
def test_input_and_step_of_any_run_are_measured(changes):
    report = doctor.inspect(_options(**changes))
    assert report.facts.step_speed > 0
    assert report.facts.input_speed > 0
    assert report.facts.hours > 0


@small.encoder()
def test_a_step_that_takes_too_long_is_not_begun(monkeypatch):
    monkeypatch.setattr(doctor, "_STEPS", 0.0)
    report = doctor.inspect(_options())
    assert report.facts.step_speed is None and report.facts.hours is None
    assert report.sections["speed"]["step_images_per_second"] is None
    assert report.facts.input_speed > 0


# ---- Positives ---------------------------------------------------------------

_LABELS = np.array([0] * 3 + [1] * 2 + [2])


def _expected(labels=_LABELS, **changes):
    run = fields.replace(
        Pretrain(), **({"loss": "supcon", "batch_size": 3} | changes)
    )
    counts = np.unique(labels, return_counts=True)[1]
    return positives.expect(run, counts, len(labels))


def _enumerated(views, batch):
    """(positives, negatives, fraction without) over all possible batches."""
    anchors = []
    for rows in itertools.combinations(range(len(_LABELS)), batch):
        labels = np.repeat(_LABELS[list(rows)], views)
        same = labels[:, None] == labels
        anchors += [(row.sum() - 1, (~row).sum()) for row in same]
    anchors = np.array(anchors)
    return (*anchors.mean(0), (anchors[:, 0] == 0).mean())


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 3, 5])
def test_expected_positives_equal_the_mean_over_all_batches(views, batch):
    expected = _expected(views=views, batch_size=batch)
    np.testing.assert_allclose(
        (expected.positives, expected.negatives, expected.without_positives),
        _enumerated(views, batch),
        rtol=1e-9,
    )
    assert expected.single_example_classes == 1


@pytest.mark.parametrize("batch", [2, 3, 4, 7, 9])
def test_expected_positives_of_balanced_classes(batch):
    classes = np.arange(batch) % 3
    same = (classes[:, None] == classes).sum(1) - 1
    expected = _expected(batch_size=batch, views=1, sampler="class_balanced")
    assert expected.positives == pytest.approx(same.mean())
    assert expected.without_positives == pytest.approx((same == 0).mean())


def test_expected_positives_of_each_kind_of_loss():
    for changes, pairs in (
        ({"loss": "ntxent", "views": 3}, (2, 6)),
        ({"loss": "margin"}, (1, 2)),
        ({"loss": "moco", "queue_size": 100}, (1, 100)),
    ):
        expected = _expected(**changes)
        assert (expected.positives, expected.negatives) == pairs, changes
    assert _expected(positives_cap=1).positives == 1
    assert _expected(loss="npairs").positives == pytest.approx(
        1 - _expected(views=1).without_positives
    )
    assert _expected(loss="cross_entropy") is None


def test_labels_in_files_are_counted_for_a_limited_time():
    labels = np.arange(600) % 3
    source = datasets.from_arrays(np.zeros([600, 2, 2], np.uint8), labels)
    assert positives.count_labels(source, 0.0).tolist() == [200] * 3
    in_files = dataclasses.replace(source, arrays=None)
    assert positives.count_labels(in_files, 60.0).tolist() == [200] * 3
    assert positives.count_labels(in_files, 0.0).sum() == 256


# ---- Memory ------------------------------------------------------------------


def _saved_bytes(encoder, images, side):
    """Bytes that TensorFlow passes from the forward to the backward pass."""
    forward = tf.function(lambda x: encoder(x, training=True))
    spec = tf.TensorSpec([images, side, side, 3])
    concrete = forward.get_concrete_function(spec)
    _, backward = concrete._delayed_rewrite_functions.forward_backward()
    saved = {}
    for tensor in backward.captured_inputs:
        while tensor.op.type in ("Identity", "IdentityN", "StopGradient"):
            tensor = tensor.op.inputs[tensor.value_index]
        sources = [tensor.op, *(x.op for x in tensor.op.inputs)]
        if any(op.type == "ReadVariableOp" for op in sources[:2]):
            continue
        # Shapes have no static shape; the input images are counted elsewhere.
        if (
            tensor.shape.is_fully_defined()
            and tensor.dtype != tf.resource
            and tensor.op.type != "Placeholder"
        ):
            saved[tensor.op.name, tensor.value_index] = tensor
    return sum(x.shape.num_elements() * x.dtype.size for x in saved.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side", "stem", "precision"),
    [
        ("resnet18", 32, "cifar", "mixed_bfloat16"),
        ("resnet10", 96, "imagenet", "float32"),
        ("resnet50", 16, "cifar", "float32"),
    ],
)
def test_predicted_activations_equal_what_the_gradient_saves(
    name, side, stem, precision
):
    with networks.precision(precision):
        encoder = encoders.build(
            name, width=0.25, stem=stem, image_shape=(side, side, 3)
        )
    tensors = memory.saved_tensors(encoder)
    predicted = 4 * sum(
        int(np.prod(x.shape[1:])) * x.dtype.size for x in tensors
    )
    assert predicted == pytest.approx(_saved_bytes(encoder, 4, side), rel=0.1)


@small.encoder()
def test_variables_are_counted_exactly():
    prepared = train.prepare(_options(loss="moco", queue_size=64))
    run = prepared.options
    model, _ = prepared.build()
    predicted = memory.predict(model, run, 2)

    def nbytes(*owners):
        return sum(v.numpy().nbytes for x in owners for v in x.variables)

    networks = (model.encoder, model.projection_head, model.probe)
    assert predicted.parameters == nbytes(*networks, model.key_branch)
    assert predicted.optimizer == nbytes(model.optimizer, model.probe_optimizer)
    trainable = [v for x in networks for v in x.trainable_variables]
    assert predicted.gradients == sum(v.numpy().nbytes for v in trainable)
    # One of the two views of 32 images is encoded with a gradient.
    assert predicted.views == 32 * 2 * 8 * 8 * 3 * 4
    assert memory.similarity_block(run, 2) == (32, 64 + 64)
    chunked = prepared.with_options(grad_cache_chunks=4)
    model, _ = chunked.build()
    chunked = memory.predict(model, chunked.options, 2)
    assert chunked.activations * 4 == predicted.activations


# In a process of its own, because a child's ru_maxrss begins with its parent's.
_PEAK = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "tf_contrastive", *sys.argv[1:]],
               check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_peak_memory_of_a_run_is_predicted_within_a_fifth(tmp_path):
    words = [
        "--dataset=digits",
        "--split=train[:256]",
        "--loss=supcon",
        "--encoder=resnet10",
        "--width=0.5",
        "--image_size=32",
        "--batch_size=128",
        "--epochs=2",
        f"--workdir={tmp_path}",
    ]
    peaks = {}
    for command in ("doctor", "pretrain"):
        peak = subprocess.run(
            [sys.executable, "-c", _PEAK, command, *words],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        peaks[command] = int(peak.stdout) / 2**10
    report = json.loads((tmp_path / "doctor.json").read_text())
    predicted = report["memory"]["process_mib"]
    assert predicted == pytest.approx(peaks["pretrain"], rel=0.2)
    assert report["memory_per_replica"]["total_mib"] > 0.3 * predicted


def test_a_step_is_extrapolated_by_the_cost_of_an_image():
    assert speed.extrapolate((4, 1.0), (4, 1.0), 16) == 4.0
    # 0.4 s a step and 0.1 s an image.
    assert speed.extrapolate((4, 0.8), (8, 1.2), 16) == pytest.approx(2.0)
    # An image has a cost even if noise hides it.
    assert speed.extrapolate((4, 1.2), (8, 1.0), 16) == pytest.approx(1.5)


# ---- Warnings ----------------------------------------------------------------


# (check, options, facts, what the warning tells to do)
_BAD = [
    ("stem", {"stem": "imagenet"}, {}, "stem=cifar"),
    ("stem", {"image_size": 224, "blur": True}, {}, "stem=imagenet"),
    (
        "augmentation_strength",
        {"color_jitter_strength": 1.0, "blur": True},
        {},
        "color_jitter_strength=0.5 and blur=False",
    ),
    ("flip", {"dataset": "mnist"}, {}, "flip=False"),
    (
        "imbalance",
        {"loss": "supcon"},
        {"class_sizes": np.array([200, 19, 300])},
        "sampler=class_balanced",
    ),
    ("memory", {}, {"available_memory": 2**30}, "grad_cache_chunks=2"),
    # Not what is set already.
    (
        "memory",
        {"grad_cache_chunks": 2},
        {"available_memory": 2**30},
        "grad_cache_chunks=4",
    ),
    ("slow_input", {}, {"input_speed": 250.0}, "cache=memory"),
    (
        "slow_input",
        {"cache": "memory", "augment_on": "device"},
        {"input_speed": 250.0},
        ": use `data_service`",
    ),
    (
        "encoder",
        {"image_size": 224, "stem": "imagenet"},
        {"half_speed": 1.0, "step_speed": 10.0},
        "encoder=resnet10, width=0.5, image_size=64",
    ),
    ("encoder", {}, {"half_speed": 1.0, "step_speed": None}, "resnet10"),
    (
        "positives",
        {"loss": "supcon", "views": 1, "batch_size": 8},
        {},
        "views=2",
    ),
    (
        "positives",
        {"loss": "supcon", "batch_size": 8},
        {},
        "sampler=class_balanced",
    ),
    (
        "single_example_classes",
        {"loss": "supcon", "views": 1},
        {"expected": positives.Expected(9, 99, 9, 0.01, 3, 100)},
        "views=2",
    ),
    ("negatives", {"batch_size": 16}, {}, "loss=moco"),
    (
        "negatives",
        {"loss": "supcon"},
        {"expected": positives.Expected(511, 0, 255, 0, 0, 50_000)},
        "`loss`",
    ),
    (
        "queue_size",
        {"loss": "moco", "queue_size": 65_536},
        {},
        "queue_size=25000",
    ),
    ("temperature", {"temperature": 0.01}, {}, "0.05 to 0.5"),
    ("temperature", {"temperature": 5.0}, {}, "0.05 to 0.5"),
    ("loss_normalize", {"loss_normalize": False}, {}, "loss_normalize=True"),
    ("learning_rate", {"optimizer": "adamw"}, {}, "lower `learning_rate`"),
    (
        "learning_rate",
        {"learning_rate": 0.3},
        {"peak_learning_rate": 0.001},
        "learning_rate=90, whose peak is 0.3",
    ),
    (
        "warmup",
        {"batch_size": 4096, "warmup_epochs": 0.0},
        {},
        "warmup_epochs=10",
    ),
    ("batch_norm", {"grad_cache_chunks": 64}, {}, "fewer `grad_cache_chunks`"),
    ("replica_batch", {}, {"replicas": 128}, "larger `batch_size`"),
    (
        "dropped_images",
        {},
        {"info": doctor_facts.info(300)},
        "smaller `batch_size`",
    ),
    ("few_steps", {"epochs": 1}, {"steps_per_epoch": 9}, "more `epochs`"),
    ("probe", {"probe": False}, {}, "probe=True"),
    ("precision", {}, {"half_speed": 1.5}, "precision=mixed_bfloat16"),
    (
        "precision",
        {"precision": "mixed_bfloat16"},
        {"half_speed": 0.5},
        "precision=float32",
    ),
    (
        "checkpoint_interval",
        {},
        {"step_speed": 1.0},
        "`checkpoint_every_steps`",
    ),
]


@pytest.mark.parametrize(("name", "options", "facts", "remedy"), _BAD)
def test_a_bad_combination_gets_one_line(name, options, facts, remedy):
    warning = advice.warnings(doctor_facts.facts(options, **facts))[name]
    assert remedy in warning and "\n" not in warning


@pytest.mark.parametrize(
    "options",
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
def test_a_good_run_gets_no_warning(options):
    assert advice.warnings(doctor_facts.facts(options)) == {}


def test_hours_follow_the_slower_of_input_and_step():
    images = 100 * (50_000 // 256) * 256
    assert doctor_facts.facts().hours == pytest.approx(images / 1000 / 3600)
    slow = doctor_facts.facts(input_speed=100.0)
    assert slow.hours == pytest.approx(images / 100 / 3600)
    assert doctor_facts.facts(step_speed=None).hours is None
