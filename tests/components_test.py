"""The contract of losses, optimizers and schedules.

Each is built with its defaults, rebuilt from its configuration with equal
results, and built by its name; an unknown option is named in the error, and
numbers that float32 does not hold are refused.
"""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import encoders, heads, losses
from tf_contrastive import optimizers as optimizers_
from tf_contrastive import schedules as schedules_
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.schedule import SCHEDULES

_RNG = np.random.default_rng(0)
_Z = _RNG.normal(size=[6, 2, 4]).astype(np.float32)
_LABELS = np.array([0, 0, 1, 1, 0, 3])
_SUPERVISED = (
    *("supcon", "supcon_in", "sincere", "eps_supinfonce", "npairs", "triplet"),
    "cross_entropy",
)
_RUN = {"steps_per_epoch": 7, "epochs": 100}
_PEAK = {"base_learning_rate": 0.3, "batch_size": 256}


def _changed(declaration):
    """Returns options that differ from their defaults."""
    changed = {}
    for field in dataclasses.fields(declaration):
        value, about = field.default, field.metadata
        if not about:
            continue
        if about["choices"]:
            value = next(c for c in about["choices"][::-1] if c != value)
        elif fields.is_list(field):
            value = (1.5, 3.0)
        elif isinstance(value, bool):
            value = not value
        else:
            value = value / 2 + 0.01 if isinstance(value, float) else 2
        changed[field.name] = value
    return changed


def _check_numbers(make, options):
    """Gives each option of floats a number that float32 does not hold."""
    for name, value in options.items():
        for number in (1e300, 1e-40, float("nan")):
            if isinstance(value, float | tuple):
                given = number if isinstance(value, float) else (1.0, number)
                with pytest.raises(ValueError):
                    make(**{name: given})


def _value(loss):
    if isinstance(loss, losses.MoCo):
        return loss(_Z, keys=_Z[::-1].copy(), queue=_Z[:, 0]).numpy()
    return loss(_Z, _LABELS, seed=tf.constant([1, 2])).numpy()


@pytest.mark.parametrize("name", losses.LOSSES)
def test_loss(name):
    kind = losses.LOSSES[name]
    options = kind.defaults()
    assert kind().get_config() == options
    assert _value(losses.build(name)) == _value(kind())
    _check_numbers(kind, options)
    options = _changed(kind)
    if "tau_plus" in options:  # It needs normalised projections.
        options["normalize"] = True
    changed = kind(**options)
    config = tf.keras.saving.serialize_keras_object(changed)
    again = tf.keras.saving.deserialize_keras_object(config)
    assert _value(again) == _value(changed)
    assert _value(changed) != _value(kind())
    assert kind.needs_labels == (name in _SUPERVISED)
    with pytest.raises(errors.UserError, match="'nois'"):
        losses.build(name, nois=1)


def _weights(optimizer):
    """Returns weights after two steps."""
    variable = tf.Variable([[1.0, -2.0], [0.5, 3.0]])
    for gradient in ([[0.1, 0.2], [-0.3, 0.4]], [[0.3, 0.1], [0.2, -0.1]]):
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return variable.numpy()


@pytest.mark.parametrize("name", optimizers_.OPTIMIZERS)
def test_optimizer(name):
    kind = optimizers_.OPTIMIZERS[name]
    options = kind.declaration.defaults()
    rate = schedules_.Cosine(0.1, **_RUN)
    # As in Keras, constructors decay nothing by default.
    decay = options["weight_decay"]
    config = kind(learning_rate=rate).get_config()
    assert {**options, "weight_decay": 0.0}.items() <= config.items()
    np.testing.assert_array_equal(
        _weights(optimizers_.build(name, learning_rate=rate)),
        _weights(kind(rate, weight_decay=decay)),
    )
    changed = kind(rate, **_changed(kind.declaration), clipnorm=0.4)
    again = kind.from_config(changed.get_config())
    assert again.get_config() == changed.get_config()
    weights = _weights(changed)
    np.testing.assert_array_equal(_weights(again), weights)
    assert np.any(_weights(kind(rate)) != weights)
    of_rate = {"learning_rate": 0.1}
    _check_numbers(lambda **o: kind(**of_rate | o), of_rate | options)
    with pytest.raises(errors.UserError, match="'nois'"):
        optimizers_.build(name, learning_rate=0.1, nois=1)


@pytest.mark.parametrize("name", schedules_.SCHEDULES)
def test_schedule(name):
    kind = schedules_.SCHEDULES[name]
    declared = SCHEDULES[name]
    schedule = kind(0.3, **_RUN)
    assert declared.defaults().items() <= schedule.get_config().items()
    built = schedules_.build(name, **_PEAK, **_RUN)
    options = {"warmup_epochs": 1.5, "floor": 0.1, **_changed(declared)}
    changed = kind(0.3, **_RUN, **options)
    config = json.dumps(tf.keras.saving.serialize_keras_object(changed))
    again = tf.keras.saving.deserialize_keras_object(json.loads(config))
    for step in (0, 5, 20, 300, 700):
        assert built(step) == schedule(step)
        assert again(step) == changed(step)
    floats = {"peak": 0.3, "floor": 0.0, **declared.defaults()}
    _check_numbers(lambda **o: kind(**floats | o, **_RUN), floats)
    with pytest.raises(errors.UserError, match="'nois'"):
        schedules_.build(name, **_PEAK, **_RUN, nois=1)


@pytest.mark.parametrize(
    ("module", "known", "required"),
    [
        (losses, "supcon", {}),
        (optimizers_, "adamw", {"learning_rate": 1}),
        (schedules_, "cosine", {**_PEAK, **_RUN}),
        (heads, "linear", {}),
        (encoders, "resnet50", {"image_shape": (8, 8, 3)}),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(module, known, required):
    with pytest.raises(errors.UserError, match=f"did you mean {known}"):
        module.build(f"{known}x", **required)
