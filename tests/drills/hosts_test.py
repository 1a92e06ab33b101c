"""Runs on several hosts, and what befalls their network.

The hosts are network namespaces of this machine (tests/hosts.py): a host that
disappears ends no connection. Takes half an hour, and so runs only with
--drill_seed, which draws the moments.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import hosts, small
from tf_contrastive import checkpoints

_ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("DRILL_SEED", "0"))
_WHY_NOT = (
    hosts.why_not() if "DRILL_SEED" in os.environ else "needs --drill_seed"
)
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)

# Seconds until all workers have ended, at most; how many were seen is printed.
_LIMIT = 400
EPOCHS, STEPS = 12, 48


def _pretrain(host, workdir, *flags, workers=(), index=0):
    """Starts a worker; `workers`: addresses; host None: on this machine."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "TF_CONFIG": ""}
    if workers:
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": list(workers)}, "task": task}
        variables["TF_CONFIG"] = json.dumps(config)
    options = {
        **small.DIGITS,
        "split": "train[:252]",
        "batch_size": 60,
        "epochs": EPOCHS,
        "checkpoint_every_steps": 8,
        "workdir": workdir,
    }
    words = [sys.executable, "-m", "tests.small", "pretrain"]
    words += [f"--{name}={value}" for name, value in options.items()]
    words += flags
    return subprocess.Popen(
        host.command(*words) if host else words,
        cwd=_ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _start(network, workdir, *flags, addresses=None):
    """Starts a worker on each host; addresses: index -> those it is given."""
    right = [f"{host.name}:2222" for host in network]
    given = addresses or (lambda _: right)
    return [
        _pretrain(host, workdir, *flags, workers=given(i), index=i)
        for i, host in enumerate(network)
    ]


def _ended(processes, what):
    """Waits for the workers; returns their statuses and last lines."""
    since, seconds = time.monotonic(), {}
    while len(seconds) < len(processes):
        passed = time.monotonic() - since
        assert passed < _LIMIT, f"{what}: only {seconds} ended"
        for i, process in enumerate(processes):
            if process.poll() is not None:
                seconds.setdefault(i, round(passed, 1))
        time.sleep(0.05)
    said = [x.communicate()[1].strip().rpartition("\n")[2] for x in processes]
    statuses = [process.returncode for process in processes]
    print(f"{what}: {statuses} after {seconds} s; {said}")
    return statuses, said


def _step(workdir):
    path, _ = checkpoints.newest(f"{workdir}/checkpoints")
    return checkpoints.step_of(path) if path else 0


def _until(workdir, step, processes):
    until = time.monotonic() + _LIMIT
    while _step(workdir) < step:
        assert time.monotonic() < until
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def _weights(workdir):
    reader = tf.train.load_checkpoint(f"{workdir}/checkpoints/ckpt-{STEPS}")
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "CHECKPOINTABLE" not in name and "save_counter" not in name
    }


def _check_equal(workdir, expected):
    found = _weights(workdir)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)


@pytest.fixture(scope="module", params=[2, 3])
def expected(request, tmp_path_factory):
    """(number of workers, weights of as many on one host)."""
    workdir = tmp_path_factory.mktemp("one") / "run"
    addresses = [f"127.0.0.1:{23400 + i}" for i in range(request.param)]
    workers = [
        _pretrain(None, workdir, workers=addresses, index=i)
        for i in range(request.param)
    ]
    statuses, said = _ended(workers, "one host")
    assert statuses == [0] * request.param, said
    return request.param, _weights(workdir)


def _stop(host):
    """Freezes its processes."""
    for number in host.processes():
        os.kill(number, signal.SIGSTOP)


# What befalls a host, by name; the next one is given, too. Each ends the run on
# all hosts that are left.
_FAULTS = {
    "cable": lambda lost, _: lost.cut(),
    "power": lambda lost, _: lost.lose(),
    "restart": lambda lost, _: (lost.lose(), lost.boot()),
    "firewall": lambda lost, _: lost.slow(drop=(2222,)),
    "frozen": lambda lost, _: _stop(lost),
    # The first one reaches both.
    "route": lambda lost, other: lost.blackhole(other.address),
}


def test_hosts_compute_what_processes_do(expected, tmp_path):
    number, weights = expected
    with hosts.Network(*"abc"[:number]) as network:
        workers = _start(network, tmp_path)
        _until(tmp_path, 8, workers)
        for host in network:
            # TensorFlow's server, and nothing else.
            assert host.listening() == {"*:2222"}
        statuses, said = _ended(workers, f"{number} hosts")
    assert statuses == [0] * number, said
    _check_equal(tmp_path, weights)


