"""The flagfiles: what they say, what the papers say, and two steps of each."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    errors,
    flags,
    schedules,
    train,
)
from tf_contrastive.commands import evaluate as evaluating
from tf_contrastive.commands import pretrain as pretraining
from tf_contrastive.config import fields
from tf_contrastive.config.data import Data
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.smoke import SMOKE_STEPS, smoke, substitute

pytestmark = pytest.mark.usefixtures("small_encoder")

_ROOT = Path(__file__).resolve().parents[1]
_CONFIGS = _ROOT / "configs"
_NAMES = sorted(path.stem for path in _CONFIGS.glob("*.flags"))
_COMMANDS = {"pretrain": Pretrain, "evaluate": Evaluate}


def _command(name):
    """The words of a flagfile's documented command."""
    text = (_CONFIGS / f"{name}.flags").read_text()
    line = re.search(r"^# Command: +(.*)$", text, re.MULTILINE)[1]
    python, dash, module, *words = shlex.split(line)
    assert [python, dash, module] == ["python", "-m", "tf_contrastive"]
    return words


def _parse(name, *more):
    """A flagfile as its command reads it."""
    command = _COMMANDS[_command(name)[0]]
    path = _CONFIGS / f"{name}.flags"
    parsed = flags.parse(command, [f"--flagfile={path}", "--workdir=w", *more])
    parsed.validate()
    return parsed


_PRETRAIN = [name for name in _NAMES if _command(name)[0] == "pretrain"]


@pytest.mark.parametrize("name", _NAMES)
def test_the_documented_command_parses(name, monkeypatch):
    monkeypatch.chdir(_ROOT)
    command, *words = _command(name)
    assert f"--flagfile=configs/{name}.flags" in words
    flags.parse(_COMMANDS[command], words).validate()


# ---- The papers' own numbers -------------------------------------------------

