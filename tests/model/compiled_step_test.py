"""The training step as a whole: compiled, never traced again."""

import functools

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import callbacks, checkpoints, heads, losses, optimizers
from tf_contrastive import model as models
from tf_contrastive import train as training
from tf_contrastive.config import fields
from tf_contrastive.config.loss import LOSSES
from tf_contrastive.config.views import OPERATIONS, POLICIES
from tf_contrastive.encoders import resnet
from tf_contrastive.views import RunViews, mixup_cutmix

pytestmark = pytest.mark.usefixtures("small_encoder")

_BATCH, _SIDE, _CLASSES = 8, 16, 3

# More logits than classes, and an encoder with more features: with few, views
# are so near to each other that rounding decides accuracies.
_LOGITS = 16


# ---- Compiled by XLA ---------------------------------------------------------


@functools.cache
def _batch():
    """Views [B, 2, S, S, 3] of classes of almost one colour; seeds; labels."""
    rng = np.random.default_rng(0)
    labels = np.arange(_BATCH, dtype=np.int32) % _CLASSES
    tints = rng.uniform(0.4, 0.6, [_CLASSES, 1, 1, 1, 3])
    noise = rng.normal(0, 0.3, [_BATCH, 2, _SIDE, _SIDE, 3])
    views = np.clip(tints[labels] + noise, 0, 1).astype(np.float32)
    seeds = rng.integers(0, 2**31 - 1, [_BATCH, 2, 2]).astype(np.int32)
    return tf.constant(views), tf.constant(seeds), tf.constant(labels)


def _convolutions():
    images = x = tf.keras.Input((_SIDE, _SIDE, 3))
    layers = resnet._Layers(True, "ones")
    x = layers.convolution(x, 8, 3, 2, "conv1")
    x = layers.normalization(x, "norm1")
    x = layers.convolution(x, 8, 3, 1, "conv2")
    x = layers.normalization(x, "norm2")
    return tf.keras.Model(images, tf.keras.layers.GlobalAveragePooling2D()(x))


def _dense():
    images = tf.keras.Input((_SIDE, _SIDE, 3))
    x = tf.keras.layers.AveragePooling2D(2)(images)
    x = tf.keras.layers.Dense(32)(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(images, tf.keras.layers.ReLU()(x))


def _model(loss, encoder=_dense, augment=None, mix=None):
    tf.keras.utils.set_random_seed(0)
    encoder = encoder()
    head = heads.build("mlp", output=8)
    if loss == "cross_entropy":
        head = heads.LinearProbe(_LOGITS, kernel_initializer="glorot_uniform")
    model = models.ContrastiveModel(
        encoder,
        head,
        losses.build(loss),
        heads.LinearProbe(_LOGITS),
        augment=augment,
        mix=mix,
        **({"momentum": 0.9, "queue_size": 16} if loss == "moco" else {}),
    )
    model.compile(
        optimizers.LARS(0.5, weight_decay=1e-4),
        tf.keras.optimizers.SGD(0.1, momentum=0.9, jit_compile=False),
    )
    return model


def _two_steps(loss, compiled, **options):
    """Results, and by how much each weight moved."""
    views, seeds, labels = _batch()
    model = _model(loss, **options)
    with_seeds = model.augment or model.mix
    data = ((views, seeds) if with_seeds else views, labels)
    before = [v.numpy() for v in model.variables]
    train = model.train_step
    if compiled:
        train = tf.function(train, jit_compile=True)
    for _ in range(2):
        results = train(data)
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
        # Rounding, where it turns a ReLU: 1e-4 as a rule. Other views or
        # another loss would give about 1.
        assert error < 1e-2
    assert largest > 0


def _augment(policy):
    run = fields.replace(
        small.RUN,
        augmentation=policy,
        image_size=_SIDE,
        augment_on="device",
        blur=True,
    )
    return RunViews(run.views).on_device()


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_the_step_of_every_loss_compiles_to_the_same(loss):
    _assert_compiled_is_the_same(loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [*POLICIES, f"ablation:{'+'.join(OPERATIONS)}"]
)
def test_the_step_of_every_policy_compiles_to_the_same(policy):
    _assert_compiled_is_the_same("supcon", augment=_augment(policy))


def test_the_step_of_convolutions_compiles_to_the_same():
    _assert_compiled_is_the_same("supcon", encoder=_convolutions)


@pytest.mark.slow
def test_the_step_of_mixed_views_compiles_to_the_same():
    mix = mixup_cutmix.Mixing(_LOGITS, 0.2, 1.0)
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
        "validation_fraction": 0.25,
        "checkpoint_every_steps": 8,
        "log_every_steps": 5,
        "keep_checkpoints": 100,
        "workdir": str(workdir),
    }
    return fields.replace(small.RUN, **(values | changes))


