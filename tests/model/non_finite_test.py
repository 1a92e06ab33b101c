"""Steps that are no numbers: named, passed over, or the end of the run."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import replicas as on_replicas
import tensorflow as tf

from tf_contrastive import (
    callbacks,
    checkpoints,
    datasets,
    heads,
    losses,
    optimizers,
)
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import Runtime
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import networks


def _model(optimizer=None, strategy=None):
    """A compiled model; its probe skips steps if the optimizer does."""
    tf.keras.utils.set_random_seed(0)
    probe_optimizer = optimizers.SGD(0.1, 0.9)
    probe_optimizer.skips_non_finite = getattr(
        optimizer, "skips_non_finite", False
    )
    strategy = strategy or on_replicas.strategy(1)
    with strategy.scope():
        encoder = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=(2, 2, 3)),
                tf.keras.layers.Dense(8),
                BatchNormalization(),
                tf.keras.layers.Activation("relu", dtype="float32"),
            ]
        )
        model = models.ContrastiveModel(
            encoder,
            heads.build("linear", output=4),
            losses.build("ntxent"),
            heads.LinearProbe(3),
        )
        model.compile(
            optimizer=optimizer or optimizers.LARS(0.1, momentum=0.9),
            probe_optimizer=probe_optimizer,
        )
    return model


def _skipping_model():
    optimizer = optimizers.LARS(0.1)
    optimizer.skips_non_finite = True
    return _model(optimizer)


def _fit(model, steps, bad=(), watchers=()):
    """Trains on random batches, of which `bad` (step, row) hold a NaN."""
    generator = np.random.default_rng(0)
    views = generator.random([steps, 8, 2, 2, 2, 3], np.float32)
    for step, row in bad:
        views[step, row] = np.nan
    labels = generator.integers(0, 3, [steps, 8]).astype(np.int32)
    batches = tf.data.Dataset.from_tensor_slices((views, labels))
    return model.fit(batches, verbose=0, callbacks=[*watchers]).history


def _recorded(strategy, model, losses_of, gradient=0.0):
    """Records a step with a loss of each replica, and what is known then."""
    values = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant(losses_of[c.replica_id_in_sync_group])
    )

    @tf.function
    def step(loss):
        gradients = [
            tf.fill(v.shape, gradient) for v in model.pretrained_variables
        ]
        model.update({"loss": gradients}, {"loss": loss})

    strategy.run(step, args=(values,))
    return model.non_finite_steps()


@pytest.mark.parametrize("replicas,replica", [(1, 0), (4, 2)])
def test_the_first_bad_step_and_its_replicas_are_named(replicas, replica):
    strategy = on_replicas.strategy(replicas)
    model = _model(strategy=strategy)
    good, poor = [1.0] * replicas, [1.0] * replicas
    poor[replica] = float("nan")
    all_poor = [float("inf")] * replicas
    noted = [
        _recorded(strategy, model, values)
        for values in (good, poor, all_poor, good)
    ]
    assert noted[0].count == 0 and noted[0].replicas == ()
    assert noted[1].count == 1 and noted[1].step == 2
    assert noted[1].replicas == (replica,)
    # The others followed later.
    assert noted[3] == dataclasses.replace(noted[1], count=2)
    # A gradient counts as the loss does.
    model = _model(strategy=strategy)
    _recorded(strategy, model, good)
    assert _recorded(strategy, model, good, np.inf).step == 2


def test_the_policy_ends_the_run_after_so_many(capsys):
    runtime, model = Runtime(nan_policy="skip:2"), _skipping_model()
    saved = mock.Mock(step=1, last_saved=1, directory="/nowhere")
    keeper = callbacks.CheckpointCallback(saved, runtime, 4)
    _fit(model, 4, [(1, 0), (3, 0)], [keeper])
    said = capsys.readouterr().err
    assert "skipped, 1 of at most 2" in said
    assert "skipped, 2 of at most 2" in said
    with pytest.raises(callbacks.NonFiniteError, match="not finite at step 2"):
        _fit(model, 1, [(0, 0)], [keeper])


@pytest.mark.slow
def test_a_probe_that_diverges_is_noted_beside_a_sound_encoder():
    model = _model()
    model.probe_optimizer.learning_rate = 3e38
    _fit(model, 2)
    noted = model.non_finite_steps()
    assert noted.step == 2 and noted.only_probe
    assert all(np.isfinite(v).all() for v in model.encoder.variables)
    # From here on it is the encoder's, too, but that was not the first.
    _fit(model, 1, [(0, 0)])
    assert model.non_finite_steps() == dataclasses.replace(noted, count=2)
    model = _model()
    _fit(model, 2, [(1, 0)])
    noted = model.non_finite_steps()
    assert noted.step == 2 and not noted.only_probe


def _saved(model, tmp_path):
    run = fields.replace(Pretrain(), workdir=str(tmp_path))
    info = datasets.Info("digits", "train", 100)
    return checkpoints.Checkpoints(model, run, info)


@pytest.mark.slow
def test_no_checkpoint_holds_what_a_last_step_left_non_finite(tmp_path):
    model = _model()
    _fit(model, 1)
    saved = _saved(model, tmp_path)
    saved.finish()
    ((_, step_1),) = [(p, p.read_bytes()) for p in _data_files(tmp_path)]
    _fit(model, 1)
    moving = model.encoder.layers[2].moving_variance
    for variable in (
        model.encoder.trainable_variables[0],
        moving,
        model.projection_head.trainable_variables[0],
        model.optimizer.variables[-1],
        model.probe.trainable_variables[0],
        model.probe_optimizer.variables[-1],
    ):
        sound = variable.numpy()
        variable.assign(tf.fill(variable.shape, np.inf))
        with pytest.raises(checkpoints.NonFiniteError, match="step 2"):
            saved.finish()
        variable.assign(sound)
    assert [p.read_bytes() for p in _data_files(tmp_path)] == [step_1]
    saved.finish()
    assert len(_data_files(tmp_path)) == 2


def _data_files(folder):
    return list(folder.glob("checkpoints/*.data*"))


@pytest.mark.slow
def test_a_run_whose_steps_were_all_skipped_saves_nothing_and_fails(tmp_path):
    model = _skipping_model()
    saved = _saved(model, tmp_path)
    runtime = Runtime(nan_policy="skip:9", checkpoint_every_steps=1)
    keeper = callbacks.CheckpointCallback(saved, runtime, 2)
    _fit(model, 2, [(0, 0), (1, 7)], [keeper])
    assert saved.step == 2 and not _data_files(tmp_path)
    with pytest.raises(checkpoints.NonFiniteError, match="all 2 steps"):
        keeper.check_trained()
    _fit(model, 2, [(0, 0)], [keeper])
    keeper.check_trained()
    assert saved.step == 4 and len(_data_files(tmp_path)) == 1


@pytest.mark.slow
def test_steps_that_loss_scaling_skips_are_counted():
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
        optimizers.LARS(0.1), initial_scale=2.0**120
    )
    with networks.precision("mixed_float16"):
        model = _model(optimizer)
    before = [v.numpy() for v in model.pretrained_variables]
    _fit(model, 2)
    assert model.skipped_steps() == 2
    for old, new in zip(before, model.pretrained_variables, strict=True):
        np.testing.assert_array_equal(old, new)
    optimizer._loss_scale.current_loss_scale.assign(256.0)
    _fit(model, 3, [(1, 0)])
    assert model.skipped_steps() == 3


def test_a_skipped_step_is_left_out_of_the_means():
    model = _skipping_model()
    history = _fit(model, 3, [(1, 0)])
    assert model.skipped_steps() == 1
    assert all(np.isfinite(values).all() for values in history.values())
