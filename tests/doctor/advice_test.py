"""Combinations of options that the doctor warns of.

`limits_test` has those that a number decides.
"""

import doctor_facts
import pytest

from tf_contrastive.base import errors
from tf_contrastive.doctor import advice

_VIT = {"encoder": "vit_ti4", "stem": "auto", "optimizer": "adamw"}


def _bad(name, remedy, facts=None, **options):
    """A check, what its warning tells to do, facts and options."""
    return name, remedy, facts or {}, options


_SLOW = {"process_memory": 1, "step_speed": 10.0}
_BAD = [
    _bad("optimizer", "optimizer=adamw", **(_VIT | {"optimizer": "lars"})),
    # A warm-up is within the run.
    _bad(
        "warmup",
        "warmup_epochs=0.5",
        {"peak_learning_rate": 0.001},
        **(_VIT | {"warmup_epochs": 0.0, "epochs": 5}),
    ),
    _bad("flip", "flip=False", dataset="mnist"),
    _bad("slow_input", "cache=memory", {"input_speed": 250.0}),
    _bad(
        "slow_input",
        "more CPU cores",
        {"input_speed": 250.0},
        cache="memory",
        augment_on="device",
    ),
    _bad("encoder", "image_size=64", _SLOW, image_size=224, stem="imagenet"),
    _bad("encoder", "resnet10", {"process_memory": 1, "step_speed": None}),
    _bad("positives", "batch_size", {"positives": 2.9}, loss="supcon"),
    _bad("negatives", "loss=moco", batch_size=16),
    _bad("queue_size", "queue_size=25000", loss="moco", queue_size=65_536),
    # A queue holds a batch at least.
    _bad(
        "queue_size",
        "at most queue_size=1024",
        {"info": doctor_facts.info(1437)},
        loss="moco",
        batch_size=1024,
    ),
    _bad("loss_normalize", "loss_normalize=True", loss_normalize=False),
    _bad(
        "learning_rate",
        "learning_rate=90, whose peak is 0.3",
        {"peak_learning_rate": 0.001},
        learning_rate=0.3,
    ),
]


@pytest.mark.parametrize(("name", "remedy", "facts", "options"), _BAD)
def test_a_bad_combination_gets_one_line(name, remedy, facts, options):
    found = advice.warnings(doctor_facts.facts(options, **facts))
    warning = errors.plain(found[name])
    assert remedy in warning and "\n" not in warning


@pytest.mark.parametrize(
    ("name", "remedy", "facts", "options"),
    [
        _bad("encoder", "width", _SLOW, encoder="resnet10", width=0.25),
        _bad("encoder", "width", _SLOW, encoder="convnet", stem="auto"),
        _bad(
            "memory", "chunks", {"available_memory": 1}, grad_cache_chunks=256
        ),
        _bad("memory", "chunks", {"available_memory": 1, "replicas": 256}),
        _bad("negatives", "moco", batch_size=16, views=3),
        _bad(
            "positives",
            "sampler",
            {"positives": 1.0},
            loss="supcon",
            sampler="class_balanced",
        ),
        _bad(
            "positives",
            "sampler",
            {"positives": 0.1},
            loss="cross_entropy",
            mixup_alpha=0.2,
        ),
    ],
)
def test_what_a_run_has_or_refuses_is_not_advised(name, remedy, facts, options):
    found = advice.warnings(doctor_facts.facts(options, **facts))
    assert remedy not in errors.plain(found[name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "supcon", "temperature": 0.07},
        {"loss": "cross_entropy", "augmentation": "autoaugment"},
        {"loss": "moco", "queue_size": 8192},
        {"loss": "decoupled_ntxent"},
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
    for speed, slower in ((2000.0, 1000), (100.0, 100), (None, 1000)):
        found = doctor_facts.facts(input_speed=speed).hours
        assert found == pytest.approx(hours / slower)
    assert doctor_facts.facts(step_speed=None).hours is None
