"""The training step as a whole: compiled, never traced again, well paced."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import (
    callbacks,
    checkpoints,
    config,
    encoders,
    heads,
    losses,
    optimizers,
    pacing,
    training,
)
from tf_contrastive import model as models
from tf_contrastive.views import mixing

_BATCH, _SIDE, _CLASSES = 8, 16, 3

# ---- Compiled by XLA ---------------------------------------------------------


@functools.cache
def _batch():
    """Views [B, 2, S, S, 3] of classes that differ a little in colour, seeds, labels."""
    rng = np.random.default_rng(0)
    labels = np.arange(_BATCH, dtype=np.int32) % _CLASSES
    tints = rng.uniform(0.4, 0.6, [_CLASSES, 1, 1, 1, 3])
    noise = rng.normal(0, 0.3, [_BATCH, 2, _SIDE, _SIDE, 3])
    views = np.clip(tints[labels] + noise, 0, 1).astype(np.float32)
    seeds = rng.integers(0, 2**31 - 1, [_BATCH, 2, 2]).astype(np.int32)
    return tf.constant(views), tf.constant(seeds), tf.constant(labels)


def _model(loss, augment=None, mix=None):
    tf.keras.utils.set_random_seed(0)
    images = x = tf.keras.Input((_SIDE, _SIDE, 3))
    layers = encoders._Layers(True, "ones")
    x = layers.convolution(x, 8, 3, 2, "conv1")
    x = layers.normalization(x, "norm1")
    x = layers.convolution(x, 8, 3, 1, "conv2")
    x = layers.normalization(x, "norm2")
    encoder = tf.keras.Model(
        images, tf.keras.layers.GlobalAveragePooling2D()(x)
    )
    head = heads.build("mlp", output=8)
    if loss == "cross_entropy":
        head = heads.LinearProbe(_CLASSES, kernel_initializer="glorot_uniform")
    model = models.ContrastiveModel(
        encoder,
        head,
        losses.build(loss),
        heads.LinearProbe(_CLASSES),
        augment=augment,
        mix=mix,
        **({"momentum": 0.9, "queue_size": 16} if loss == "moco" else {}),
    )
    model.compile(
        optimizers.LARS(0.5, weight_decay=1e-4),
        tf.keras.optimizers.SGD(0.1, momentum=0.9, jit_compile=False),
    )
    return model


def _two_steps(loss, jit_compile, **options):
    """Results, and by how much each weight moved."""
    views, seeds, labels = _batch()
    model = _model(loss, **options)
    data = ((views, seeds) if options else views, labels)
    before = [v.numpy() for v in model.variables]
    step = tf.function(model.train_step, jit_compile=jit_compile)
    for _ in range(2):
        results = step(data)
    moved = [
        v.numpy() - b for v, b in zip(model.variables, before, strict=True)
    ]
    return {k: float(v) for k, v in results.items()}, moved


def _assert_compiled_is_the_same(loss, **options):
    expected, moved = _two_steps(loss, False, **options)
    found, found_moved = _two_steps(loss, True, **options)
    assert expected["loss"] != 0
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )
    largest = max(np.linalg.norm(m) for m in moved)
    for ours, theirs in zip(found_moved, moved, strict=True):
        scale = max(np.linalg.norm(theirs), 1e-3 * largest)
        error = np.linalg.norm(ours - theirs) / scale
        assert error < 1e-3
    assert largest > 0


@pytest.mark.parametrize("loss", config.LOSSES)
def test_the_step_of_every_loss_compiles_to_the_same(loss):
    _assert_compiled_is_the_same(loss)


@pytest.mark.parametrize(
    "policy", [*config.AUGMENTATIONS, f"ablation:{'+'.join(config.ABLATIONS)}"]
)
def test_the_step_of_every_policy_compiles_to_the_same(policy):
    run = config.replace(
        config.Pretrain(),
        augmentation=policy,
        image_size=_SIDE,
        augment_on="device",
        blur=True,
    )
    _assert_compiled_is_the_same(
        "supcon", augment=training.augment_on_device(run)
    )


def test_the_step_of_mixed_views_compiles_to_the_same():
    mix = mixing.Mixing(_CLASSES, 0.2, 1.0)
    _assert_compiled_is_the_same("cross_entropy", mix=mix)


# ---- One graph, several steps of it at a time --------------------------------


def _options(workdir, **changes):
    values = {
        "dataset": "digits",
        "split": "train[:256]",
        "augmentation": "crop",
        "encoder": "resnet10",
        "width": 0.125,
        "projection_output": 8,
        "loss": "supcon",
        "batch_size": 16,
        "epochs": 3,
        "learning_rate": 0.5,
        "checkpoint_every_steps": 12,
        "log_every_steps": 5,
        "keep_checkpoints": 100,
        "workdir": str(workdir),
    }
    return config.replace(config.Pretrain(), **(values | changes))


def _watched(monkeypatch, seconds, stop_at=None):
    """Notes the models that are fitted, and the steps at which the host looks.

    Args:
      seconds: step -> what the pacer's clock shows after it.
      stop_at: step that ends the run, as a crash would.
    """
    fitted, looks = [], []
    fit, keep = training.fit, callbacks.Keeper.on_train_batch_end
    pacer = pacing.Pacer

    def spy(model, *args, **options):
        fitted.append(model)
        return fit(model, *args, **options)

    def look(self, batch, logs):
        keep(self, batch, logs)
        looks.append(self._kept.step)
        if stop_at is not None and self._kept.step >= stop_at:
            raise InterruptedError

    def paced(kept, *args):
        return pacer(kept, *args, clock=lambda: seconds(kept.step))

    monkeypatch.setattr(training, "fit", spy)
    monkeypatch.setattr(callbacks.Keeper, "on_train_batch_end", look)
    monkeypatch.setattr(pacing, "Pacer", paced)
    return fitted, looks


def _fast(step):
    return 1e-3 * step


def _points(workdir):
    """Step and loss of the points in TensorBoard."""
    return [
        (event.step, tf.make_ndarray(value.tensor).item())
        for path in sorted((workdir / "events").iterdir())
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss/contrastive"
    ]


def _saved(workdir):
    """Step -> the values of its checkpoint."""
    found = {}
    for path in (workdir / "checkpoints").glob("ckpt-*.index"):
        reader = tf.train.load_checkpoint(str(path.with_suffix("")))
        found[checkpoints.step_of(path.stem)] = {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if "CHECKPOINTABLE" not in name and "save_counter" not in name
        }
    return found


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """A run whose steps were executed one by one."""
    workdir = tmp_path_factory.mktemp("one")
    training.pretrain(_options(workdir, steps_per_execution=1))
    return workdir


def _assert_same_run(workdir, reference):
    assert _points(workdir) == _points(reference)
    found, expected = _saved(workdir), _saved(reference)
    assert sorted(found) == sorted(expected) == [12, 24, 36, 48]
    for step, values in expected.items():
        assert set(found[step]) == set(values)
        for name, value in values.items():
            np.testing.assert_array_equal(
                found[step][name], value, err_msg=f"{name} at step {step}"
            )


# A point at each fifth step, a checkpoint at each twelfth, an epoch of 16.
_DUE = {*range(5, 49, 5), *range(12, 49, 12), *range(16, 49, 16)}


@pytest.mark.parametrize(
    ("seconds", "between"),
    [
        # At most 5 s at a time, and twice as many steps as the last time.
        (0.001, {1, 2, 4}),
        (1.0, {1, 2, 4}),
        (2.5, {1, 2, 4, 7, 9, 14, 18, 22, 27, 29, 34, 38, 42, 44, 47}),
        (20.0, {*range(1, 49)}),
    ],
)
def test_the_host_looks_in_every_few_seconds_and_where_something_is_due(
    seconds, between, one_by_one, tmp_path, monkeypatch
):
    fitted, looks = _watched(monkeypatch, lambda step: step * seconds)
    result = training.pretrain(_options(tmp_path))
    assert looks == sorted(between | _DUE)
    assert result.config.runtime.steps_per_execution == 0
    assert "--steps_per_execution=0" in (tmp_path / "config.flags").read_text()
    (model,) = fitted
    assert model.train_function.experimental_get_tracing_count() == 1
    _assert_same_run(tmp_path, one_by_one)


def test_a_step_that_becomes_slow_is_looked_at_sooner(tmp_path, monkeypatch):
    # 0.1 s, and 3 s from step 20 on.
    _, looks = _watched(
        monkeypatch, lambda step: 0.1 * step + 2.9 * max(step - 20, 0)
    )
    training.pretrain(
        _options(tmp_path, log_every_steps=100, checkpoint_every_steps=0)
    )
    assert looks == [1, 2, 4, 8, 16, 32, *range(34, 49)]


@pytest.mark.parametrize("virtual_devices", [0, 2])
@pytest.mark.parametrize("steps", [0, 5])
def test_a_step_is_traced_once_in_whole_partial_and_resumed_epochs(
    steps, virtual_devices, tmp_path, monkeypatch
):
    options = _options(
        tmp_path,
        steps_per_execution=steps,
        virtual_devices=virtual_devices,
        validation_fraction=0.25,
        # An epoch of 12 steps: 5 and 5 and 2.
        checkpoint_every_steps=5,
    )
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        _watched(patch, _fast, stop_at=18)
        training.pretrain(options)
    fitted, looks = _watched(monkeypatch, _fast)
    result = training.pretrain(options)
    assert 12 < result.start_step < 24 and result.step == 36
    assert looks[-1] == 36 and 24 in looks
    if steps:
        assert looks[:3] == [result.start_step + 5, 24, 29]
    (model,) = fitted
    assert model.train_function.experimental_get_tracing_count() == 1
    assert model.test_function.experimental_get_tracing_count() == 1
    assert result.metrics["val_loss"] > 0


def test_validation_takes_all_its_batches_whatever_the_pace(
    tmp_path, monkeypatch
):
    found = []
    for steps in (1, 0):
        with monkeypatch.context() as patch:
            _watched(patch, _fast)
            result = training.pretrain(
                _options(
                    tmp_path / str(steps),
                    steps_per_execution=steps,
                    validation_fraction=0.25,
                    epochs=2,
                )
            )
        found.append(result.metrics)
    assert found[0] == found[1]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
