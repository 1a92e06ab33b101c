"""Eight virtual CPU devices for every test, set before TensorFlow starts."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]
if not tf.config.get_logical_device_configuration(_CPU):
    tf.config.set_logical_device_configuration(
        _CPU, [tf.config.LogicalDeviceConfiguration()] * 8
    )


@pytest.fixture(scope="module")
def small_encoder():
    """Where a module's tests are not about encoders; see `small`."""
    import small  # TensorFlow's devices are set by now.

    with small.encoder():
        yield
