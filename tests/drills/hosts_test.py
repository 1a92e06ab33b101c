"""Runs on several hosts, and what befalls their network.

The hosts are network namespaces of this machine (tests/hosts.py): a host that
disappears ends no connection. Takes an hour, and so runs only with
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
import PIL.Image
import psutil
import pytest
import saved_run
import tensorflow as tf
from image_helpers import patches

from tests import hosts, small
from tf_contrastive import checkpoints

_ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("DRILL_SEED", "0"))
_WHY_NOT = (
    hosts.why_not() if "DRILL_SEED" in os.environ else "needs --drill_seed"
)
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)

# Seconds until all workers have ended, at most; how many were seen is printed.
_LIMIT = 600
EPOCHS, STEPS = 6, 24
# Until workers that wait for each other give up; 300 by default.
_WORKER_TIMEOUT = 100


def _command(host, *words, workers=(), index=0):
    """Starts a command; `workers`: addresses; host None: on this machine."""
    variables = {
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CONFIG": "",
        "WORKER_TIMEOUT": str(_WORKER_TIMEOUT),
    }
    if workers:
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": list(workers)}, "task": task}
        variables["TF_CONFIG"] = json.dumps(config)
    words = [sys.executable, "-m", *words]
    return subprocess.Popen(
        host.command(*words) if host else words,
        cwd=_ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _pretrain(host, workdir, *flags, **place):
    """Starts a worker; the place is that of `_command`."""
    options = {
        **small.DIGITS,
        "split": "train[:252]",
        "batch_size": 60,
        "epochs": EPOCHS,
        "checkpoint_every_steps": 8,
        "workdir": workdir,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return _command(host, "tests.small", "pretrain", *words, *flags, **place)


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
        # TensorFlow's server, and nothing else.
        assert network[0].open_ports(network[1]) == {2222}
        assert network[1].open_ports(network[0]) == {2222}
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
        network[1].slow(delay=0.01, loss=0.01)
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
        [42, 42, 42],
        "a worker is lost",
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
        "worker 2 runs, but worker 0 cannot connect to 10.38.0.77:2222",
    ),
    "port": (
        lambda i: ["a:2222", "b:2222", f"c:222{3 if i == 2 else 2}"],
        "worker 2 has the addresses",
    ),
    "name": (
        lambda i: ["a:2222", "b:2222", "nowhere:2222"],
        "worker 2 runs, but worker 0 cannot connect to nowhere:2222",
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


# ---- Other commands ----------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder, branches=True)
    return folder


def test_evaluate_scores_as_one_process_does(run, tmp_path):
    words = ("tf_contrastive", "evaluate", f"--workdir={run}")
    words += ("--protocols=knn,linear", "--scale=cpu", "--nountrained")
    one = _command(None, *words, f"--output_dir={tmp_path}/one")
    statuses, said = _ended([one], "evaluate by one process")
    assert statuses == [0], said
    with hosts.Network("a", "b") as network:
        workers = [
            _command(
                host,
                *(*words, f"--output_dir={tmp_path}/two"),
                workers=["a:2222", "b:2222"],
                index=index,
            )
            for index, host in enumerate(network)
        ]
        statuses, said = _ended(workers, "evaluate on 2 hosts")
    assert statuses == [0, 0], said
    expected, found = (
        [
            (row["protocol"], row["top1"])
            for row in json.loads(
                (tmp_path / name / "evaluation.json").read_text()
            )["results"]
        ]
        for name in ("one", "two")
    )
    print(expected)
    assert found == expected


def _serve(host, port, *flags):
    """Starts a server of the data service, and waits until it listens."""
    name = "tf_contrastive.datasets.data_service_server"
    words = (sys.executable, "-m", name, f"--port={port}", *flags)
    host.start(*words, cwd=_ROOT, stdout=subprocess.DEVNULL)
    until = time.monotonic() + _LIMIT
    while f"*:{port}" not in host.listening():
        assert time.monotonic() < until
        time.sleep(0.1)


def _serve_views(host):
    _serve(host, 5051, "--dispatcher=d:5050", f"--host={host.name}")


# What befalls the dispatcher's host and a worker's -> status of the run.
_SERVICE_FAULTS = {
    "nothing": (lambda d, e: None, 0),
    "restart of a worker": (
        lambda d, e: (e.lose(), e.boot(), _serve_views(e)),
        0,
    ),
    "cable of the dispatcher": (lambda d, e: d.cut(), 42),
    "power of a worker": (lambda d, e: e.lose(), 42),
}


@pytest.mark.parametrize("fault", _SERVICE_FAULTS)
def test_the_data_service_runs_on_other_hosts(fault, tmp_path):
    happens, expected = _SERVICE_FAULTS[fault]
    with hosts.Network("t", "d", "e", "f") as (t, d, e, f):
        _serve(d, 5050)
        _serve_views(e)
        _serve_views(f)
        flags = ("--data_service=grpc://d:5050", "--epochs=20")
        trainer = _pretrain(t, tmp_path, *flags)
        _until(tmp_path, 8, [trainer])
        happens(d, e)
        if fault == "nothing":
            assert t.open_ports(d) == {5050}
            assert t.open_ports(e) == {5051}
            assert d.open_ports(t) == set()
        statuses, said = _ended([trainer], f"data service, {fault}")
    assert statuses == [expected], said
    assert (_step(tmp_path) == 80) == (expected == 0)


# Beam's own pool listens at localhost only.
_POOL = """
import concurrent.futures, time
import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc as api
from apache_beam.runners.worker import worker_pool_main
server = grpc.server(concurrent.futures.ThreadPoolExecutor())
api.add_BeamFnExternalWorkerPoolServicer_to_server(
    worker_pool_main.BeamFnExternalWorkerPoolServicer(), server
)
server.add_insecure_port("[::]:50000")
server.start()
time.sleep(900)
"""


def test_beam_embeds_on_another_host(run, tmp_path):
    pytest.importorskip("apache_beam")
    (tmp_path / "images").mkdir()
    for number, image in enumerate(patches(60, 64)):
        PIL.Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    words = ("tf_contrastive", "embed", f"--workdir={run}", "--split=train")
    words += (f"--input=folder:{tmp_path}/images", "--shard_size=20")
    words += ("--embedding_batch_size=20",)
    options = "--job_endpoint=embed --environment_type=EXTERNAL"
    options += " --environment_config=b:50000"
    beam = ("--runner=PortableRunner", f"--beam_options={options}")
    one = _command(None, *words, f"--output={tmp_path}/one/e.npz")
    statuses, said = _ended([one], "embed by one process")
    assert statuses == [0], said
    with hosts.Network("a", "b") as (a, b):
        pool = b.start(sys.executable, "-c", _POOL, cwd=_ROOT)
        until = time.monotonic() + _LIMIT
        while b.listening() != {"*:50000"}:
            assert time.monotonic() < until
            time.sleep(0.1)
        before = _seconds(pool.pid)
        two = _command(a, *words, *beam, f"--output={tmp_path}/two/e.npz")
        statuses, said = _ended([two], "Beam, with a worker on another host")
        print(f"of which {_seconds(pool.pid) - before:.1f} s by that host")
        assert _seconds(pool.pid) > before + 1
    assert statuses == [0], said
    names = sorted(os.listdir(tmp_path / "one"))
    assert len(names) == 4
    assert sorted(os.listdir(tmp_path / "two")) == names
    for name in names:
        one, two = (tmp_path / folder / name for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), name


def _seconds(number):
    """Processor time of a process."""
    times = psutil.Process(number).cpu_times()
    return times.user + times.system
