"""Each feature of the model: replicas, XLA, resuming and its config."""

import functools

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf
from replicas import Recorder

from tf_contrastive import heads, losses, optimizers
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.views import mixup_cutmix, prng

_BATCH, _SIDE, _CLASSES, _STEPS = 16, 8, 4, 3


def _tinted(views, seeds):
    """Changes each view by its seed."""
    shift = tf.cast(seeds[..., :1] % 7, tf.float32) / 100
    return tf.clip_by_value(views + shift[..., tf.newaxis, tf.newaxis], 0, 1)


class _Learned(tf.keras.layers.Layer):
    """NT-Xent of two views with a learned temperature."""

    def build(self, shape):
        self.scale = self.add_weight("scale", [], initializer="ones")

    def call(self, z, labels=None):
        z = tf.math.l2_normalize(tf.cast(z, tf.float32), -1)
        everyone = losses.global_batch(z)
        own = everyone.first + tf.range(tf.shape(z)[0])
        logits = z[:, 0] @ tf.transpose(everyone.projections[:, 1])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            own, 3 * self.scale * logits
        )


_MIX = mixup_cutmix.Mixing(_CLASSES, mixup_alpha=0.4, cutmix_alpha=1.0)
_CHUNKS = {"grad_cache_chunks": 2, "norm": False}
# Arguments of the model. "norm": whether the encoder has BatchNormalization,
# of which a chunk has statistics of its own. "small": small views.
FEATURES = {
    "plain": {},
    "LARS": {"lars": True},
    "momentum": {"loss": "moco", "momentum": 0.75, "queue_size": 20},
    "momentum in chunks": {"loss": "moco", "momentum": 0.75, **_CHUNKS},
    "gradient cache": _CHUNKS,
    "mixing": {"loss": "cross_entropy", "mix": _MIX},
    "mixing in chunks": {"loss": "cross_entropy", "mix": _MIX, **_CHUNKS},
    "small views": {"small": 3, "loss": "ntxent", "augment": _tinted},
    "small views in chunks": {"small": 1, **_CHUNKS},
    "online kNN": {"online_knn_size": 24, "ema": 0.5},
    "joint training": {"cross_entropy_weight": 0.7},
    "unlabelled": {"unlabelled": True},
    "unlabelled, joint, in chunks": {
        "unlabelled": True,
        "cross_entropy_weight": 0.7,
        **_CHUNKS,
    },
    "loss with a weight": {"loss": _Learned},
    "its weight in chunks": {"loss": _Learned, **_CHUNKS},
    "loss scaling": {"scales": True},
    "skipped steps": {"skips": True, "norm": False},
}


def _make(feature, seed=0, recorded=False, **compile_options):
    """The compiled model with a feature."""
    options = dict(FEATURES[feature])
    loss, norm = options.pop("loss", "supcon"), options.pop("norm", True)
    options.pop("small", None)
    lars, scales, skips = (
        options.pop(name, False) for name in ("lars", "scales", "skips")
    )
    more = {"unlabelled": "own_views"} if "unlabelled" in options else {}
    loss = losses.build(loss, **more) if isinstance(loss, str) else loss()
    takes_logits = getattr(loss, "takes_logits", False)
    tf.keras.utils.set_random_seed(seed)
    model = ContrastiveModel(
        small.convolutions(_SIDE, norm=BatchNormalization if norm else None),
        heads.LinearProbe(_CLASSES, "glorot_uniform")
        if takes_logits
        else heads.build("mlp", output=16, batch_norm=lars),
        loss,
        heads.LinearProbe(_CLASSES, "glorot_uniform"),
        **options,
    )

    def optimizer():
        if recorded:
            return Recorder()
        if lars:
            return optimizers.LARS(0.5, weight_decay=1e-4)
        built = optimizers.SGD(0.2, 0.9)
        built.skips_non_finite = skips
        if scales:
            kind = tf.keras.mixed_precision.LossScaleOptimizer
            return kind(built, initial_scale=256)
        return built

    of_probe = None if model.cross_entropy_weight else optimizer()
    model.compile(optimizer(), of_probe, **compile_options)
    return model


