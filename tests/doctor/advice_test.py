"""Combinations of options that the doctor warns of.

`limits_test` has those that a number decides.
"""

import doctor_facts
import pytest

from tf_contrastive.base import errors
from tf_contrastive.doctor import advice, positives

# (check, options, facts, what the warning tells to do)
_VIT = {"encoder": "vit_ti4", "stem": "auto", "optimizer": "adamw"}
_BAD = [
    ("optimizer", {**_VIT, "optimizer": "lars"}, {}, "optimizer=adamw"),
    (
        "warmup",
        {**_VIT, "warmup_epochs": 0.0},
        {"peak_learning_rate": 0.001},
        "with vit_ti4 diverges",
    ),
    ("flip", {"dataset": "mnist"}, {}, "flip=False"),
    ("slow_input", {}, {"input_speed": 250.0}, "cache=memory"),
    # Not what is set already.
    (
        "slow_input",
        {"cache": "memory", "augment_on": "device"},
        {"input_speed": 250.0},
        "more CPU cores",
    ),
    (
        "encoder",
        {"image_size": 224, "stem": "imagenet"},
        {"process_memory": 1, "step_speed": 10.0},
        "encoder=resnet10, width=0.5, image_size=64",
    ),
    ("encoder", {}, {"process_memory": 1, "step_speed": None}, "resnet10"),
    (
        "positives",
        {"loss": "supcon", "views": 1, "batch_size": 8},
        {},
        "views=2",
    ),
    ("negatives", {"batch_size": 16}, {}, "loss=moco"),
    (
        "negatives",
        {"loss": "supcon"},
        {"expected": positives.Expected(511, 0, 255, 0, 50_000)},
        "`loss`",
    ),
    (
        "queue_size",
        {"loss": "moco", "queue_size": 65_536},
        {},
        "queue_size=25000",
    ),
    ("loss_normalize", {"loss_normalize": False}, {}, "loss_normalize=True"),
    (
        "learning_rate",
        {"learning_rate": 0.3},
        {"peak_learning_rate": 0.001},
        "learning_rate=90, whose peak is 0.3",
    ),
]


@pytest.mark.parametrize(("name", "options", "facts", "remedy"), _BAD)
def test_a_bad_combination_gets_one_line(name, options, facts, remedy):
    found = advice.warnings(doctor_facts.facts(options, **facts))
    warning = errors.plain(found[name])
    assert remedy in warning and "\n" not in warning


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "supcon", "temperature": 0.07},
        {"loss": "cross_entropy", "augmentation": "autoaugment"},
        {"loss": "moco", "queue_size": 8192},
        {"loss": "npairs"},
        {"loss": "decoupled_ntxent"},
        {"loss": "swd_normal"},
        {"image_size": 224, "stem": "imagenet", "blur": True},
        {"dataset": "mnist", "flip": False},
        {"batch_size": 4096, "epochs": 1000},
        _VIT,
    ],
    ids=str,
)
def test_a_good_run_gets_no_warning(options):
    rate = 0.002 if "encoder" in options else 0.3
    facts = doctor_facts.facts(options, peak_learning_rate=rate)
    assert advice.warnings(facts) == {}


def test_hours_follow_the_slower_of_input_and_step():
    hours = 100 * (50_000 // 256) * 256 / 3600  # At an image a second.
    for speeds, slower in (({}, 1000), ({"input_speed": 100.0}, 100)):
        found = doctor_facts.facts(**speeds).hours
        assert found == pytest.approx(hours / slower)
    assert doctor_facts.facts(step_speed=None).hours is None
