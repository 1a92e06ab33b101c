"""Vision transformers beside timm's and MoCo v3's, transcribed in NumPy."""

import math

import numpy as np
import pytest
import replicas
import scipy.special
import tensorflow as tf
from image_helpers import noise

from tf_contrastive import encoders, exporting, heads, losses
from tf_contrastive.base import errors
from tf_contrastive.encoders import vit
from tf_contrastive.encoders.published import reading
from tf_contrastive.exporting import pytorch
from tf_contrastive.model import ContrastiveModel, networks
from tf_contrastive.model.contrastive_step import Batch

pytestmark = pytest.mark.early

_RAW = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def _small(name="vit_ti4", side=8, **options):
    options = {"width": 0.25, "depth": 2, **options}
    return encoders.build(name, image_shape=(side, side, 3), **options)


# ---- timm's VisionTransformer, by its names of weights -----------------------


def _linear(x, state, name):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _layer_norm(x, state, name):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    x = centred / np.sqrt(variance + 1e-6)
    return x * state[f"{name}.weight"] + state[f"{name}.bias"]


def _softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


_erf = np.vectorize(math.erf)


def _moco_v3_positions(side, features):
    """As MoCo v3's `build_2d_sincos_position_embedding` computes them."""
    steps = np.arange(side, dtype=np.float64)
    grid_w, grid_h = np.meshgrid(steps, steps, indexing="ij")  # torch's.
    omega = 1.0 / 10000.0 ** (np.arange(features // 4) / (features // 4))
    out_w = np.einsum("m,d->md", grid_w.flatten(), omega)
    out_h = np.einsum("m,d->md", grid_h.flatten(), omega)
    parts = [np.sin(out_w), np.cos(out_w), np.sin(out_h), np.cos(out_h)]
    return np.concatenate([np.zeros([1, features]), np.concatenate(parts, 1)])


def _timm(images, state, patch, heads, depth, pooling):
    batch, side, _, channels = images.shape
    grid = side // patch
    x = images.transpose(0, 3, 1, 2).astype(np.float64)
    x = x.reshape(batch, channels, grid, patch, grid, patch)
    kernel = state["patch_embed.proj.weight"]
    x = np.einsum("nciajb,dcab->nijd", x, kernel, optimize=True)
    x = x.reshape(batch, grid * grid, -1) + state["patch_embed.proj.bias"]
    features = x.shape[-1]
    positions = _moco_v3_positions(grid, features)
    if pooling == "token":
        token = np.broadcast_to(state["cls_token"], [batch, 1, features])
        x = np.concatenate([token, x], axis=1) + positions
    else:
        x = x + positions[1:]
    for i in range(depth):
        y = _layer_norm(x, state, f"blocks.{i}.norm1")
        qkv = _linear(y, state, f"blocks.{i}.attn.qkv")
        qkv = qkv.reshape(batch, -1, 3, heads, features // heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(features / heads)
        y = (_softmax(scores) @ v).transpose(0, 2, 1, 3)
        y = y.reshape(batch, -1, features)
        x = x + _linear(y, state, f"blocks.{i}.attn.proj")
        y = _layer_norm(x, state, f"blocks.{i}.norm2")
        y = _linear(y, state, f"blocks.{i}.mlp.fc1")
        y = y * 0.5 * (1 + _erf(y / np.sqrt(2)))
        x = x + _linear(y, state, f"blocks.{i}.mlp.fc2")
    x = _layer_norm(x, state, "norm")
    return x[:, 0] if pooling == "token" else x.mean(1)


def _state(encoder, depth, generator):
    """Random weights, given to the encoder and returned by timm's names."""
    names = {"norm": "norm", "patches": "patch_embed.proj"}
    for i in range(depth):
        parts = {"norm1": "norm1", "qkv": "attn.qkv", "norm2": "norm2"}
        parts |= {"projection": "attn.proj", "mlp1": "mlp.fc1"}
        parts |= {"mlp2": "mlp.fc2"}
        for ours, theirs in parts.items():
            names[f"block{i + 1}_{ours}"] = f"blocks.{i}.{theirs}"
    axes, state = {2: (1, 0), 4: (3, 2, 0, 1)}, {}
    for v in encoder.variables:
        v.assign(generator.normal(size=v.shape, scale=0.3))
        layer, kind = v.name.removesuffix(":0").split("/")
        value = v.numpy().astype(np.float64)
        if layer == "tokens":
            state["cls_token"] = value
            continue
        end = "weight" if kind in ("gamma", "kernel") else "bias"
        state[f"{names[layer]}.{end}"] = value.transpose(axes.get(value.ndim))
    return state


@pytest.mark.parametrize(
    ("name", "options", "heads", "patch"),
    [
        ("vit_ti4", {}, 3, 4),
        ("vit_ti4", {"pooling": "mean"}, 3, 4),
        ("vit_s8", {"heads": 12}, 12, 8),
    ],
)
def test_features_are_those_of_timm(name, options, heads, patch):
    encoder = _small(name, side=24, **_RAW, **options)
    state = _state(encoder, 2, np.random.default_rng(0))
    images = noise(3, 24)
    pooling = options.get("pooling", "token")
    expected = _timm(images, state, patch, heads, 2, pooling)
    found = encoder(images)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    other = _timm(images, state, patch, 1, 2, pooling)
    assert np.abs(other - expected).max() > 0.01 * np.abs(expected).max()


def test_initial_weights_are_moco_v3s():
    tf.keras.utils.set_random_seed(0)
    encoder = encoders.build("vit_ti8", depth=1, image_shape=(16, 16, 3))
    weights = {v.name.removesuffix(":0"): v.numpy() for v in encoder.variables}
    assert np.std(weights.pop("tokens/class_token")) < 2e-6
    limits = {
        "patches": 6 / (3 * 8 * 8 + 192),
        "block1_qkv": 6 / (192 + 192),  # Each of q, k and v.
        "block1_projection": 6 / (192 + 192),
        "block1_mlp1": 6 / (192 + 768),
        "block1_mlp2": 6 / (192 + 768),
    }
    for name, value in weights.items():
        layer, kind = name.split("/")
        if kind == "kernel":
            limit = math.sqrt(limits.pop(layer))
            assert 0.99 * limit < np.abs(value).max() <= limit, name
        else:
            assert (value == (kind == "gamma")).all(), name
    assert not limits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # timm's of 224 pixels, without a classifier and its positions.
        ("vit_ti16", 5_717_416 - 193_000 - 197 * 192),
        ("vit_s16", 22_050_664 - 385_000 - 197 * 384),
        ("vit_b16", 86_567_656 - 769_000 - 197 * 768),
    ],
)
def test_parameters_are_those_of_deit(name, parameters):
    with tf.Graph().as_default():  # Of which no weights are drawn.
        encoder = encoders.build(name, image_shape=(32, 32, 3))
    assert encoder.count_params() == parameters


@pytest.mark.parametrize("frozen", [True, False])
def test_only_the_patch_projection_is_frozen(frozen):
    encoder = _small(frozen_patches=frozen)
    theirs = {v.name for v in encoder.variables}
    trained = {v.name for v in encoder.trainable_variables}
    patches = {"patches/kernel:0", "patches/bias:0"}
    assert theirs - trained == (patches if frozen else set())


def test_the_attention_of_each_head_can_be_had():
    encoder = _small(side=16)
    layer = encoder.get_layer("block1_attention")
    outputs = [layer.input, layer.attend(layer.input)[0], layer.output]
    qkv, weights, output = tf.keras.Model(encoder.input, outputs)(noise(2, 16))
    q, k, v = np.split(np.asarray(qkv, np.float64), 3, axis=-1)
    size = q.shape[-1] // layer.heads
    for head in range(layer.heads):
        part = np.s_[..., head * size : (head + 1) * size]
        products = q[part] @ k[part].transpose(0, 2, 1) / size**0.5
        exact = scipy.special.softmax(products, axis=-1)
        np.testing.assert_allclose(weights[:, head], exact, atol=1e-6)
        np.testing.assert_allclose(
            output[part], exact @ v[part], rtol=1e-5, atol=1e-5
        )


def test_half_precision_rounds_no_softmax():
    with networks.precision("mixed_bfloat16"):
        encoder = _small(side=16)
        attention = vit.Attention(2)
    qkv = tf.cast(noise(1, 4, 40, 24)[0], tf.bfloat16)
    assert attention(qkv).dtype == tf.bfloat16
    # Some kernels of bfloat16 are less precise than the CPU's.
    graph = tf.function(attention).get_concrete_function(qkv).graph
    operations = [x for x in graph.get_operations() if x.type == "Softmax"]
    assert [x.inputs[0].dtype for x in operations] == [tf.float32]
    plain = _small(side=16)
    plain.set_weights(encoder.get_weights())
    images = noise(8, 16)
    h, exact = encoder(images), plain(images)
    assert h.dtype == tf.float32
    assert (tf.cast(tf.cast(h, tf.bfloat16), tf.float32) != h).numpy().any()
    # Of features with a variance of 1.
    assert np.abs(h - exact).max() < 0.05


# ---- Stochastic depth --------------------------------------------------------


def test_blocks_are_left_out_as_often_as_asked():
    assert vit.rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert vit.rates(0.3, 1) == [0]
    layer, x = vit.StochasticDepth(0.25), tf.ones([4000, 1, 2])
    np.testing.assert_array_equal(layer(x), x)
    for step in (None, lambda: tf.constant(7)):
        layer.step = step
        y = layer(x, training=True).numpy()
        # Of a whole image, and the mean stays.
        assert (y[..., 0] == y[..., 1]).all()
        assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
        assert (y == 0).mean() == pytest.approx(0.25, abs=0.03)
    again = tf.function(layer, jit_compile=True)(x, training=True)
    np.testing.assert_array_equal(again, y)
    layer.step = lambda: tf.constant(8)
    assert (layer(x, training=True).numpy() != y).any()
    other = vit.StochasticDepth(0.25, name="other")
    other.step = lambda: tf.constant(7)
    assert (other(x, training=True).numpy() != y).any()
    encoder = _small(depth=3, drop_path=0.4)
    found = [x.rate for x in encoder.layers if hasattr(x, "rate")]
    assert found == pytest.approx([0, 0, 0.2, 0.2, 0.4, 0.4])
    vit.set_drop_path(encoder, 0.0, lambda: tf.constant(0))
    images = noise(2, 8)
    trained = encoder(images, training=True)
    np.testing.assert_array_equal(trained, encoder(images))


def test_replicas_leave_out_different_blocks():
    strategy = replicas.strategy(2)
    layer = vit.StochasticDepth(0.5)
    layer.step = lambda: tf.constant(1)

    @tf.function
    def run():
        return strategy.run(lambda: layer(tf.ones([64, 1, 1]), training=True))

    first, second = strategy.experimental_local_results(run())
    assert (first.numpy() != second.numpy()).any()


# ---- The training step -------------------------------------------------------


def _model(**options):
    tf.keras.utils.set_random_seed(0)
    model = ContrastiveModel(
        _small(drop_path=0.6),
        heads.build("mlp", output=8, batch_norm=False),
        losses.build("ntxent", temperature=0.5),
        **options,
    )
    model.compile(replicas.Recorder())
    return model


def _batch(views):
    return Batch(tf.constant(views), labels=None, targets=None)


@pytest.mark.slow
def test_both_passes_of_the_gradient_cache_leave_out_the_same():
    """By one pass over the parts, with the same blocks left out."""
    model, reference = _model(grad_cache_chunks=2), _model()
    views = noise(16, 8).reshape(8, 2, 8, 8, 3)
    with tf.GradientTape() as tape:
        parts = [
            reference.encode(_batch(part), training=True)[1]
            for part in (views[:4], views[4:])
        ]
        projections = tf.concat(parts, 0)
        loss = reference.contrastive_loss(projections, None)
    expected = tape.gradient(loss, reference.pretrained_variables)
    evaluated = reference.encode(_batch(views), training=False)[1]
    assert np.abs(evaluated - projections).max() > 0.1
    model.train_step(tf.constant(views))  # The variables become gradients.
    for ours, theirs in zip(model.pretrained_variables, expected, strict=True):
        scale = max(np.abs(theirs).max(), 1e-3)
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * scale)


