"""Encoders: their parameters, geometry and names, and what they refuse."""

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import __main__, checkpoints, encoders, errors, exporting
from tf_contrastive.config.dataset import IMAGENET_STATISTICS
from tf_contrastive.config.encoder import Keras
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders import backbones


def _images(n=4, height=32, width=None, channels=3, seed=0):
    shape = (n, height, width or height, channels)
    return np.random.default_rng(seed).random(shape, np.float32)


def _small(**options):
    options = {"width": 0.25, "image_shape": (32, 32, 3), **options}
    return encoders.build("resnet10", **options)


def _until(encoder, layer):
    return tf.keras.Model(encoder.input, encoder.get_layer(layer).output)


def _zeros(next_creator, **options):
    """Makes variables of zeros: drawing 375 million numbers takes a minute."""
    shape, dtype = options.get("shape"), options.get("dtype")
    if shape is not None:
        options["initial_value"] = lambda: tf.zeros(shape, dtype)
    return next_creator(**options)


@pytest.mark.parametrize(
    "name,width,stem,parameters",
    [
        ("resnet18", 1, "imagenet", 11_176_512),
        ("resnet18", 1, "cifar", 11_168_832),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("resnet50", 1, "cifar", 23_500_352),
                ("resnet50", 2, "imagenet", 93_907_072),
                ("resnet101", 1, "imagenet", 42_500_160),
                ("resnet50", 2, "cifar", 93_891_712),
                ("resnet50", 4, "imagenet", 375_378_176),
                ("resnet200", 1, "imagenet", 62_624_832),
                ("resnet200", 1, "cifar", 62_617_152),
            )
        ),
    ],
)
def test_parameters_are_those_of_the_papers(name, width, stem, parameters):
    with tf.variable_creator_scope(_zeros):
        encoder = encoders.build(
            name, width=width, stem=stem, image_shape=(64, 64, 3)
        )
    counts = [np.prod(w.shape) for w in encoder.trainable_variables]
    assert sum(counts) == parameters


def test_the_small_network():
    """Keras' layers by hand, with the same weights."""
    encoder = encoders.build("convnet", image_shape=(28, 28, 3))
    # 3x3 convolutions, a dense layer over 4x4x64, scales and offsets.
    weights = 9 * (3 * 32 + 32 * 64 + 64 * 64) + 16 * 64 * 128
    scales = 2 * (32 + 64 + 64 + 128)
    counts = [np.prod(w.shape) for w in encoder.trainable_variables]
    assert sum(counts) == weights + scales
    x = images = _images(height=28)
    for name in ("standardize", "conv1", "conv2", "conv3"):
        layer = encoder.get_layer(name)
        if name == "standardize":
            x = layer(x)
            continue
        x = tf.nn.conv2d(x, layer.kernel, 2, "SAME") / np.sqrt(1 + 1e-5)
        x = tf.nn.relu(x)
    x = tf.reshape(x, [len(x), -1]) @ encoder.get_layer("dense").kernel
    x = tf.nn.relu(x / np.sqrt(1 + 1e-5))
    found = encoder(images, training=False)
    assert found.shape == (4, 128)
    np.testing.assert_allclose(found, x, rtol=1e-3, atol=1e-5)
    with pytest.raises(errors.UserError, match="of convnet 'width'"):
        encoders.build("convnet", width=2, image_shape=(28, 28, 3))


@pytest.mark.parametrize(
    "name,features",
    [
        ("resnet10", 512),
        pytest.param("resnet34", 512, marks=pytest.mark.slow),
        pytest.param("resnet152", 2048, marks=pytest.mark.slow),
    ],
)
def test_every_depth_has_the_features_of_its_block(name, features):
    with tf.variable_creator_scope(_zeros):
        encoder = encoders.build(name, image_shape=(32, 32, 3))
    assert encoder.name == name
    assert encoder.output_shape == (None, features)
    convolutions = [
        layer
        for layer in encoder.layers
        if isinstance(layer, tf.keras.layers.Conv2D)
        and "shortcut" not in layer.name
    ]
    # The name counts the final classifier, too.
    assert len(convolutions) + 1 == int(name.removeprefix("resnet"))


@pytest.mark.parametrize(
    "width,features", [(0.01, 64), (0.25, 128), (0.3, 128), (1.5, 768)]
)
def test_width_scales_features_in_multiples_of_eight(width, features):
    encoder = _small(width=width)
    assert encoder.output_shape == (None, features)
    for layer in encoder.layers:
        if isinstance(layer, tf.keras.layers.Conv2D):
            assert layer.filters % 8 == 0


@pytest.mark.parametrize(
    "size,stem,chosen,side",
    [
        (64, "auto", "cifar", 64),
        (65, "auto", "imagenet", 17),
        (64, "imagenet", "imagenet", 16),
        (96, "cifar", "cifar", 96),
    ],
)
def test_stem(size, stem, chosen, side):
    encoder = _small(stem=stem, image_shape=(size, size, 3))
    kernel = encoder.get_layer("stem_conv").kernel_size
    assert kernel == ((3, 3) if chosen == "cifar" else (7, 7))
    assert encoder.get_layer("stage1_block1_conv1").output.shape[1] == side
    assert encoder.get_layer("stage4_block1_add").output.shape[1] == -(
        -side // 8
    )


