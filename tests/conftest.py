"""Eight virtual CPU devices for every test, set before TensorFlow starts."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from tf_contrastive import terminal

_CPU = tf.config.list_physical_devices("CPU")[0]
if not tf.config.get_logical_device_configuration(_CPU):
    tf.config.set_logical_device_configuration(
        _CPU, [tf.config.LogicalDeviceConfiguration()] * 8
    )


terminal.configure("normal")


@pytest.fixture(scope="module")
def small_encoder():
    """Where a module's tests are not about encoders; see `small`."""
    import small  # TensorFlow's devices are set by now.

    with small.encoder():
        yield


@pytest.fixture(scope="module", autouse=True)
def forget_graphs():
    """Frees the graphs of a module once its tests are over.

    TensorFlow keeps every graph with a `tf.custom_gradient` in it, by the name
    that it registers the gradient under: gigabytes, over all modules.
    """
    yield
    known = ops.gradient_registry._registry
    for name in [n for n in known if n.startswith("CustomGradient-")]:
        del known[name]
    gc.collect()
    # What is left stays: the collector need not walk through it ever again.
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Puts the longest first: no process is left with one at the end."""
    items.sort(key=lambda item: item.path.parent.name != "drills")
