"""Learning rates against hand-computed points of the papers' recipes."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import schedules
from tf_contrastive.base import errors


def _simclr(**changes):
    """50,000 images, batch 512, 100 epochs: 97 steps each, 970 of warm-up."""
    return schedules.build(
        **{
            "name": "cosine",
            "base_learning_rate": 0.3,
            "batch_size": 512,
            "steps_per_epoch": 97,
            "epochs": 100,
            "warmup_epochs": 10,
            **changes,
        }
    )


# (what, options of `build`, {epoch: learning rate}). An epoch has
# 1,281,167 images (ImageNet), 50,000 (CIFAR-10) or 60,000 (MNIST).
_RECIPES = [
    (
        "SimCLR on CIFAR-10",
        {},
        {0: 0.0, 5: 0.3, 10: 0.6, 50: 0.35209445, 100: 0.0, 120: 0.0},
    ),
    (
        "SimCLR, B.1: square-root scaling",
        {
            "base_learning_rate": 0.075,
            "scaling": "sqrt",
            "batch_size": 8192,
            "steps_per_epoch": 156,
        },
        {5: 3.3941125, 10: 6.788225, 55: 3.3941125},
    ),
    (
        "SINCERE: starts and ends at its floor",
        {
            "base_learning_rate": 0.5,
            "scaling": "none",
            "floor": 0.001,
            "steps_per_epoch": 87,
            "epochs": 800,
        },
        {
            0: 5e-4,
            5: 0.25025,
            10: 0.5,
            200: 0.43203773,
            405: 0.25025,
            800: 5e-4,
        },
    ),
    (
        "SupCon: linear stage, RMSProp, 0.97 every half epoch",
        {
            "name": "exponential",
            "base_learning_rate": 0.05,
            "batch_size": 2048,
            "steps_per_epoch": 625,
            "epochs": 350,
            "warmup_epochs": 0,
            "decay_rate": 0.97,
            "decay_epochs": 0.5,
        },
        {
            0: 0.4,
            312 / 625: 0.4,
            313 / 625: 0.388,
            624 / 625: 0.388,
            1: 0.37636,
            10: 0.21751774,
            350: 2.1992468e-10,
        },
    ),
    (
        "Intriguing properties: RandBit on MNIST, Adam, in a line to 0",
        {
            "name": "linear",
            "base_learning_rate": 0.001,
            "scaling": "none",
            "steps_per_epoch": 60,
            "epochs": 10,
            "warmup_epochs": 0,
        },
        {0: 0.001, 2.5: 0.00075, 5: 0.0005, 10: 0.0, 11: 0.0},
    ),
    (
        "ResNet on ImageNet, in steps, with a warm-up of 5 epochs",
        {
            "name": "piecewise",
            "base_learning_rate": 0.1,
            "batch_size": 256,
            "steps_per_epoch": 5004,
            "epochs": 90,
            "warmup_epochs": 5,
            "decay_epochs": (30, 60, 80),
        },
        {
            2.5: 0.05,
            5: 0.1,
            30 - 1 / 5004: 0.1,
            30: 0.01,
            60: 0.001,
            80: 0.0001,
            90: 0.0001,
        },
    ),
]


@pytest.mark.parametrize("recipe", _RECIPES, ids=lambda recipe: recipe[0])
def test_recipes_of_the_papers(recipe):
    _, options, rates = recipe
    schedule = _simclr(**options)
    for epoch, expected in rates.items():
        step = round(epoch * options.get("steps_per_epoch", 97))
        assert schedule(tf.constant(step, tf.int64)) == schedule(step)
        np.testing.assert_allclose(
            schedule(step), expected, rtol=2e-6, atol=1e-15, err_msg=str(epoch)
        )


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_each_rises_linearly_and_only_in_the_warm_up(name):
    schedule = _simclr(name=name, floor=0.1)
    rates = np.array([float(schedule(step)) for step in range(0, 9800, 97)])
    compiled = tf.function(schedule, jit_compile=True)
    for step in (0, 485, 970, 2910, 9700):
        found = compiled(tf.constant(step, tf.int64))
        np.testing.assert_allclose(found, schedule(step), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(
        rates[:11], np.linspace(0.06, 0.6, 11), rtol=1e-6
    )
    assert (np.diff(rates[10:]) <= 1e-7).all()
    assert rates.min() >= 0.06 - 1e-7


@pytest.mark.parametrize(
    ("warmup_epochs", "steps_per_epoch", "first"),
    [(0.9, 1, 0.6), (0.2, 4, 0.6), (0.25, 4, 0.0), (1, 1, 0.0), (0.0, 4, 0.6)],
)
def test_a_warm_up_of_less_than_a_step_is_none(
    warmup_epochs, steps_per_epoch, first
):
    schedule = _simclr(
        warmup_epochs=warmup_epochs, steps_per_epoch=steps_per_epoch
    )
    np.testing.assert_allclose(schedule(0), first, rtol=1e-6)
    np.testing.assert_allclose(schedule(1), 0.6, rtol=1e-2)


def test_invalid_scalings_and_durations():
    with pytest.raises(errors.UserError, match="known: linear, sqrt, none"):
        _simclr(scaling="cubic")
    with pytest.raises(errors.UserError, match="epochs=100"):
        _simclr(warmup_epochs=101)
    for decays in ((5, 30), (30, 100), (60, 30), (30, 30)):
        with pytest.raises(errors.UserError, match="decay_epochs="):
            _simclr(name="piecewise", decay_epochs=decays)
    for option in ("steps_per_epoch", "epochs"):
        with pytest.raises(errors.UserError, match="must be a"):
            _simclr(**{option: 0})