def test_resnet50_is_that_of_the_papers():
    with tf.variable_creator_scope(_zeros):
        encoder = encoders.build("resnet50")
    trainable = sum(np.prod(w.shape) for w in encoder.trainable_variables)
    assert trainable == 23_508_032
    # "v1.5": the 3x3 convolution of a bottleneck has the stride.
    strides = {
        name: encoder.get_layer(f"stage2_block1_{name}").strides
        for name in ("conv1", "conv2", "conv3", "shortcut")
    }
    assert strides == {
        "conv1": (1, 1),
        "conv2": (2, 2),
        "conv3": (1, 1),
        "shortcut": (2, 2),
    }


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_features_do_not_shift_with_the_parity_of_the_side(stem):
    images = _images(1, 33)
    even = _small(stem=stem)
    odd = _small(stem=stem, image_shape=(33, 33, 3))
    odd.set_weights(even.get_weights())
    name = "stage2_block1_conv1"
    a = _until(even, name)(images[:, :32, :32]).numpy()
    b = _until(odd, name)(images).numpy()
    # Away from the border that differs, the maps are the same.
    np.testing.assert_allclose(a[:, :2, :2], b[:, :2, :2], atol=1e-5)


def test_blocks_without_projection_start_as_the_identity():
    encoder = encoders.build("resnet18", width=0.25, image_shape=(32, 32, 3))
    before = _until(encoder, "stage2_block1_relu")(_images())
    after = _until(encoder, "stage2_block2_relu")(_images())
    np.testing.assert_array_equal(before, after)
    assert np.abs(before).max() > 0


def test_colours_are_standardised_and_other_channels_are_not():
    images = _images(channels=5)
    encoder = _small(image_shape=(32, 32, 5))
    x = _until(encoder, "standardize")(images).numpy()
    mean, std = IMAGENET_STATISTICS
    expected = (images[..., :3].astype(np.float64) - mean) / std
    np.testing.assert_allclose(x[..., :3], expected, atol=1e-5)
    np.testing.assert_array_equal(x[..., 3:], images[..., 3:])
    assert encoder(images).shape == (4, 128)
    gray = _images(channels=1)
    one = _until(_small(image_shape=(32, 32, 1)), "standardize")(gray)
    np.testing.assert_array_equal(one, gray)
    other = _small(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 1.0))
    x = _until(other, "standardize")(images[..., :3])
    expected = (images[..., :3] - (0.1, 0.2, 0.3)) / (0.5, 0.25, 1.0)
    np.testing.assert_allclose(x, expected, atol=1e-5)


def test_features_are_the_mean_of_the_last_map():
    encoder = _small()
    images = _images(2, 32, 48)
    wide = _small(image_shape=(32, 48, 3))
    last = _until(wide, "stage4_block1_relu")(images).numpy()
    assert last.shape == (2, 4, 6, 128)
    np.testing.assert_allclose(wide(images), last.mean((1, 2)), rtol=1e-5)
    assert encoder.count_params() == wide.count_params()


def test_half_precision_gives_float32_features_near_the_full_ones():
    full = _small()
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        half = _small()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    half.set_weights(full.get_weights())
    assert half.get_layer("stem_conv").compute_dtype == "bfloat16"
    a, b = full(_images()).numpy(), half(_images()).numpy()
    assert b.dtype == np.float32
    assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)


def test_names_are_stable_and_readable():
    first, second = _small(), _small()
    names = [w.name for w in first.weights]
    assert names == [w.name for w in second.weights]
    assert len(set(names)) == len(names)
    assert "stage3_block1_conv2/kernel:0" in names
    assert "stage3_block1_shortcut_norm/moving_mean:0" in names


def test_an_encoder_of_local_normalization_takes_the_same_weights():
    encoder = _small()
    encoder(_images(), training=True)
    local = _small(synchronized=False)
    local.set_weights(encoder.get_weights())
    np.testing.assert_array_equal(encoder(_images()), local(_images()))
    for model, expected in ((encoder, True), (local, False)):
        norms = [
            layer
            for layer in model.layers
            if isinstance(layer, BatchNormalization)
        ]
        assert len(norms) == 12
        assert {norm.synchronized for norm in norms} == {expected}


@pytest.mark.parametrize(
    "options,message",
    [
        ({"name": "resnet51"}, "did you mean 'resnet50'"),
        ({"stem": "imagnet"}, "did you mean imagenet"),
        ({"width": 0}, "above 0"),
        ({"image_shape": (32, 32)}, "height, width"),
        ({"image_shape": (None, None, 3)}, "height, width"),
        (
            {"stem": "imagenet", "image_shape": (224, 28, 3)},
            "28 pixels are too small for the imagenet stem",
        ),
        ({"image_shape": (7, 7, 3)}, "too small for the cifar stem"),
        ({"name": "keras:MobilNetV2"}, "did you mean 'keras:MobileNetV2'"),
        ({"name": "torch:resnet18"}, "keras:NAME"),
        ({"name": "keras:MobileNetV2", "width": 2.0}, "'width'"),
        ({"name": "keras:VGG16", "stem": "cifar"}, "'stem'"),
        (
            {"name": "keras:VGG16", "image_shape": (16, 16, 3)},
            "16 x 16 x 3.*image_size",
        ),
    ],
)
def test_what_cannot_be_built_is_told(options, message):
    options = {"name": "resnet10", "image_shape": (32, 32, 3), **options}
    with pytest.raises(errors.UserError, match=message):
        encoders.build(**options)


