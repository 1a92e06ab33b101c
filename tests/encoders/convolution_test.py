"""The convolution with a fast gradient equals Keras' own."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.encoders.resnet import Conv2D


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 1},
        {"kernel_size": (5, 3)},
        {"kernel_size": 3, "strides": 2},
        {"kernel_size": 2},
        {"kernel_size": 3, "dilation_rate": 2},
        {"kernel_size": 3, "padding": "valid"},
    ],
    ids=str,
)
@pytest.mark.parametrize("jit", [False, True])
def test_values_and_gradients_equal_those_of_keras(options, jit):
    options = {"padding": "same", "use_bias": False, **options}
    x = tf.random.stateless_normal([3, 7, 6, 4], [0, 1])
    ours, theirs = Conv2D(5, **options), tf.keras.layers.Conv2D(5, **options)
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


def test_it_is_saved_and_loaded_as_a_layer(tmp_path):
    model = tf.keras.Sequential([Conv2D(2, 3, padding="same")])
    model.build([None, 8, 8, 3])
    path = tmp_path / "model.keras"
    model.save(path)
    x = tf.random.stateless_normal([1, 8, 8, 3], [0, 1])
    np.testing.assert_array_equal(tf.keras.models.load_model(path)(x), model(x))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