# Table or figure (R, S, I, N: SimCLR, SupCon, Intriguing Properties, SINCERE),
# encoder, batch (images), epochs, optimizer, learning
# rate at its peak, warm-up in epochs, weight decay, loss, temperature,
# augmentation.
_PAPERS = """
R1 simclr_imagenet                 resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 simclr
R2 simclr_imagenet_1000            resnet50  4096 1000 lars 4.8   10 1e-6 ntxent 0.1 simclr
R2 simclr_imagenet_2x              resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 simclr
R2 simclr_imagenet_2x_1000         resnet50  4096 1000 lars 4.8   10 1e-6 ntxent 0.1 simclr
R2 simclr_imagenet_4x              resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 simclr
R2 simclr_imagenet_4x_1000         resnet50  4096 1000 lars 4.8   10 1e-6 ntxent 0.1 simclr
R3 simclr_imagenet_linear_scaling  resnet50  256  100  lars 0.3   10 1e-6 ntxent 0.1 simclr
R4 simclr_imagenet_sqrt_scaling    resnet50  256  100  lars 1.2   10 1e-6 ntxent 0.1 simclr
R5 simclr_imagenet_color_strength  resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 simclr
R5 simclr_imagenet_autoaugment     resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 autoaugment
R5 simclr_imagenet_ablation        resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 ablation:color_jitter
R5 cross_entropy_imagenet_color_strength resnet50 4096 90 sgd 1.6 10 1e-4 cross_entropy - simclr
R6 ntxent_imagenet_one_view        resnet50  4096 100  lars 4.8   10 1e-6 ntxent 0.1 simclr
R6 nt_logistic_imagenet            resnet50  4096 100  lars 4.8   10 1e-6 nt_logistic 0.2 simclr
R6 nt_logistic_imagenet_semi_hard  resnet50  4096 100  lars 4.8   10 1e-6 nt_logistic 0.2 simclr
R6 margin_imagenet                 resnet50  4096 100  lars 4.8   10 1e-6 margin - simclr
R6 margin_imagenet_semi_hard       resnet50  4096 100  lars 4.8   10 1e-6 margin - simclr
R7 simclr_cifar10                  resnet50  1024 1000 lars 4.0   10 1e-4 ntxent 0.5 simclr
R8 simclr_imagenet_broader         resnet50  4096 1000 lars 4.8   10 1e-6 ntxent 0.1 broader
R8 simclr_imagenet_broader_2x      resnet50  4096 1000 lars 4.8   10 1e-6 ntxent 0.1 broader
R8 simclr_imagenet_broader_4x      resnet50  4096 1000 lars 4.8   10 1e-6 ntxent 0.1 broader
R9 cross_entropy_imagenet_crop     resnet50  4096 90   sgd  1.6   10 1e-4 cross_entropy - crop
R9 cross_entropy_imagenet_color    resnet50  4096 90   sgd  1.6   10 1e-4 cross_entropy - simclr
R9 cross_entropy_imagenet_color_blur resnet50 4096 90  sgd  1.6   10 1e-4 cross_entropy - simclr
R9 cross_entropy_imagenet_4x_1000  resnet50  4096 1000 sgd  1.6   10 1e-4 cross_entropy - simclr
S1 supcon_imagenet                 resnet50  2048 350  lars 3.2   10 1e-3 supcon 0.1 autoaugment
S1 supcon_imagenet_6144            resnet50  6144 350  lars 9.6   10 1e-3 supcon 0.1 autoaugment
S1 supcon_imagenet_resnet101       resnet101 6144 350  lars 9.6   10 1e-3 supcon 0.1 autoaugment
S2 supcon_imagenet_resnet200       resnet200 4096 700  lars 3.2   10 1e-4 supcon 0.1 stacked_randaugment
S3 supcon_imagenet_positives_cap   resnet50  6144 350  lars 9.6   10 1e-3 supcon 0.1 autoaugment
S4 cross_entropy_imagenet          resnet50  6144 200  sgd  2.4   10 1e-4 cross_entropy - autoaugment
S4 cross_entropy_imagenet_two_stage resnet50 6144 200  sgd  2.4   10 1e-4 cross_entropy - autoaugment
S4 cross_entropy_imagenet_resnet200 resnet200 4096 700 sgd  1.6   10 1e-4 cross_entropy - stacked_randaugment
S5 npairs_imagenet                 resnet50  6144 350  lars 9.6   10 1e-3 npairs 1.0 autoaugment
I1 ntxent_cifar10                  resnet50  128  800  lars .848528 10 1e-6 ntxent 0.2 simclr
I1 decoupled_ntxent_cifar10        resnet50  128  800  lars .848528 10 1e-6 decoupled_ntxent 1.0 simclr
I1 swd_normal_cifar10              resnet50  128  800  lars .848528 10 1e-6 swd_normal - simclr
I1 swd_hypercube_cifar10           resnet50  128  800  lars .848528 10 1e-6 swd_hypercube - simclr
I1 swd_hypersphere_cifar10         resnet50  128  800  lars .848528 10 1e-6 swd_hypersphere - simclr
I2 ntxent_imagenet                 resnet50  1024 800  lars 2.4   10 1e-6 ntxent 0.2 simclr
I2 decoupled_ntxent_imagenet       resnet50  1024 800  lars 2.4   10 1e-6 decoupled_ntxent 1.0 simclr
I2 swd_normal_imagenet             resnet50  1024 800  lars 2.4   10 1e-6 swd_normal - simclr
I2 swd_hypercube_imagenet          resnet50  1024 800  lars 2.4   10 1e-6 swd_hypercube - simclr
I2 swd_hypersphere_imagenet        resnet50  1024 800  lars 2.4   10 1e-6 swd_hypersphere - simclr
I3 simclr_multidigits              resnet18  1024 100  lars 2.4   10 1e-6 ntxent 0.2 crop
I3 cross_entropy_multidigits       resnet18  1024 100  sgd  0.4   10 1e-4 cross_entropy - crop
I4 simclr_multidigits_size         resnet18  1024 100  lars 2.4   10 1e-6 ntxent 0.2 crop
I5 simclr_digit_on_imagenet        resnet50  1024 100  lars 2.4   10 1e-6 ntxent 0.2 simclr
I5 cross_entropy_digit_on_imagenet resnet50  1024 100  sgd  0.4   10 1e-4 cross_entropy - simclr
I6 simclr_cifar10_randbit          resnet18  128  400  lars .848528 10 1e-6 ntxent 0.2 simclr
I6 moco_cifar10_randbit            resnet18  128  400  lars .848528 10 1e-6 moco 0.2 simclr
I6 simclr_mnist_randbit            resnet18  1000 10   adam 0.001 0  1e-4 ntxent 0.1 crop
I6 simclr_imagenet_randbit         resnet50  1024 100  lars 2.4   10 1e-6 ntxent 0.2 simclr
I7 decoupled_ntxent_cifar10_grid   resnet18  128  200  lars .848528 10 1e-6 decoupled_ntxent 1.0 simclr
I8 align_uniform_kbits             resnet18  512  400  lars 1.697056 10 1e-6 align_uniform 0.2 none
I8 swd_hypersphere_kbits           resnet18  512  400  lars 1.697056 10 1e-6 swd_hypersphere - none
N1 sincere_cifar2                  resnet50  512  800  sgd  0.65  10 1e-4 sincere 0.1 simclr
N1 sincere_cifar10                 resnet50  512  800  sgd  0.65  10 1e-4 sincere 0.1 simclr
N1 sincere_cifar100                resnet50  512  800  sgd  0.65  10 1e-4 sincere 0.05 simclr
N1 sincere_imagenet100             resnet50  512  800  sgd  0.65  10 1e-4 sincere 0.05 simclr
N1 supcon_cifar2                   resnet50  512  800  sgd  0.5   10 1e-4 supcon 0.1 simclr
N1 supcon_cifar10                  resnet50  512  800  sgd  0.35  10 1e-4 supcon 0.05 simclr
N1 supcon_cifar100                 resnet50  512  800  sgd  0.65  10 1e-4 supcon 0.1 simclr
N1 supcon_imagenet100              resnet50  512  800  sgd  0.5   10 1e-4 supcon 0.05 simclr
N1 eps_supinfonce_cifar2           resnet50  512  800  sgd  0.5   10 1e-4 eps_supinfonce 0.1 simclr
N1 eps_supinfonce_cifar10          resnet50  512  800  sgd  0.5   10 1e-4 eps_supinfonce 0.1 simclr
N1 eps_supinfonce_cifar100         resnet50  512  800  sgd  0.5   10 1e-4 eps_supinfonce 0.1 simclr
N1 eps_supinfonce_imagenet100      resnet50  512  800  sgd  0.5   10 1e-4 eps_supinfonce 0.1 simclr
"""  # noqa: E501
_ROWS = {row[1]: row for row in map(str.split, _PAPERS.strip().splitlines())}

