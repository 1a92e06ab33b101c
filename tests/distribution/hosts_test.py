"""Hosts that are namespaces of this machine; tests/drills has more."""

import contextlib

import processes
import pytest
import small

from tests import hosts

_WHY_NOT = hosts.why_not()

_WORKER = """
import sys
from tf_contrastive import distribution
from tf_contrastive.base import errors
from tf_contrastive.distribution import failures
failures._CHECK_EVERY_SECONDS = failures._ANSWER_SECONDS = 1.0  # Instead of 5.
strategy = distribution.strategy("auto")
try:
    with distribution.failures.reported():
        while True:
            distribution.any_worker(strategy, False)
            print("reduced", flush=True)
except errors.UserError as error:
    print(error, flush=True)
    sys.exit(error.status)
"""
# The worker may not listen yet.
_CONNECT = """
import socket, sys, time
end = time.monotonic() + 120
while True:
    try:
        socket.create_connection((sys.argv[1], 2222), 9)
        break
    except OSError:
        if time.monotonic() > end:
            raise
        time.sleep(0.5)
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
def test_hosts_start_and_two_lose_only_each_other():
    variables = small.cluster("a:2222", "b:2222", "c:2222")
    with (
        hosts.Network("a", "b", "c") as network,
        contextlib.ExitStack() as stack,
    ):
        workers = []
        for index, host in enumerate(network):
            # As Debian writes it.
            addresses = {each.name: each.address for each in network}
            host.name_hosts({**addresses, host.name: "127.0.1.1"})
            words = processes.python(_WORKER)
            worker = host.start(words, variables=variables[index])
            workers.append(stack.enter_context(worker))
        for worker in workers:
            worker.until("reduced")
        a, b, c = network
        assert {"*:2222"} == a.listening() == b.listening() == c.listening()
        with a.start(processes.python(_CONNECT, b.address)) as connect:
            assert connect.ended() == 0
        b.blackhole(c.address)
        assert [worker.ended() for worker in workers] == [42] * 3
        said = [worker.output for worker in workers]
    assert all("a worker is lost" in text.splitlines()[-1] for text in said)
    assert any("2222 does not answer this worker" in text for text in said)
