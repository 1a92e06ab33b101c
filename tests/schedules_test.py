"""Learning rates against hand-computed points of the papers' recipes."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import config, schedules


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


@pytest.mark.parametrize(
    "step,expected",
    [
        (0, 0.0),
        (485, 0.3),
        (969, 0.59938144),
        (970, 0.6),
        (4850, 0.35209445),
        (9700, 0.0),
        (12000, 0.0),
    ],
)
def test_simclr_recipe(step, expected):
    for value in (step, tf.constant(step, tf.int64)):
        rate = _simclr()(value)
        assert rate.dtype == tf.float32
        np.testing.assert_allclose(rate, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "epoch,expected",
    [
        (0, 0.0005),
        (5, 0.25025),
        (10, 0.5),
        (200, 0.43203773),
        (405, 0.25025),
        (800, 0.0005),
    ],
)
def test_sincere_recipe_starts_and_ends_at_its_floor(epoch, expected):
    schedule = schedules.build(
        "cosine",
        base_learning_rate=0.5,
        batch_size=512,
        steps_per_epoch=87,
        epochs=800,
        warmup_epochs=10,
        scaling="none",
        floor=0.001,
    )
    np.testing.assert_allclose(schedule(87 * epoch), expected, rtol=1e-6)


def test_constant_stays_at_the_peak():
    schedule = _simclr(name="constant")
    rates = [float(schedule(step)) for step in (485, 970, 5000, 9700, 12000)]
    np.testing.assert_allclose(rates, [0.3, 0.6, 0.6, 0.6, 0.6], rtol=1e-6)


def test_no_warm_up_starts_at_the_peak():
    schedule = _simclr(warmup_epochs=0)
    np.testing.assert_allclose(schedule(0), 0.6, rtol=1e-6)
    expected = 0.3 * (1 + math.cos(math.pi / 4))
    np.testing.assert_allclose(schedule(9700 // 4), expected, rtol=1e-6)


def test_a_run_that_is_all_warm_up_is_finite():
    schedule = _simclr(warmup_epochs=100)
    np.testing.assert_allclose(schedule(4850), 0.3, rtol=1e-6)
    assert np.isfinite(schedule(9700))


@pytest.mark.parametrize(
    "batch_size,sqrt,linear",
    [
        (256, 1.2, 0.3),
        (512, 1.697056, 0.6),
        (1024, 2.4, 1.2),
        (2048, 3.394113, 2.4),
        (4096, 4.8, 4.8),
        (8192, 6.788225, 9.6),
    ],
)
def test_square_root_and_linear_scaling(batch_size, sqrt, linear):
    assert schedules.peak(0.3, batch_size) == pytest.approx(linear)
    assert schedules.peak(0.075, batch_size, "sqrt") == pytest.approx(
        sqrt, rel=1e-6
    )
    assert schedules.peak(0.3, batch_size, "none") == 0.3


@pytest.mark.parametrize(
    "given,epochs,expected",
    [(-1, 100, 10), (-1, 800, 10), (-1, 4, 0.4), (0, 100, 0), (2.5, 100, 2.5)],
)
def test_warm_up_by_default_is_ten_epochs_or_a_tenth(given, epochs, expected):
    assert schedules.resolve_warmup(given, epochs) == expected


def test_fractions_of_an_epoch_become_steps():
    schedule = _simclr(epochs=4, warmup_epochs=-1)  # 0.4 epochs: 39 steps.
    assert float(schedule(38)) < 0.6
    np.testing.assert_allclose(schedule(39), 0.6, rtol=1e-6)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_serialization(name):
    schedule = _simclr(name=name, floor=0.01)
    data = tf.keras.optimizers.schedules.serialize(schedule)
    again = tf.keras.optimizers.schedules.deserialize(data)
    for step in (0, 500, 970, 5000):
        assert float(again(step)) == float(schedule(step))


def test_bad_names_and_durations_are_told():
    assert set(schedules.SCHEDULES) == set(config.SCHEDULES)
    with pytest.raises(config.UserError, match="did you mean 'cosine'"):
        _simclr(name="cosin")
    with pytest.raises(config.UserError, match="known: linear, sqrt, none"):
        _simclr(scaling="cubic")
    with pytest.raises(config.UserError, match="epochs=100"):
        _simclr(warmup_epochs=101)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