# What makes one row differ from another beyond that.
_WARM = {"learning_rate_floor": 0.001, "momentum_style": "pytorch"}
_SECOND_STAGE = {
    "linear_epochs": 350,
    "linear_optimizer": "rmsprop",
    "linear_learning_rate": 0.05,
    "linear_schedule": "exponential",
    "linear_decay_rate": 0.97,
    "linear_decay_epochs": 0.5,
}
_SWD = {"loss_weight": 5.0, "loss_normalization": "mean"}
_MORE = {
    "simclr_imagenet": {
        "dataset": "imagenet2012",
        "image_size": 224,
        "views": 2,
        "width": 1.0,
        "min_crop_area": 0.08,
        "color_jitter_strength": 1.0,
        "blur": True,
        "schedule": "cosine",
        "projection": "mlp",
        "projection_layers": 2,
        "projection_output": 128,
    },
    "simclr_imagenet_2x": {"width": 2.0},
    "simclr_imagenet_2x_1000": {"width": 2.0},
    "simclr_imagenet_4x": {"width": 4.0},
    "simclr_imagenet_4x_1000": {"width": 4.0},
    "simclr_imagenet_broader": {"width": 1.0},
    "simclr_imagenet_broader_2x": {"width": 2.0},
    "simclr_imagenet_broader_4x": {"width": 4.0},
    "simclr_imagenet_color_strength": {"blur": False},
    "simclr_cifar10": {
        "stem": "cifar",
        "color_jitter_strength": 0.5,
        "blur": False,
    },
    "ntxent_imagenet_one_view": {"negatives": "other_view"},
    "nt_logistic_imagenet": {"negatives": "other_view", "mining": None},
    "nt_logistic_imagenet_semi_hard": {"mining": "semi_hard"},
    "margin_imagenet": {"margin": 0.4, "negatives": "other_view"},
    "margin_imagenet_semi_hard": {"margin": 0.4, "mining": "semi_hard"},
    "cross_entropy_imagenet_crop": {"views": 1, "nesterov": True},
    "cross_entropy_imagenet_color": {"blur": False},
    "cross_entropy_imagenet_color_blur": {"blur": True},
    "cross_entropy_imagenet_4x_1000": {"width": 4.0, "blur": True},
    "supcon_imagenet": {**_SECOND_STAGE, "linear_augmentation": "autoaugment"},
    "supcon_imagenet_resnet200": {
        **_SECOND_STAGE,
        "linear_augmentation": "stacked_randaugment",
        "stacked_randaugment_order": "paper",
    },
    "supcon_imagenet_positives_cap": {
        "positives_cap": 3,
        "keep_dropped_positives": None,
    },
    "cross_entropy_imagenet": {
        "nesterov": True,
        "label_smoothing": 0.05,
        "linear_epochs": 0,
    },
    "cross_entropy_imagenet_two_stage": _SECOND_STAGE,
    "npairs_imagenet": {"views": 1},
    "ntxent_cifar10": {"projection_output": 64, "stem": "cifar"},
    "decoupled_ntxent_cifar10": {"loss_weight": 0.1},
    "decoupled_ntxent_imagenet": {"loss_weight": 0.1, "projection_output": 128},
    "swd_normal_cifar10": {**_SWD, "loss_scale": None},
    "swd_hypercube_imagenet": {**_SWD, "loss_scale": None},
    "swd_hypersphere_cifar10": {**_SWD, "loss_scale": 1000.0},
    "swd_hypersphere_imagenet": {**_SWD, "loss_scale": 1000.0},
    "simclr_multidigits": {"flip": False, "image_size": 112},
    "simclr_mnist_randbit": {
        "schedule": "linear",
        "negatives": "other_view",
        "min_crop_area": 0.5,
        "projection_hidden": 256,
        "projection_output": 64,
    },
    "moco_cifar10_randbit": {"queue_size": 65536, "key_momentum": 0.999},
    "align_uniform_kbits": {"views": 2, "projection_output": 64},
    "sincere_cifar10": {
        **_WARM,
        "min_crop_area": 0.2,
        "color_jitter_strength": 0.5,
        "blur": False,
        "image_size": 32,
        "stem": "cifar",
        "standardize": "0.4914,0.4822,0.4465/0.2023,0.1994,0.2010",
    },
    "sincere_cifar100": {
        **_WARM,
        "standardize": "0.5071,0.4867,0.4408/0.2675,0.2565,0.2761",
    },
    "sincere_cifar2": {
        **_WARM,
        "standardize": "0.4977,0.4605,0.4160/0.2538,0.2481,0.2535",
    },
    "sincere_imagenet100": {**_WARM, "image_size": 32, "stem": "cifar"},
    "eps_supinfonce_cifar10": {"epsilon": 0.25, "epsilon_in": "logit"},
}


