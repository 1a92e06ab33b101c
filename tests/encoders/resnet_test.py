"""ResNets: their parameters, widths, stems, and the fast convolution.

`published_test` compares their features with the authors' programs.
"""

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import noise

from tf_contrastive import encoders
from tf_contrastive.config.dataset import IMAGENET_STATISTICS
from tf_contrastive.encoders.resnet import Conv2D


def _small(**options):
    options = {"width": 0.25, "image_shape": (32, 32, 3), **options}
    return encoders.build("resnet10", **options)


def _slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def _until(encoder, layer):
    return tf.keras.Model(encoder.input, encoder.get_layer(layer).output)


@pytest.mark.parametrize(
    "name,width,stem,parameters",
    [
        ("resnet18", 1, "imagenet", 11_176_512),
        ("resnet18", 1, "cifar", 11_168_832),
        ("resnet34", 1, "imagenet", 21_284_672),
        ("resnet50", 1, "imagenet", 23_508_032),
        _slow("resnet50", 2, "imagenet", 93_907_072),
        _slow("resnet101", 1, "imagenet", 42_500_160),
        _slow("resnet152", 1, "imagenet", 58_143_808),
        _slow("resnet50", 4, "imagenet", 375_378_176),
        _slow("resnet200", 1, "cifar", 62_617_152),
    ],
)
def test_parameters_are_those_of_the_papers(name, width, stem, parameters):
    with tf.Graph().as_default():  # Of which no weights are drawn.
        options = {"width": width, "stem": stem, "image_shape": (64, 64, 3)}
        encoder = encoders.build(name, **options)
    counts = [np.prod(w.shape) for w in encoder.trainable_variables]
    assert sum(counts) == parameters


@pytest.mark.parametrize(
    "width,features", [(0.01, 64), (0.25, 128), (0.3, 128), (1.5, 768)]
)
def test_width_scales_features_in_multiples_of_eight(width, features):
    encoder = _small(width=width)
    assert encoder.output_shape == (None, features)
    for layer in encoder.layers:
        if isinstance(layer, tf.keras.layers.Conv2D):
            assert layer.filters % 8 == 0


def test_blocks_without_projection_start_as_the_identity():
    encoder = encoders.build("resnet18", width=0.25, image_shape=(32, 32, 3))
    before = _until(encoder, "stage2_block1_relu")(noise())
    after = _until(encoder, "stage2_block2_relu")(noise())
    np.testing.assert_array_equal(before, after)
    assert np.abs(before).max() > 0


def test_colours_are_standardised_and_other_channels_are_not():
    images = noise(channels=5)
    encoder = _small(image_shape=(32, 32, 5))
    x = _until(encoder, "standardize")(images).numpy()
    mean, std = IMAGENET_STATISTICS
    expected = (images[..., :3].astype(np.float64) - mean) / std
    np.testing.assert_allclose(x[..., :3], expected, atol=1e-5)
    np.testing.assert_array_equal(x[..., 3:], images[..., 3:])
    gray = noise(channels=1)
    one = _until(_small(image_shape=(32, 32, 1)), "standardize")(gray)
    np.testing.assert_array_equal(one, gray)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "options"),
    [*((side, {}) for side in (3, 1, (5, 3))), (3, {"strides": 2})],
    ids=str,
)
@pytest.mark.parametrize("jit", [False, True])
def test_values_and_gradients_equal_those_of_keras(side, options, jit):
    options = {"padding": "same", "use_bias": False, **options}
    x = tf.random.stateless_normal([3, 7, 6, 4], [0, 1])
    kinds = Conv2D, tf.keras.layers.Conv2D
    ours, theirs = (kind(5, side, **options) for kind in kinds)
    ours.build(x.shape)
    theirs.build(x.shape)
    theirs.set_weights(ours.get_weights())

    def run(layer):
        @tf.function(jit_compile=jit)
        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                loss = tf.reduce_sum(tf.sin(y))
            return y, *tape.gradient(loss, [x, layer.kernel])

        return step()

    for mine, expected in zip(run(ours), run(theirs), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [1, 3, (5, 3)], ids=str)
@pytest.mark.parametrize("filters", [5, 300])
@pytest.mark.parametrize("shape", [[3, 4, 2, 260], [3, None, None, 260]])
def test_gradients_in_half_precision(side, filters, shape):
    options = {"padding": "same", "use_bias": False}
    x, upstream = (
        tf.random.stateless_normal([3, 4, 2, channels], [seed, 0])
        for seed, channels in enumerate((260, filters))
    )
    results = []
    of_keras = tf.keras.layers.Conv2D
    for kind, policy, dtype in (
        (Conv2D, "mixed_bfloat16", tf.bfloat16),
        (of_keras, "mixed_bfloat16", tf.bfloat16),
        (of_keras, "float64", tf.float64),
    ):
        layer = kind(filters, side, dtype=policy, **options)
        layer.build(x.shape)
        initial = tf.random.stateless_normal(layer.kernel.shape, [2, 0])
        layer.set_weights([tf.cast(initial, layer.dtype)])

        @tf.function(input_signature=[tf.TensorSpec(shape, dtype)])
        def gradients(x, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            upstreams = tf.cast(upstream, y.dtype)
            return tape.gradient(y, [x, layer.kernel], upstreams)

        results.append(gradients(tf.cast(x, dtype)))
    for mine, other, expected in zip(*results, strict=True):
        error, usual = (
            np.abs(np.asarray(x, np.float64) - expected).max()
            for x in (mine, other)
        )
        # 8 bits, or the same operation: some CPUs lose a little more.
        assert error < np.abs(expected).max() / 100 or error == usual
