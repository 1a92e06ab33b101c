"""Strategies by name, and processes that compute what one does."""

import contextlib
import json
import os
import signal
import socket
import types

import numpy as np
import processes
import pytest
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
    with pytest.raises(errors.UserError, match="did you mean 'mirrored'"):
        distribution.strategy("miror")
    with pytest.raises(errors.UserError, match="TF_CONFIG is not set"):
        distribution.strategy("multiworker")
    with pytest.raises(errors.UserError, match="no TPU at 'nowhere'"):
        distribution.strategy("tpu", tpu="nowhere")
    with pytest.raises(errors.UserError, match="already started with 8"):
        distribution.strategy("mirrored", virtual_devices=16)


def _tf_config(workers):
    cluster = {"worker": [f"127.0.0.1:{i + 1}" for i in range(workers)]}
    task = {"type": "worker", "index": 0}
    return json.dumps({"cluster": cluster, "task": task})


@pytest.mark.parametrize(
    ("workers", "gpus", "options", "expected"),
    [
        (0, 0, {}, "default"),
        (0, 1, {}, "default"),
        (0, 2, {}, "mirrored"),
        (0, 0, {"virtual_devices": 2}, "mirrored"),
        (1, 0, {}, "default"),
        (1, 2, {}, "mirrored"),
        (2, 2, {}, "multiworker"),
        (0, 0, {"tpu": "pod-1"}, "tpu"),
        (2, 2, {"tpu": "pod-1"}, "tpu"),
    ],
)
def test_auto_takes_what_is_there(alone, workers, gpus, options, expected):
    if workers:
        alone.setenv("TF_CONFIG", _tf_config(workers))
    alone.setattr(
        tf.config, "list_physical_devices", lambda kind: ["device"] * gpus
    )
    alone.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, enable: None
    )
    made = []
    for name in ("_tpu_strategy", "_multiworker", "_mirrored"):
        kind = name.strip("_").removesuffix("_strategy")
        alone.setattr(strategies, name, lambda *_, k=kind: made.append(k))
    distribution.strategy("auto", **options)
    assert (made or ["default"]) == [expected]


def test_workers_that_do_not_come_up_are_told_in_time(alone):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    alone.setenv(
        "TF_CONFIG",
        json.dumps(
            {
                "cluster": {"chief": [f"127.0.0.1:{port}"], "worker": ["b:2"]},
                "task": {"type": "chief", "index": 0},
            }
        ),
    )
    with pytest.raises(errors.UserError, match=r"worker 0 \(b:2\) within"):
        distribution.strategy("multiworker", timeout=0.2)


_TPU = """
import tensorflow as tf
from tf_contrastive import train
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

calls = []

class Resolver:
    def __init__(self, tpu):
        # This raises once TensorFlow has started, as the first op does.
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        calls.append(("resolve", tpu))

def record(name, answer=None):
    def call(resolver):
        assert isinstance(resolver, Resolver)
        calls.append(name)
        if name == "strategy":
            raise SystemExit(0)
    return call

tf.distribute.cluster_resolver.TPUClusterResolver = Resolver
tf.config.experimental_connect_to_cluster = record("connect")
tf.tpu.experimental.initialize_tpu_system = record("initialize")
tf.distribute.TPUStrategy = record("strategy")
try:
    train.pretrain(
        fields.replace(
            Pretrain(), strategy="tpu", tpu="pod-1", workdir="/nowhere"
        )
    )
finally:
    print(calls)
"""


@pytest.mark.slow
def test_a_tpu_is_resolved_connected_and_initialized_before_any_op():
    done = processes.run(processes.python(_TPU))
    assert done.stdout.splitlines()[-1] == str(
        [("resolve", "pod-1"), "connect", "initialize", "strategy"]
    )


@pytest.mark.slow
def test_a_tpu_is_found_by_its_name_in_the_environment(alone):
    for named, tpu, expected in (
        ("pod-2", "", "pod-2"),
        ("pod-2", "local", "local"),
        ("", "", "local"),
    ):
        alone.setenv("TPU_NAME", named)
        with pytest.raises(errors.UserError, match=f"no TPU at '{expected}'"):
            distribution.strategy("tpu", tpu=tpu)