# ---- Exports -----------------------------------------------------------------


@pytest.mark.slow
def test_an_export_has_its_heads(tmp_path):
    encoder = _small()
    path = exporting.export(encoder, str(tmp_path / "export"))
    images = noise(3, 8)
    expected = encoder(images)
    found = exporting.load(path)(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    other = _small(frozen_patches=False, drop_path=0.1)
    exporting.copy_weights(path, other)
    np.testing.assert_allclose(other(images), expected, atol=1e-6)
    with pytest.raises(errors.UserError, match="heads=3"):
        exporting.copy_weights(path, _small(heads=4))


@pytest.mark.parametrize(("pooling", "count"), [("token", 30), ("mean", 29)])
def test_a_file_for_pytorch_has_timm_s_names(pooling, count, tmp_path):
    encoder = _small(side=16, pooling=pooling)
    expected = _state(encoder, 2, np.random.default_rng(0))
    size = encoder.output_shape[1]
    positions = _moco_v3_positions(4, size)[pooling == "mean" :]
    if pooling == "token":
        expected["cls_token"] = expected["cls_token"].reshape(1, 1, size)
    expected["pos_embed"] = positions[np.newaxis].astype(np.float32)
    (tmp_path / "x").write_bytes(pytorch.file_for_pytorch(encoder)[0])
    content = reading.read(str(tmp_path / "x"))
    assert len(content.shapes) == count and content.shapes.keys() == {*expected}
    for name, values in expected.items():
        np.testing.assert_array_equal(content.read(name), values, name)
