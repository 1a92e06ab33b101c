"""Runs on several hosts, and faults of their network.

The hosts are network namespaces of this machine (tests/hosts.py): a host that
disappears ends no connection. A fault takes minutes: without --drill_seed,
which draws the moments, only one is tried, which no other test can make.
"""

import os
import random
import signal
import time

import processes
import pytest
import small

from tests import hosts

SEED = int(os.environ.get("DRILL_SEED", "0"))
_WHY_NOT = hosts.why_not()
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)

STEPS = 24
NAMES = "abc"


def _started(network, workdir, addresses=None):
    """Starts a worker on each host; None is this machine."""
    words = small.words(
        **{"split": "train[:252]", "batch_size": 60, "epochs": 6},
        **{"checkpoint_every_steps": 8, "workdir": workdir},
    )
    # Until workers that wait for each other give up; 300 by default.
    more = {"WORKER_TIMEOUT": "100", "CUDA_VISIBLE_DEVICES": ""}
    cluster = small.cluster(*(addresses or [f"{name}:2222" for name in NAMES]))
    return processes.start_each(
        processes.small("pretrain", *words),
        [variables | more for variables in cluster],
        [host.start if host else processes.start for host in network],
    )


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
    with _started(3 * [None], workdir, addresses) as run:
        assert _ended(run) == [0, 0, 0]
    return small.weights(workdir, STEPS)


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


@pytest.mark.parametrize(
    "fault", _FAULTS if "DRILL_SEED" in os.environ else ["route"]
)
def test_a_fault_ends_all_and_the_run_goes_on(fault, expected, tmp_path):
    generator = random.Random(f"{SEED} {fault}")
    with hosts.Network(*NAMES) as network:
        with _started(network, tmp_path) as workers:
            processes.wait_for(lambda: small.newest(tmp_path) >= 8, *workers)
            # TensorFlow's server, and nothing else.
            assert all(host.listening() == {"*:2222"} for host in network)
            time.sleep(generator.uniform(0, 0.5))
            lost = 1 if fault == "route" else generator.randrange(3)
            _FAULTS[fault](network[lost], network[(lost + 1) % 3])
            statuses = [w.ended() for w in workers if w is not workers[lost]]
            assert statuses == [42, 42]
            if fault in ("cable", "route"):  # It is left alone.
                assert workers[lost].ended() == 42
            said = [w.output for w in workers if w is not workers[lost]]
            assert all("a worker is lost" in text for text in said)
            network[lost].kill()  # One that is frozen cannot end.
        network[lost].lose()
        network[lost].boot()
        with _started(network, tmp_path) as workers:
            assert _ended(workers) == [0, 0, 0]
    small.check_equal(expected, small.weights(tmp_path, STEPS))