def _watched(monkeypatch, seconds, stop_at=None):
    """Notes the models that are fitted, and the steps at which the host looks.

    Args:
      seconds: step -> what the pacer's clock shows after it.
      stop_at: step that ends the run, as a crash would.
    """
    fitted, looks = [], []
    fit, keep = training.fit, callbacks.CheckpointCallback.on_train_batch_end
    pacer = callbacks.AdaptiveStepsPerExecution

    def spy(run, model, *args):
        fitted.append(model)
        return fit(run, model, *args)

    def look(self, batch, logs):
        keep(self, batch, logs)
        looks.append(self._checkpoints.step)
        if stop_at is not None and self._checkpoints.step >= stop_at:
            raise InterruptedError

    def paced(kept, *args):
        return pacer(kept, *args, clock=lambda: seconds(kept.step))

    monkeypatch.setattr(training, "fit", spy)
    monkeypatch.setattr(
        callbacks.CheckpointCallback, "on_train_batch_end", look
    )
    monkeypatch.setattr(callbacks, "AdaptiveStepsPerExecution", paced)
    return fitted, looks


def _fast(step):
    return 1e-3 * step


def _points(workdir):
    """Step and loss of the points in TensorBoard."""
    return [
        (event.step, tf.make_ndarray(value.tensor).item())
        for path in sorted((workdir / "events").glob("events.out.*"))
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


def _assert_same_run(workdir, reference):
    assert _points(workdir) == _points(reference)
    found, expected = _saved(workdir), _saved(reference)
    assert sorted(found) == sorted(expected) == [8, 16, 24, 32, 36]
    for number, values in expected.items():
        assert set(found[number]) == set(values)
        for name, value in values.items():
            np.testing.assert_array_equal(
                found[number][name], value, err_msg=f"{name} at step {number}"
            )


@pytest.mark.slow
def test_several_steps_at_a_time_are_the_same_run(tmp_path, monkeypatch):
    one, several = tmp_path / "one", tmp_path / "several"
    expected = training.pretrain(_options(one, steps_per_execution=1))
    fitted, looks = _watched(monkeypatch, lambda step: 1.0 * step)
    result = training.pretrain(_options(several))
    # 36 steps, of which a point is due at each fifth, a checkpoint at each
    # eighth, and validation at the end of each epoch of 12.
    due = {*range(5, 36, 5), *range(8, 36, 8), 12, 24, 36}
    assert looks == sorted({1, 2, 4} | due)
    assert result.run.options.runtime.steps_per_execution is None
    written = (several / "config.flags").read_text()
    assert "steps_per_execution" not in written  # It is auto.
    (model,) = fitted
    assert model.train_tf_function.experimental_get_tracing_count() == 1
    _assert_same_run(several, one)
    # Validation takes all of its batches, whatever the pace.
    assert result.metrics == expected.metrics
    assert result.metrics["val_loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "virtual_devices"), [(None, 0), (5, 2)])
def test_a_step_is_traced_once_in_whole_partial_and_resumed_epochs(
    steps, virtual_devices, tmp_path, monkeypatch
):
    options = _options(
        tmp_path,
        steps_per_execution=steps,
        virtual_devices=virtual_devices,
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
        assert (result.start_step, looks) == (22, [24, 29, 34, 36])
    (model,) = fitted
    assert model.train_tf_function.experimental_get_tracing_count() == 1
    assert model.test_tf_function.experimental_get_tracing_count() == 1
    assert result.metrics["val_loss"] > 0