def _values(parsed):
    return {field.name: value for _, field, value in fields.fields(parsed)}


@pytest.mark.parametrize("name", _ROWS)
def test_a_flagfile_has_the_papers_numbers(name):
    _, _, encoder, batch, epochs, optimizer, rate, *rest = _ROWS[name]
    warmup, decay, loss, temperature, augmentation = rest
    parsed = _parse(name)
    found = _values(parsed)
    assert (found["encoder"], found["optimizer"], found["loss"]) == (
        encoder,
        optimizer,
        loss,
    )
    assert found["augmentation"] == augmentation
    assert (found["batch_size"], found["epochs"]) == (int(batch), int(epochs))
    peak = schedules.peak(
        parsed.schedule.learning_rate,
        parsed.schedule.batch_size,
        parsed.schedule.learning_rate_scaling,
    )
    assert peak == pytest.approx(float(rate), rel=1e-6)
    assert found["warmup_epochs"] == float(warmup)
    assert found["weight_decay"] == float(decay)
    expected = None if temperature == "-" else float(temperature)
    assert found["temperature"] == expected
    for option, value in _MORE.get(name, {}).items():
        assert found[option] == value, option


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "linear_imagenet",
            {
                "linear_optimizer": "sgd",
                "linear_nesterov": True,
                "linear_learning_rate": 0.1,
                "linear_weight_decay": 0.0,
                "linear_batch_size": 4096,
                "linear_epochs": 90,
                "linear_augmentation": "crop",
            },
        ),
        (
            "finetune_imagenet",
            {
                "finetune_fractions": "0.01,0.1,1",
                "finetune_epochs": "60,30,30",
                "finetune_batch_size": 4096,
                "finetune_learning_rates": "0.05",
                "finetune_augmentation": "crop",
            },
        ),
        (
            "transfer_simclr",
            {
                "transfer_suite": "simclr",
                "transfer_steps": 20000,
                "transfer_scratch_steps": 40000,
                "transfer_batch_size": 256,
                "logistic_penalties": 45,
            },
        ),
        (
            "transfer_sincere",
            {
                "linear_epochs": 100,
                "linear_batch_size": 128,
                "linear_nesterov": False,
                "linear_momentum": 0.9,
                "linear_weight_decay": 1e-4,
                "linear_augmentation": "crop",
                "validation_fraction": 0.1,
            },
        ),
    ],
)
def test_a_protocols_flagfile_has_the_papers_numbers(name, expected):
    found = _values(_parse(name))
    assert {option: found[option] for option in expected} == expected