def test_keras_has_its_networks():
    assert set(Keras.networks) <= set(dir(tf.keras.applications))


# ---- Backbones of others ----------------------------------------------------

# Small ones, among them batch normalization inside of a composite layer, a
# network that divides its input by 255 itself, and one without normalization.
BACKBONES = [
    "keras:MobileNetV3Small",
    "keras_cv:csp_darknet_tiny",
    pytest.param("keras:EfficientNetB0", marks=pytest.mark.slow),
    pytest.param("keras:VGG16", marks=pytest.mark.slow),
    pytest.param("keras_cv:resnet18_v2", marks=pytest.mark.slow),
]


def _normalizations(model):
    kind = tf.keras.layers.BatchNormalization
    return [m for m in model.submodules if isinstance(m, kind)]


def _moved(model):
    """Gives weights and statistics values that are none of the initial ones."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        # Keras' input normalization keeps its numbers apart from its variables.
        if not (variable.trainable or "moving" in variable.name):
            continue
        factors = 1 + 0.1 * rng.random(variable.shape)
        variable.assign(variable * factors.astype(np.float32))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_other_backbones_change_nothing_but_the_normalization(
    name, monkeypatch
):
    """The oracle is the network as its library makes it."""
    with monkeypatch.context() as patch:
        patch.setattr(backbones, "replace_normalization", lambda *_: None)
        theirs = _moved(encoders.build(name, image_shape=(64, 64, 3)))
    ours = encoders.build(name, image_shape=(64, 64, 3))
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    ours.set_weights(theirs.get_weights())
    images = _images(3, 64, 64)
    np.testing.assert_array_equal(ours(images), theirs(images))
    assert {type(n) for n in _normalizations(ours)} <= {BatchNormalization}
    assert {type(n) for n in _normalizations(theirs)} <= {
        tf.keras.layers.BatchNormalization
    }
    assert len(_normalizations(ours)) == len(_normalizations(theirs))
    # Statistics of the batch, as Keras takes them.
    found, expected = (m(images, training=True) for m in (ours, theirs))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 1e-4
    # An export is of Keras' own normalization again.
    plain = exporting.plain_encoder(ours)
    assert {type(n) for n in _normalizations(plain)} <= {
        tf.keras.layers.BatchNormalization
    }
    np.testing.assert_array_equal(plain(images), ours(images))


class _Composite(tf.keras.layers.Layer):
    """A layer with normalization inside, as other libraries have them."""

    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.BatchNormalization()

    def call(self, x):
        return self.inner(x)


def test_normalization_inside_of_layers_spans_all_replicas():
    rows = np.random.default_rng(0).normal(3, 2, (8, 5)).astype(np.float32)

    def train(replicas, synchronized=True):
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)],
            tf.distribute.ReductionToOneDevice(),
        )
        with strategy.scope():
            inputs = tf.keras.Input([5])
            model = tf.keras.Model(inputs, _Composite()(inputs))
            backbones.replace_normalization(model, synchronized)
        share = 8 // replicas
        parts = strategy.experimental_distribute_values_from_function(
            lambda c: tf.constant(
                rows[c.replica_id_in_sync_group * share :][:share]
            )
        )
        step = tf.function(
            lambda x: strategy.run(lambda i: model(i, training=True), (x,))
        )
        made = strategy.experimental_local_results(step(parts))
        return np.concatenate([m.numpy() for m in made])

    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
    for replicas in (1, 2):
        np.testing.assert_allclose(train(replicas), expected, atol=1e-5)
    assert np.abs(train(2, synchronized=False) - expected).max() > 0.05


@pytest.mark.slow
def test_a_run_of_another_backbone_is_exported(monkeypatch, tmp_path):
    name = "keras:MobileNetV3Small"
    workdir = str(tmp_path / "run")
    argv = [
        "pretrain",
        "--dataset=digits",
        "--split=train[:256]",
        "--image_size=32",
        f"--encoder={name}",
        "--batch_size=128",
        "--epochs=1",
        f"--workdir={workdir}",
        *small.FLAGS,
    ]
    monkeypatch.setattr("sys.argv", ["tf_contrastive", *argv])
    assert __main__.main() == 0
    # What it did is written so that it can be repeated.
    run = checkpoints.load_run(workdir)
    assert run.config.encoder.encoder == name
    encoder = checkpoints.load_encoder(run)
    path = exporting.export(workdir, str(tmp_path / "export"))
    expected = encoder(_images()).numpy()
    found = exporting.load(path)(_images()).numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
