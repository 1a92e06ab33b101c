"""Strategies by name, and processes that compute what one does."""

import os
import signal
import types

import processes
import pytest
import small
import tensorflow as tf

from tf_contrastive import distribution, train
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution import strategies


@pytest.fixture
def alone(monkeypatch):
    """An environment that names neither workers nor a TPU."""
    for name in list(os.environ):
        if name in ("TF_CONFIG", "TPU_NAME") or name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_strategies_by_name(alone):
    assert distribution.strategy("default").num_replicas_in_sync == 1
    mirrored = distribution.strategy("auto", virtual_devices=2)
    assert mirrored.num_replicas_in_sync == 2
    assert distribution.is_chief(mirrored)
    with pytest.raises(errors.UserError, match="did you mean mirrored"):
        distribution.strategy("miror")
    with pytest.raises(errors.UserError, match="TF_CONFIG is not set"):
        distribution.strategy("multiworker")
    with pytest.raises(errors.UserError, match="already started with 8"):
        distribution.strategy("mirrored", virtual_devices=16)


@pytest.mark.parametrize(
    ("workers", "gpus", "options", "expected"),
    [
        (0, 1, {}, "default"),
        (0, 2, {}, "mirrored"),
        (0, 0, {"virtual_devices": 2}, "mirrored"),
        (1, 2, {}, "mirrored"),
        (2, 2, {}, "multiworker"),
        (0, 0, {"tpu": "pod-1"}, "tpu"),
        (2, 2, {"tpu": "pod-1"}, "tpu"),
    ],
)
def test_auto_takes_what_is_there(alone, workers, gpus, options, expected):
    if workers:
        cluster = small.cluster(count=workers)
        alone.setenv("TF_CONFIG", cluster[0]["TF_CONFIG"])
    alone.setattr(
        tf.config, "list_physical_devices", lambda kind: ["device"] * gpus
    )
    alone.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, enable: None
    )
    made = []
    for kind in ("tpu", "multiworker", "mirrored"):
        name = f"{kind}_strategy"
        alone.setattr(strategies, name, lambda *_, k=kind: made.append(k))
    distribution.strategy("auto", **options)
    assert (made or ["default"]) == [expected]


_TPU = """
import tensorflow as tf
from tf_contrastive import train
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

def resolve(tpu):
    # This raises once TensorFlow has started, as the first op does.
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    print("resolve", tpu)

tf.distribute.cluster_resolver.TPUClusterResolver = resolve
tf.config.experimental_connect_to_cluster = lambda _: print("connect")
tf.tpu.experimental.initialize_tpu_system = lambda _: print("initialize")
tf.distribute.TPUStrategy = lambda _: exit("strategy")
options = dict(strategy="tpu", tpu="pod-1", workdir="/nowhere")
train.pretrain(fields.replace(Pretrain(), **options))
"""


@pytest.mark.slow
def test_a_tpu_is_resolved_connected_and_initialized_before_any_op():
    done = processes.run(processes.python(_TPU), status=1)
    calls = ["resolve pod-1", "connect", "initialize"]
    assert done.stdout.splitlines()[-3:] == calls


class _Pod(tf.distribute.TPUStrategy):
    """32 cores on 4 hosts."""

    num_replicas_in_sync = 32
    extended = types.SimpleNamespace(num_hosts=4)

    def __init__(self):
        pass


@pytest.mark.parametrize("options", [{"workdir": "a"}, {"data_dir": "/data"}])
def test_what_the_hosts_of_a_pod_cannot_reach_is_refused(options, alone):
    alone.setattr(distribution, "strategy", lambda *_, **__: _Pod())
    run = fields.replace(Pretrain(), batch_size=64, workdir="gs://bucket/run")
    (name,) = options
    with pytest.raises(errors.UserError, match=f"^{name}=.* of this TPU"):
        train.prepare(fields.replace(run, **options))


_WORKER = """
import signal
from tf_contrastive import distribution
strategy = distribution.strategy("auto")
chief = distribution.is_chief(strategy)
print("CHIEF" if chief else "OTHER", "of", strategy.num_replicas_in_sync)
rank, none = str(int(not chief)), dict()
distribution.check_same(strategy, {"seed": "7"}, {"train": "8 images"})
for given in ({"a": "=", "seed": rank}, none), (none, {"train": "n" + rank}):
    try:
        distribution.check_same(strategy, *given)
    except ValueError as error:
        print("DIFFERS", error)
print("ready", flush=True)
signal.pause()
"""


def _in_slurm():
    """The variables of each of two tasks on one node without GPUs."""
    for rank in (0, 1):
        yield {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": "0",
            "SLURM_LOCALID": str(rank),
        }


@pytest.mark.slow
@pytest.mark.parametrize("origin", [small.cluster, _in_slurm])
def test_two_processes_compare_what_they_have_and_end_by_sigterm(alone, origin):
    """What they compute is tested by a drill."""
    words = processes.python(_WORKER)
    with processes.start_each(words, origin()) as workers:
        for worker, role in zip(workers, ("CHIEF", "OTHER"), strict=True):
            worker.until("ready")
            assert f"{role} of 2" in worker.output
            differs = "DIFFERS worker 1 has seed=1, worker 0 seed=0"
            assert differs in worker.output
            differs = "DIFFERS train: worker 1 reads n1, worker 0 n0"
            assert differs in worker.output
        # TensorFlow's server would ignore it.
        for worker in workers:
            worker.kill(signal.SIGTERM)
        assert [x.ended() for x in workers] == [-signal.SIGTERM] * 2