def test_the_transfer_grids_are_the_papers():
    hyperparameters = _parse("transfer_simclr").transfer.hyperparameters()
    for grid, rates, decays in (
        ("grid", (-4, -1, 7), [0, *np.logspace(-6, -3, 7)]),
        ("scratch_grid", (-3, 0, 7), np.logspace(-5, -1.5, 8)),
    ):
        # The flagfile has three digits.
        found = hyperparameters[grid]
        np.testing.assert_allclose(
            found["learning_rates"], np.logspace(*rates), rtol=2e-3
        )
        np.testing.assert_allclose(found["weight_decays"], decays, rtol=2e-3)


# ---- What --smoke makes of a run ---------------------------------------------

# All that may differ between a recipe and what --smoke trains of it.
_MAY_SHRINK = {
    *("dataset", "split", "test_split", "validation_fraction", "data_service"),
    *("image_size", "encoder", "width", "stem", "init_from"),
    *("queue_size", "online_knn_size", "grad_cache_chunks"),
    *("epochs", "batch_size", "warmup_epochs", "boundaries"),
    *("linear_epochs", "linear_batch_size", "linear_warmup_epochs"),
    *("linear_boundaries", "strategy", "tpu", "cross_device_ops"),
    *("steps_per_execution", "checkpoint_every_steps", "log_every_steps"),
    *("keep_checkpoint_every_hours", "histograms_every_epochs"),
    *("projector_examples", "profile_steps"),
}


def _shrunk(run, examples=1437):
    """What `--smoke` makes of a run whose dataset is not here."""
    dataset, side, _ = substitute(run.data.dataset)
    return smoke(
        run,
        dataset=dataset,
        side=side,
        examples=examples,
        test_examples=360,
    )


def _run(**options):
    return fields.replace(Pretrain(), workdir="w", **options)


