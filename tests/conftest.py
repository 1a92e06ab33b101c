"""Settings of all tests: eight virtual CPU devices, plain log lines.

Under Bazel this is also the program that runs a test file.
"""

import atexit
import functools
import gc
import os
import shutil
import signal
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Processes of tests share the cores; waiting threads of BLAS would waste them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Shells start background jobs with Ctrl-C ignored; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests of missing datasets must not find any; `image_helpers.PREPARED` does.
# Processes that this one starts, as for `-n`, inherit the new name.
if prepared := os.environ.pop("TFDS_DATA_DIR", ""):
    os.environ["TESTS_TFDS_DATA_DIR"] = os.path.abspath(prepared)

# What runs of the user remember of files, tests must not know.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tf_contrastive_cache_")

import pytest
import tensorflow as tf

from tf_contrastive.base import terminal

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], True)

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


@pytest.fixture(autouse=True)
def _warnings_of_their_own():
    """A command writes each warning once; each test is one."""
    terminal.configure("normal")


@pytest.fixture(scope="module")
def small_encoder():
    """Makes "resnet10" smaller in all tests of a module; see `small`."""
    import small  # Imports TensorFlow's devices, which are configured by now.

    with small.encoder():
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A small mnist, cifar10, imagenet2012 and its 1 %, prepared."""
    import dataset_helpers

    root = tmp_path_factory.mktemp("prepared")
    dataset_helpers.prepare_all(root)
    return str(root)


@pytest.fixture(scope="session")
def opened(data_dir):
    """(name, split) -> source, of the prepared ones; each opened once."""
    from tf_contrastive import datasets

    @functools.cache
    def open_one(name, split="train"):
        return datasets.source(name, split, data_dir=data_dir)

    return open_one


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_handlecrashitem(crashitem, report, sched):
    """Lets `--reruns` hold for a test whose process has ended, too.

    `--dist loadfile` repeats it anyway, but counts it as failed.
    """
    if sched.config.getoption("reruns", 0) and crashitem not in _crashed:
        _crashed.add(crashitem)
        report.outcome = "rerun"


_crashed: set[str] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile`, files that a lost process finished are done."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def remove_node(self, node):
            # With a finished file a worker gets no test, and waits without end.
            work = self.assigned_work[node]
            unfinished = {f: t for f, t in work.items() if not all(t.values())}
            self.assigned_work[node] = unfinished
            return super().remove_node(node)

    return Scheduling(config, log)


def pytest_addoption(parser):
    """Drills read these as DRILL_SEED and DRILL_KILLS."""
    group = parser.getgroup("drills", "kills and damages at random")
    group.addoption("--drill_seed", type=int, help="seed; default: 0")
    group.addoption("--drill_kills", type=int, help="kills of each drill")


def pytest_configure(config):
    for name in ("drill_seed", "drill_kills"):
        value = config.getoption(name)
        if value is not None:
            os.environ[name.upper()] = str(value)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Drills are slow. Early files start first, then large ones."""
    for item in items:
        if item.path.parent.name == "drills":
            for marker in ("slow", "drill", "early"):
                item.add_marker(marker)
    items.sort(
        key=lambda item: (
            item.get_closest_marker("early") is None,
            -item.path.stat().st_size,
        )
    )


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
