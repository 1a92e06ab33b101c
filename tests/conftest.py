"""Settings of all tests: eight virtual CPU devices, plain log lines.

Under Bazel this is also the program that runs a test file.
"""

import gc
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Processes of tests share the cores; waiting threads of BLAS would waste them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import tensorflow as tf

from tf_contrastive import terminal

_CPU = tf.config.list_physical_devices("CPU")[0]
if not tf.config.get_logical_device_configuration(_CPU):
    tf.config.set_logical_device_configuration(
        _CPU, [tf.config.LogicalDeviceConfiguration()] * 8
    )

terminal.configure("normal")

# TensorFlow's modules and graphs are many objects that rarely become garbage:
# with the usual thresholds, a tenth of the time is spent in looking for it.
gc.freeze()
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="module")
def small_encoder():
    """Makes "resnet10" smaller in all tests of a module; see `small`."""
    import small  # Imports TensorFlow's devices, which are configured by now.

    with small.encoder():
        yield


def pytest_collection_modifyitems(items):
    """Starts the drills and the largest files, which take longest, first."""
    items.sort(
        key=lambda item: (
            item.path.parent.name != "drills",
            -item.path.stat().st_size,
        )
    )


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