class _Pod(tf.distribute.TPUStrategy):
    """32 cores on 4 hosts."""

    num_replicas_in_sync = 32
    extended = types.SimpleNamespace(num_hosts=4)

    def __init__(self):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"workdir": "runs/a"},
        {"data_dir": "/data"},
        {"dataset": "folder:/images"},
    ],
)
def test_what_the_hosts_of_a_pod_cannot_reach_is_refused(options, alone):
    alone.setattr(distribution, "strategy", lambda *_, **__: _Pod())
    run = fields.replace(Pretrain(), batch_size=64, workdir="gs://bucket/run")
    (name,) = options
    with pytest.raises(errors.UserError, match=f"^{name}=.* of this TPU"):
        train.prepare(fields.replace(run, **options))


_WORKER = """
import numpy as np, tensorflow as tf
from tf_contrastive import distribution, losses
strategy = distribution.strategy("auto")
rng = np.random.default_rng(0)
z = rng.normal(size=[8, 2, 6]).astype(np.float32)
labels = np.array([0, 0, 0, 1, 2, 2, 3, 1], np.int32)
weights = rng.normal(size=[6, 4]).astype(np.float32)
with strategy.scope():
    w = tf.Variable(weights)
replicas = strategy.num_replicas_in_sync

@tf.function(autograph=False)
def run(loss):
    def step():
        share = 8 // replicas
        first = distribution.replica_id() * share
        with tf.GradientTape() as tape:
            part = tf.constant(z)[first : first + share]
            part = tf.ensure_shape(part, [share, 2, 6])
            kinds = tf.constant(labels)[first : first + share]
            kinds = tf.ensure_shape(kinds, [share])
            value = loss(tf.einsum("bvp,pq->bvq", part, w), kinds) / replicas
        gradient = tape.gradient(value, w)
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", [value, gradient])
    return strategy.run(step)

for name in ("supcon", "sincere"):
    value, gradient = run(losses.build(name))
    print("RESULT", name, distribution.is_chief(strategy), replicas,
          float(value), *np.ravel(gradient))

rank = str(int(not distribution.is_chief(strategy)))
distribution.check_same(strategy, {"seed": "7"}, {"train": "8 images"})
for given in ({"a": "=", "seed": rank}, {}), ({}, {"train": "n" + rank}):
    try:
        distribution.check_same(strategy, *given)
    except ValueError as error:
        print("DIFFERS", error)
"""


def _free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def _with_tf_config():
    """The variables of each of two workers."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in _free_ports(2)]}
    for index in (0, 1):
        task = {"type": "worker", "index": index}
        yield {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


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
@pytest.mark.parametrize("origin", [_with_tf_config, _in_slurm])
def test_two_processes_compute_what_one_does(alone, origin):
    def results(output):
        lines = [
            x.split() for x in output.splitlines() if x.startswith("RESULT")
        ]
        if lines[0][3] == "2":
            told = [x for x in output.splitlines() if x.startswith("DIFFERS")]
            assert "worker 1 has seed=1, worker 0 seed=0" in told[0]
            assert "train: worker 1 reads n1, worker 0 n0" in told[1]
        numbers = {line[1]: np.array(line[4:], float) for line in lines}
        return tuple(lines[0][2:4]), numbers

    program = processes.python(_WORKER)
    role, one = results(processes.run(program).stdout)
    assert role == ("True", "1")
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(processes.start(program, variables=variables))
            for variables in origin()
        ]
        assert [process.ended() for process in started] == [0, 0]
        workers = [results(process.output) for process in started]
    assert [w[0] for w in workers] == [("True", "2"), ("False", "2")]
    for _, numbers in workers:
        for name, expected in one.items():
            error = np.linalg.norm(numbers[name] - expected)
            assert error < 1e-5 * np.linalg.norm(expected), name


_WAITING = """
import time
from tf_contrastive import distribution
distribution.strategy("multiworker")
print("ready", flush=True)
time.sleep(300)
"""


@pytest.mark.slow
def test_workers_end_by_sigterm(alone):
    with contextlib.ExitStack() as stack:
        program = processes.python(_WAITING)
        started = [
            stack.enter_context(processes.start(program, variables=variables))
            for variables in _with_tf_config()
        ]
        for process in started:
            process.until("ready")
        for process in started:
            process.kill(signal.SIGTERM)
        assert [x.ended() for x in started] == [-signal.SIGTERM] * 2
