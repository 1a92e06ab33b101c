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


@pytest.mark.parametrize("side", [1, 3, (5, 3)], ids=str)
@pytest.mark.parametrize(
    ("policy", "channels", "filters", "strides", "sizes", "jit"),
    [
        *(
            ("mixed_bfloat16", 260, filters, 1, sizes, False)
            for filters in (5, 300)
            for sizes in ([7, 4], [None, None])
        ),
        *(
            _slow("float32", 4, 5, strides, [7, 4], jit)
            for strides in (1, 2)
            for jit in (False, True)
        ),
    ],
)
def test_values_and_gradients_equal_those_of_keras(
    policy, channels, filters, strides, sizes, jit, side
):
    normal = tf.random.stateless_normal
    x = normal([3, 7, 4, channels], [0, 0])
    upstream = normal([3, -(-7 // strides), -(-4 // strides), filters], [1, 0])
    results = []
    for kind, dtype, compiled in (
        (Conv2D, policy, jit),
        (tf.keras.layers.Conv2D, "float64", False),
    ):
        layer = kind(
            filters, side, strides, "same", use_bias=False, dtype=dtype
        )
        layer.build(x.shape)
        initial = normal(layer.kernel.shape, [2, 0])
        layer.set_weights([tf.cast(initial, layer.dtype)])
        spec = tf.TensorSpec([3, *sizes, channels], layer.compute_dtype)

        @tf.function(input_signature=[spec], jit_compile=compiled)
        def run(x, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            upstreams = tf.cast(upstream, y.dtype)
            return y, *tape.gradient(y, [x, layer.kernel], upstreams)

        results.append(run(tf.cast(x, layer.compute_dtype)))
    tolerance = 1e-5 if policy == "float32" else 1e-2  # 8 bits.
    for mine, expected in zip(*results, strict=True):
        error = np.abs(np.asarray(mine, np.float64) - expected).max()
        assert error < tolerance * np.abs(expected).max()
