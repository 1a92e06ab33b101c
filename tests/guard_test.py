"""Steps that are no numbers: named, passed over, or the end of the run."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import callbacks, heads, losses, optimizers
from tf_contrastive import model as models
from tf_contrastive.checkpoints import networks
from tf_contrastive.config.runtime import Runtime
from tf_contrastive.distribution.batch_normalization import BatchNormalization


def _strategy(replicas):
    if replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def _skipping(optimizer):
    optimizer.skips_non_finite = True
    return optimizer


def _model(strategy, optimizer=None, precision="float32"):
    probe_optimizer = optimizers.SGD(0.1, 0.9)
    if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        probe_optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
            probe_optimizer, initial_scale=256
        )
    elif getattr(optimizer, "skips_non_finite", False):
        probe_optimizer.skips_non_finite = True
    tf.keras.utils.set_random_seed(0)
    with strategy.scope(), networks.precision(precision):
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


def _batches(steps, bad=(), size=8, seed=0):
    """Batches, of which `bad` (step, row) hold a NaN."""
    generator = np.random.default_rng(seed)
    views = generator.random([steps, size, 2, 2, 2, 3], np.float32)
    for step, row in bad:
        views[step, row] = np.nan
    labels = generator.integers(0, 3, [steps, size]).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((views, labels))


def _fit(model, strategy, batches, watchers=()):
    model.fit(
        strategy.experimental_distribute_dataset(batches),
        epochs=1,
        steps_per_epoch=len(batches),
        verbose=0,
        callbacks=list(watchers),
    )


def _trainables(model):
    return [v.numpy() for v in model.pretrained_variables] + [
        v.numpy() for v in model.probe.trainable_variables
    ]


@pytest.mark.parametrize("replicas,replica", [(1, 0), (4, 2)])
def test_the_first_bad_step_and_its_replicas_are_named(replicas, replica):
    strategy = _strategy(replicas)
    model = _model(strategy)
    noted = []

    @tf.function
    def step(number, loss):
        model._non_finite.record(number, loss, [tf.ones([3])])

    def run(number, losses_of):
        values = strategy.experimental_distribute_values_from_function(
            lambda c: tf.constant(losses_of[c.replica_id_in_sync_group])
        )
        strategy.run(step, args=(tf.constant(number, tf.int64), values))
        noted.append(model.non_finite_steps())

    good = [1.0] * replicas
    poor = list(good)
    poor[replica] = float("nan")
    run(0, good)
    run(1, poor)
    run(2, [float("inf")] * replicas)
    run(3, good)
    assert noted[0].count == 0 and noted[0].replicas == ()
    assert noted[1].count == 1 and noted[1].step == 2
    assert noted[1].replicas == (replica,)
    assert noted[3].count == 2 and noted[3].step == 2


def test_a_gradient_that_is_not_finite_is_noted_where_the_loss_is(capsys):
    strategy = _strategy(1)
    model = _model(strategy)
    model._non_finite.record(
        tf.constant(6, tf.int64),
        tf.constant(0.5),
        [tf.ones([2]), tf.constant([1.0, np.inf])],
    )
    assert model.non_finite_steps().step == 7


@pytest.mark.parametrize(
    "replicas", [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_passing_over_leaves_weights_and_goes_on_with_the_next_step(replicas):
    strategy = _strategy(replicas)
    model = _model(strategy, _skipping(optimizers.LARS(0.1, momentum=0.9)))
    _fit(model, strategy, _batches(2))
    before = _trainables(model)
    slots = [v.numpy() for v in model.optimizer.variables]
    _fit(model, strategy, _batches(1, bad=[(0, 5)]))
    assert int(model.optimizer.iterations) == 3
    for old, new in zip(before, _trainables(model), strict=True):
        np.testing.assert_array_equal(old, new)
    after = [v.numpy() for v in model.optimizer.variables]
    for old, new in zip(slots, after, strict=True):
        if old.dtype == np.float32:
            np.testing.assert_array_equal(old, new)
    assert model.non_finite_steps().count == 1
    # The next good step is that of an optimizer that knows of no guard.
    plain = _model(strategy, optimizers.LARS(0.1, momentum=0.9))
    _fit(plain, strategy, _batches(2))
    _fit(plain, strategy, _batches(1, seed=7))
    _fit(model, strategy, _batches(1, seed=7))
    for old, new in zip(_trainables(plain), _trainables(model), strict=True):
        np.testing.assert_allclose(old, new, rtol=1e-5, atol=1e-7)


class _Kept:
    """Stands for checkpoints: a run that has saved step 1."""

    step, last_saved, directory = 1, 1, "/nowhere"

    def save(self):
        pass

    finish = save


def test_the_policy_ends_the_run_after_so_many(capsys):
    strategy = _strategy(1)
    runtime = Runtime(nan_policy="skip:2")
    model = _model(strategy, _skipping(optimizers.LARS(0.1)))
    keeper = callbacks.CheckpointCallback(_Kept(), runtime)
    _fit(model, strategy, _batches(4, bad=[(1, 0), (3, 0)]), [keeper])
    said = capsys.readouterr().err
    assert "skipped, 1 of at most 2" in said
    assert "skipped, 2 of at most 2" in said
    with pytest.raises(callbacks.NonFiniteError, match="not finite at step 2"):
        _fit(model, strategy, _batches(1, bad=[(0, 0)]), [keeper])


@pytest.mark.slow
def test_float16_scales_its_loss_and_trains_as_float32_does():
    strategy = _strategy(1)
    results = {}
    for precision in ("float32", "mixed_float16"):
        optimizer = tf.keras.optimizers.SGD(0.1, jit_compile=False)
        if precision == "mixed_float16":
            # Keras' own first scale takes some steps to come down to this.
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
                optimizer, initial_scale=256
            )
        model = _model(strategy, optimizer, precision)
        before = _trainables(model)
        _fit(model, strategy, _batches(3))
        after = _trainables(model)
        results[precision] = [b - a for a, b in zip(before, after, strict=True)]
    for full, half in zip(*results.values(), strict=True):
        error = np.linalg.norm(full - half)
        assert error < 0.02 * np.linalg.norm(full) + 1e-3


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
