"""Runs on several hosts, and faults of their network.

The hosts are network namespaces of this machine (tests/hosts.py): a host that
disappears ends no connection. Each fault takes minutes, and so these tests run
only with --drill_seed, which draws the moments.
"""

import contextlib
import os
import random
import signal
import time

import processes
import pytest
import small

from tests import hosts

SEED = int(os.environ.get("DRILL_SEED", "0"))
_WHY_NOT = (
    hosts.why_not() if "DRILL_SEED" in os.environ else "needs --drill_seed"
)
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)

STEPS = 24
NAMES = "abc"


@contextlib.contextmanager
def _started(network, workdir, *flags, addresses=None):
    """Starts a worker on each host.

    Args:
      network: the hosts; None is this machine.
      workdir: the run's folder.
      *flags: further flags of `pretrain`.
      addresses: index -> the workers' addresses that the worker is given.
    """
    right = [f"{name}:2222" for name in NAMES]
    words = small.words(
        **{"split": "train[:252]", "batch_size": 60, "epochs": 6},
        **{"checkpoint_every_steps": 8, "workdir": workdir},
    )
    words = processes.small("pretrain", *words, *flags)
    # Until workers that wait for each other give up; 300 by default.
    common = {"WORKER_TIMEOUT": "100", "CUDA_VISIBLE_DEVICES": ""}
    clusters = [
        small.cluster(*(addresses(i) if addresses else right))[i] | common
        for i in range(len(network))
    ]
    starts = [host.start if host else processes.start for host in network]
    with processes.start_each(words, clusters, starts) as workers:
        yield workers


def _ended(workers):
    """Waits for the workers; returns their statuses."""
    statuses = [worker.ended() for worker in workers]
    for worker in workers:
        print(worker.output.strip().rpartition("\n")[2])
    return statuses


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of as many workers on one host."""
    workdir = tmp_path_factory.mktemp("one") / "run"
    addresses = [f"127.0.0.1:{23400 + i}" for i in range(3)]
    with _started(3 * [None], workdir, addresses=lambda _: addresses) as run:
        assert _ended(run) == [0, 0, 0]
    return small.weights(workdir, STEPS)


def test_hosts_compute_what_processes_do(expected, tmp_path):
    with (
        hosts.Network(*NAMES) as network,
        _started(network, tmp_path) as workers,
    ):
        processes.wait_for(lambda: small.newest(tmp_path) >= 8, *workers)
        # TensorFlow's server, and nothing else.
        assert network[0].open_ports(network[1]) == {2222}
        assert network[1].open_ports(network[0]) == {2222}
        assert _ended(workers) == [0, 0, 0]
    small.check_equal(expected, small.weights(tmp_path, STEPS))


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
    "frozen": lambda lost, _: _stop(lost),
    # The first one reaches both.
    "route": lambda lost, other: lost.blackhole(other.address),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_ends_all_and_the_run_goes_on(fault, expected, tmp_path):
    generator = random.Random(f"{SEED} {fault}")
    with hosts.Network(*NAMES) as network:
        with _started(network, tmp_path) as workers:
            processes.wait_for(lambda: small.newest(tmp_path) >= 8, *workers)
            time.sleep(generator.uniform(0, 0.5))
            lost = 1 if fault == "route" else generator.randrange(3)
            _FAULTS[fault](network[lost], network[(lost + 1) % 3])
            statuses = [w.ended() for w in workers if w is not workers[lost]]
            assert statuses == [42, 42]
            if fault in ("cable", "route"):  # It is left alone.
                assert workers[lost].ended() == 42
            network[lost].kill()  # One that is frozen cannot end.
        network[lost].lose()
        network[lost].boot()
        with _started(network, tmp_path) as workers:
            assert _ended(workers) == [0, 0, 0]
    small.check_equal(expected, small.weights(tmp_path, STEPS))


# Index of a worker -> the addresses that it is given.
_ADDRESSES = {
    "address": lambda i: ["a:2222", "b:2222", "10.38.0.77:2222"],
    "port": lambda i: ["a:2222", "b:2222", f"c:222{3 if i == 2 else 2}"],
    "name": lambda i: ["a:2222", "b:2222", "nowhere:2222"],
}


@pytest.mark.parametrize("name", _ADDRESSES)
def test_a_wrong_address_is_reported(name, tmp_path):
    with (
        hosts.Network(*NAMES) as network,
        _started(network, tmp_path, addresses=_ADDRESSES[name]) as workers,
    ):
        assert _ended(workers) == [2, 2, 2]
        assert "worker 2" in workers[2].output
