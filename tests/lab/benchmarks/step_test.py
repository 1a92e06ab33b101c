"""The step beside the bare passes of its encoder."""

import numpy as np
import pytest
import tensorflow as tf

from lab.benchmarks import step
from tf_contrastive import encoders

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_bare_passes_are_those_of_the_encoder(jit_compile):
    tf.keras.utils.set_random_seed(0)
    encoder = encoders.build(
        "resnet10", width=0.125, stem="cifar", image_shape=(16, 16, 3)
    )
    views = tf.random.stateless_uniform([8, 2, 16, 16, 3], [1, 2])
    data = tf.data.Dataset.from_tensors((views, tf.range(8))).repeat()
    strategy = tf.distribute.get_strategy()
    passes = step.bare(encoder, strategy, jit_compile)
    graph = passes.get_concrete_function(iter(data)).graph.as_graph_def()
    compiled = (f.attr["_XlaMustCompile"].b for f in graph.library.function)
    assert any(compiled) == jit_compile
    moving = encoder.non_trainable_variables
    before = [v.numpy() for v in moving]
    gradients = passes(iter(data))
    # Statistics move as in training, and every weight has its gradient.
    assert all(np.any(v != b) for v, b in zip(moving, before, strict=True))
    images = tf.reshape(views, [-1, 16, 16, 3])
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(encoder(images, training=True) ** 2)
    expected = tape.gradient(value, encoder.trainable_variables)
    for found, gradient in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-7)