@pytest.mark.parametrize("name", _PRETRAIN)
def test_smoke_keeps_the_recipe(name):
    run = _parse(name)
    tried = _shrunk(run)
    tried.validate()
    before, after = _values(run), _values(tried)
    changed = {k for k in before if before[k] != after[k]}
    # Defaults by the size of an image become explicit: the recipe's own.
    ours = {"flip", "color_jitter_strength", "blur"}
    made = {k for k in changed & ours if before[k] is None}
    assert changed - made <= _MAY_SHRINK
    assert after["batch_size"] <= 16
    assert bool(after["warmup_epochs"]) == (before["warmup_epochs"] != 0)
    assert bool(after["linear_epochs"]) == bool(before["linear_epochs"])
    # Written and read, it is the same run, and one of its own.
    written = flags.write(tried)
    assert flags.read(Pretrain, written, "w") == tried
    assert "--nosmoke" in written


def test_smoke_keeps_views_and_stem_of_the_image_size():
    large = _shrunk(_run(dataset="imagenet2012"))
    assert large.views.image_size == 32
    assert (large.views.blur, large.views.color_jitter_strength) == (True, 1.0)
    assert large.encoder.stem == "imagenet"
    small = _shrunk(_run(dataset="cifar10"))
    assert small.views.image_size == 16
    assert (small.views.blur, small.views.color_jitter_strength) == (False, 0.5)
    assert small.encoder.stem == "cifar"
    assert _shrunk(_run(dataset="mnist")).views.flip is False


@pytest.mark.parametrize(
    ("options", "examples"),
    [
        ({"batch_size": 512}, 1437),
        ({"validation_fraction": 0.01}, 1437),
        ({}, 20),
        (
            {
                "virtual_devices": 4,
                "grad_cache_chunks": 8,
                "loss": "cross_entropy",
                "mixup_alpha": 0.2,
                "batch_size": 64,
            },
            1437,
        ),
    ],
)
def test_smoke_takes_two_steps(options, examples):
    tried = _shrunk(_run(**options), examples=examples)
    tried.validate()
    taken = int(re.search(r":(\d+)\]", tried.data.split)[1])
    assert taken <= examples
    cut = round(taken * tried.data.validation_fraction)
    batch = tried.schedule.batch_size
    assert (taken - cut) // batch == SMOKE_STEPS
    assert cut == 0 or cut >= batch
    chunks = tried.loss.grad_cache_chunks
    assert batch % (2 * chunks * max(tried.runtime.virtual_devices, 1)) == 0


def test_smoke_keeps_the_form_of_a_schedule():
    tried = _shrunk(
        _run(
            schedule="piecewise",
            epochs=100,
            warmup_epochs=10.0,
            linear_epochs=90,
            linear_schedule="piecewise",
            linear_boundaries="45,60",
        )
    )
    tried.validate()
    # 30, 60 and 90 of the epochs from 10 to 100, on those from 0.5 to 1.
    np.testing.assert_allclose(
        fields.read_numbers(tried.schedule.boundaries),
        [0.5 + 0.5 * (b - 10) / 90 for b in (30, 60, 90)],
        atol=1e-6,
    )
    np.testing.assert_allclose(
        fields.read_numbers(tried.linear.schedule.boundaries),
        [0.5, 2 / 3],
        atol=1e-6,
    )
    assert tried.linear.schedule.warmup_epochs == 0


def test_smoke_runs_on_one_device():
    tried = _shrunk(
        _run(
            strategy="tpu",
            tpu="somewhere",
            init_from="runs/absent",
            data_service="grpc://far:5000",
            encoder="keras:VGG16",
        )
    )
    tried.validate()
    assert (tried.runtime.strategy, tried.runtime.tpu) == ("default", "local")
    assert tried.encoder.encoder == "resnet10"
    assert not tried.encoder.init_from and not tried.data.data_service


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("imagenet2012:5.1.0", "digits/1000"),
        ("cifar2", "digits/2"),
        ("folder:/nowhere", "digits/10"),
        ("randbit:bits=3,of=cifar100", "randbit:bits=3,of=digits/100"),
    ],
)
def test_the_substitute_of_a_dataset_has_as_many_classes(dataset, expected):
    name, _, line = substitute(dataset)
    assert name == expected
    assert dataset in line and expected in line