@pytest.mark.parametrize("expected", [3], indirect=True)
@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_ends_all_and_the_run_goes_on(fault, expected, tmp_path):
    number, weights = expected
    generator = random.Random(f"{SEED} {fault}")
    with hosts.Network(*"abc"[:number]) as network:
        workers = _start(network, tmp_path)
        _until(tmp_path, 8, workers)
        time.sleep(generator.uniform(0, 0.5))
        lost = 1 if fault == "route" else generator.randrange(number)
        _FAULTS[fault](network[lost], network[(lost + 1) % number])
        if fault == "frozen":  # Until it is killed, it cannot end.
            for worker in workers[:lost] + workers[lost + 1 :]:
                worker.wait(timeout=_LIMIT)
            network[lost].kill()
        statuses, said = _ended(workers, f"{fault} of {network[lost].name}")
        killed = fault in ("power", "restart", "frozen")
        for i, status in enumerate(statuses):
            assert status == (-9 if killed and i == lost else 42), said
        network[lost].normal()
        network[lost].lose()
        network[lost].boot()
        statuses, said = _ended(_start(network, tmp_path), "resumed")
    assert statuses == [0] * number, said
    _check_equal(tmp_path, weights)


@pytest.mark.parametrize("expected", [3], indirect=True)
def test_a_slow_link_changes_nothing_but_the_time(expected, tmp_path):
    number, weights = expected
    with hosts.Network(*"abc"[:number]) as network:
        network[1].slow(delay=0.2, loss=0.01)
        workers = _start(network, tmp_path)
        try:
            statuses, said = _ended(workers, "slow link")
        finally:
            for host in network:
                host.kill()
    assert statuses == [0] * number, said
    _check_equal(tmp_path, weights)


# What is wrong before the run -> how it is arranged, the statuses of the three
# workers, and what the last one says.
_MISTAKES = {
    "resolved to 127.0.1.1": (
        lambda network: [
            host.name_hosts(
                {
                    x.name: "127.0.1.1" if x is host else x.address
                    for x in network
                }
            )
            for host in network
        ],
        [0, 0, 0],
        "",
    ),
    "route": (
        lambda network: network[1].blackhole(network[2].address),
        [2, 2, 2],
        "worker 1 (b:2222) cannot connect to worker 2 at c:2222",
    ),
    "taken port": (
        lambda network: (
            network[1]
            .start(
                sys.executable,
                "-c",
                "import socket, time; s = socket.create_server(('', 2222));"
                "print(flush=True); time.sleep(900)",
                stdout=subprocess.PIPE,
            )
            .stdout.readline()
        ),
        [42, 2, 42],
        "1 of 3 did not start, or ended: worker 1 (b:2222)",
    ),
    "unknown name": (
        lambda network: network[2].name_hosts({"c": network[2].address}),
        [42, 42, 42],
        "worker 0 (a:2222) did not answer this worker (",
    ),
}


@pytest.mark.parametrize("name", _MISTAKES)
def test_a_mistake_in_the_cluster_is_told(name, tmp_path):
    arrange, expected, told = _MISTAKES[name]
    with hosts.Network("a", "b", "c") as network:
        arrange(network)
        workers = _start(network, tmp_path, "--epochs=1")
        statuses, said = _ended(workers, name)
    assert statuses == expected, said
    assert told in said[2]


# Index of a worker -> its addresses, and what the last worker says.
_ADDRESSES = {
    "address": (
        lambda i: ["a:2222", "b:2222", "10.38.0.77:2222"],
        "cannot connect to worker 2 at 10.38.0.77:2222",
    ),
    "port": (
        lambda i: ["a:2222", "b:2222", f"c:222{3 if i == 2 else 2}"],
        "worker 2 has other addresses than worker 0",
    ),
    "name": (
        lambda i: ["a:2222", "b:2222", "nowhere:2222"],
        "cannot connect to worker 2 at nowhere:2222",
    ),
}


@pytest.mark.parametrize("name", _ADDRESSES)
def test_a_wrong_address_is_told(name, tmp_path):
    addresses, told = _ADDRESSES[name]
    with hosts.Network("a", "b", "c") as network:
        workers = _start(network, tmp_path, addresses=addresses)
        statuses, said = _ended(workers, f"wrong {name}")
    assert statuses == [2, 2, 2], said
    assert told in said[2]