def _examples(feature):
    """Arrays of the examples of all steps, as the model takes them."""
    rng = np.random.default_rng(0)
    count = _STEPS * _BATCH
    # Classes are of different colours, and not equally frequent.
    labels = np.minimum(rng.integers(0, 2 * _CLASSES, count), _CLASSES - 1)
    tints = rng.uniform(0.2, 0.8, [_CLASSES, 1, 1, 1, 3])
    noise = rng.normal(0, 0.1, [count, 2, _SIDE, _SIDE, 3])
    views = np.clip(tints[labels] + noise, 0, 1).astype(np.float32)
    options = FEATURES[feature]
    if "unlabelled" in options:
        # The first two of four replicas, or chunks, have one label together.
        labels[: _BATCH // 2 - 1] = -1
        labels[_BATCH::3] = -1
    if "skips" in options:
        # In the second step. Some CPUs' ReLU makes 0 of NaN.
        views[_BATCH + 3] = np.inf
    labels = labels.astype(np.int32)
    small_views = options.get("small", 0)
    seeds = np.stack([np.full(count, 7), np.arange(count)], -1)
    seeds = prng.fold(tf.constant(seeds, tf.int32), 2 + small_views).numpy()
    takes_seeds = "mix" in options or "augment" in options
    if small_views:
        shape = [count, small_views, _SIDE - 1, _SIDE - 1, 3]
        of_size = {"small_views": rng.uniform(size=shape).astype(np.float32)}
        of_size |= {"seeds": seeds} if takes_seeds else {}
        return {"views": views, **of_size}, labels
    return ((views, seeds) if takes_seeds else views), labels


@functools.cache
def _trained(feature, replicas=1, recorded=False, jit_compile=False):
    """Means over the steps, and all weights after them.

    Or, if `recorded`, the first step's gradients in their places.
    """
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        model = _make(feature, recorded=recorded, jit_compile=jit_compile)
    examples = tf.data.Dataset.from_tensor_slices(_examples(feature))
    batches = on_replicas.share(examples, _BATCH, strategy)
    steps = 1 if recorded else _STEPS
    history = model.fit(batches, steps_per_epoch=steps, verbose=0).history
    means = {name: values[0] for name, values in history.items()}
    weights = [v.numpy() for v in model.weights]
    if "skips" in FEATURES[feature]:
        assert model.skipped_steps() == 1
        assert model.non_finite_steps().step == 2
        assert model.optimizer.iterations.numpy() == _STEPS
    return means, weights


def _check_equal(result, reference, tolerance, of_means=1e-4):
    (means, weights), (expected, of_reference) = result, reference
    assert means.keys() == expected.keys()
    for name in ("loss", "probe_loss"):
        assert means[name] == pytest.approx(expected[name], rel=of_means), name
    largest = max(np.linalg.norm(w) for w in of_reference)
    for i, (w, true) in enumerate(zip(weights, of_reference, strict=True)):
        scale = max(np.linalg.norm(true), 1e-4 * largest)
        assert np.linalg.norm(w - true) < tolerance * scale, i


def _slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


_UNLABELLED = "unlabelled, joint, in chunks"
_SLOW = ["mixing", "small views", "online kNN", "loss with a weight"]
_SLOW += ["loss scaling"]


@pytest.mark.parametrize(
    ("feature", "replicas"),
    [
        *((n, 2) for n in ("LARS", "momentum in chunks", "skipped steps")),
        *(_slow(name, 2) for name in _SLOW),
        _slow(_UNLABELLED, 4),
        _slow("momentum", 8),
    ],
)
def test_replicas_change_nothing(feature, replicas):
    found = _trained(feature, replicas)
    _check_equal(found, _trained(feature), 5e-5 if feature == "LARS" else 1e-4)


def test_replicas_change_no_gradient():
    found = _trained("LARS", 2, recorded=True)
    _check_equal(found, _trained("LARS", recorded=True), 1e-5, of_means=1e-5)


@pytest.mark.parametrize(
    "feature",
    [
        name if name == "momentum in chunks" else _slow(name)
        for name, options in FEATURES.items()
        if "grad_cache_chunks" in options
    ],
)
def test_chunks_change_nothing(feature, monkeypatch):
    found = _trained(feature)
    whole = {**FEATURES[feature], "grad_cache_chunks": 1}
    monkeypatch.setitem(FEATURES, feature, whole)
    whole = _trained.__wrapped__(feature)
    assert len(whole[1]) == len(found[1])
    _check_equal(found, whole, 1e-4)


# XLA's ReLU makes 0 of the NaN by which a step is skipped, on CPUs: the probe
# learns in that step.
@pytest.mark.slow
@pytest.mark.parametrize("feature", [*_SLOW, _UNLABELLED, "LARS"])
def test_the_compiled_step_is_the_same(feature):
    compiled = _trained(feature, jit_compile=True)
    # Rounding, where it turns a ReLU; another loss would give about 1.
    _check_equal(compiled, _trained(feature), 1e-2)


@pytest.mark.parametrize(
    "feature",
    [
        *("momentum", "online kNN"),
        *map(_slow, ("loss scaling", "loss with a weight")),
        *map(_slow, ("mixing", "small views")),
    ],
)
def test_a_restored_model_goes_on_bit_for_bit(feature, tmp_path):
    examples = tf.data.Dataset.from_tensor_slices(_examples(feature))
    batches = list(examples.batch(_BATCH))
    straight, resumed = (
        _make(feature, seed, run_eagerly=True) for seed in (0, 1)
    )
    for batch in batches[:2]:
        straight.train_on_batch(*batch)
    path = str(tmp_path / "c")
    tf.train.Checkpoint(**straight.checkpointed()).write(path)
    checkpoint = tf.train.Checkpoint(**resumed.checkpointed())
    checkpoint.read(path).assert_consumed()
    for model in (straight, resumed):
        model.train_on_batch(*batches[2])
    for a, b in zip(straight.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=a.name)


@pytest.mark.parametrize(
    "feature",
    ["momentum", "gradient cache", "mixing", "online kNN", "joint training"],
)
def test_a_model_is_made_again_from_its_config(feature):
    model = _make(feature)
    config = model.get_config()
    again = type(model).from_config(config)
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]
    for name, value in FEATURES[feature].items():
        if name in config and name != "loss":
            found = again.get_config()[name]
            assert found == (config[name] if name == "mix" else value)


def test_the_probe_and_the_neighbors_leave_the_encoder_alone():
    _, alone = _trained("plain")
    _, beside = _trained("online kNN")
    count = len(small.convolutions(_SIDE, norm=BatchNormalization).weights)
    for a, b in zip(alone[:count], beside[:count], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