def test_digits_of_other_numbers_of_classes():
    plain, _ = datasets.load("digits", "train")
    digit = np.array([x["label"] for x in plain.as_numpy_iterator()])
    for classes, expected in ((100, digit * 10), (3, digit % 3)):
        data, info = datasets.load(f"digits/{classes}", "train")
        found = [x["label"] for x in data.as_numpy_iterator()]
        np.testing.assert_array_equal(found, expected)
        assert info.num_classes == len(info.label_names) == classes
    with pytest.raises(errors.UserError, match="digits/C for C classes"):
        datasets.load("digits/many")


# ---- Two steps of each -------------------------------------------------------


def _train(name, workdir, *more):
    """Tries a flagfile out, as the command does."""
    run = _parse(name, "--smoke", f"--workdir={workdir}", *more)
    tf.keras.backend.clear_session()
    assert pretraining.run(run) == 0
    return checkpoints.load_run(str(workdir)), json.loads(
        (workdir / "pretrain.json").read_text()
    )


def _check(name, workdir):
    found, told = _train(name, workdir)
    assert told["steps"] == found.step == SMOKE_STEPS
    assert np.isfinite(told["loss"])
    own = _parse(name)
    assert found.config.loss.loss == told["loss_function"] == own.loss.loss
    assert ("linear_top1" in told) == bool(own.linear.schedule.epochs)
    return found


def test_a_flagfile_trains_for_two_steps(tmp_path):
    _check("moco_cifar10_randbit", tmp_path)


def _distinct():
    """Flagfiles of which --smoke makes different runs, one of each."""
    first = {}
    for name in _PRETRAIN:
        first.setdefault(flags.write(_shrunk(_parse(name))), name)
    return list(first.values())


class _NoSummaries(tf.keras.callbacks.Callback):
    def histogram_seconds(self):
        return 0.0

    def close(self, *_):
        pass


@pytest.fixture
def untraced(monkeypatch):
    """No graph and no TensorBoard: half the time."""
    monkeypatch.setattr(train, "_summaries", lambda *_: _NoSummaries())
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.slow
@pytest.mark.parametrize("name", _distinct())
def test_every_flagfile_trains_for_two_steps(name, tmp_path, untraced):
    _check(name, tmp_path)


def test_a_smoke_run_logs_its_changes(tmp_path, capsys):
    run = _parse(
        "simclr_imagenet",
        "--smoke",
        "--strategy=tpu",
        "--data_dir=/nowhere",
        f"--workdir={tmp_path}",
    )
    tried = train.shrink(run)
    printed = capsys.readouterr().err
    for text in (
        "digits/1000 replaces imagenet2012",
        "batch_size=4096 -> 16",
        "strategy=tpu -> default",
    ):
        assert text in printed
    assert tried.runtime.workdir == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_smoke_uses_available_data_and_reports_typos(capsys):
    run = _run(dataset="digits", image_size=0, smoke=True)
    tried = train.shrink(run)
    assert tried.data.dataset == "digits"
    assert tried.views.image_size == 8
    assert "replaces" not in capsys.readouterr().err
    with pytest.raises(errors.UserError, match="did you mean 'cifar10'"):
        train.shrink(dataclasses.replace(run, data=Data("cifr10")))


@pytest.mark.slow
def test_a_protocols_flagfile_runs(tmp_path):
    _train("quickstart", tmp_path, "--loss=supcon")
    for name, expected in (
        ("transfer_sincere", {"linear"}),
        ("finetune_imagenet", {"finetune"}),
    ):
        options = _parse(
            name,
            f"--workdir={tmp_path}",
            # Sooner.
            *("--dataset=digits", "--train_split=train[:64]"),
            *("--test_split=test[:32]", "--nountrained"),
            *("--linear_epochs=1", "--linear_batch_size=16"),
            *("--linear_augmentation=none", "--linear_learning_rates=0.1"),
            *("--nofinetune_scratch", "--finetune_fractions=0.5"),
            *("--finetune_epochs=1", "--finetune_batch_size=16"),
        )
        assert evaluating.run(options) == 0
        report = json.loads((tmp_path / "evaluation.json").read_text())
        assert {r["protocol"] for r in report["results"]} == expected


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
