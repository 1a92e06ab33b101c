"""Clusters from TF_CONFIG and SLURM, their mistakes, and coming up together."""

import concurrent.futures
import json
import socket

import processes
import pytest
import small

from tf_contrastive.base import errors
from tf_contrastive.distribution import cluster, failures, rendezvous


def _tf_config(task="worker", index=0, **jobs):
    jobs = jobs or {"worker": ["a:2222", "b:2222"]}
    text = json.dumps({"cluster": jobs, "task": {"type": task, "index": index}})
    return {"TF_CONFIG": text}


def _step(**variables):
    """The variables of a step of job 7 on four nodes, as srun sets them."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_NODELIST": "gpu[001-003],b2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    } | {f"SLURM_{k}": v for k, v in variables.items()}


# ---- TF_CONFIG ---------------------------------------------------------------


def test_ranks_count_the_chief_first():
    jobs = {"worker": ["w0:1", "w1:1"], "chief": ["c:1"]}
    found = [
        cluster.from_environment(_tf_config(task, index, **jobs))
        for task, index in (("chief", 0), ("worker", 0), ("worker", "1"))
    ]
    assert [c.rank for c in found] == [0, 1, 2]
    tasks = (("chief 0", "c:1"), ("worker 0", "w0:1"), ("worker 1", "w1:1"))
    for c in found:
        assert c.tasks == tasks


# What a worker says: the first one of a run that is not there.
@pytest.mark.parametrize(
    ("index", "told"), [(0, "absent"), (1, "process 2 of 2")]
)
@pytest.mark.parametrize("words", ["embed --output=e.npz", "export", "explore"])
def test_what_is_not_shared_is_done_by_the_first(
    words, index, told, monkeypatch, capsys
):
    monkeypatch.setenv("TF_CONFIG", _tf_config(index=index)["TF_CONFIG"])
    assert small.command(*words.split(), "--workdir=absent") == 2
    assert told in capsys.readouterr().err


def test_no_cluster_is_none():
    for environment in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}):
        assert cluster.from_environment(environment) is None


@pytest.mark.parametrize(
    "text",
    [
        "{'cluster': 1}",
        '{"cluster": {"worker": "a:1"}}',
        '{"cluster": {"worker": [1]}}',
        '{"cluster": {"worker": ["a:1"]}}',
        *(
            _tf_config(task, index, **jobs)["TF_CONFIG"]
            for task, index, jobs in (
                ("chief", 0, {"chief": ["a:1", "b:1"]}),
                ("worker", 0, {"worker": ["a:1"], "ps": ["b:1"]}),
                ("worker", 0, {"worker": ["a"]}),
                ("worker", 0, {"worker": ["a:0"]}),
                ("worker", 0, {"worker": ["a:65536"]}),
                ("worker", 0, {"worker": ["fd38::1:1"]}),
                ("worker", 0, {"worker": ["a:1", "a:1"]}),
                ("worker", 0, {"worker": ["a:1"], "chief": ["a:1"]}),
                ("chief", 0, {}),
                ("worker", 2, {}),
                ("worker", -1, {}),
                ("worker", 0.5, {}),
            )
        ),
    ],
)
def test_a_malformed_tf_config_is_refused(text):
    with pytest.raises(errors.UserError, match="TF_CONFIG="):
        cluster.from_environment({"TF_CONFIG": text})


# ---- SLURM -------------------------------------------------------------------


def test_every_task_of_a_step_sees_the_same_cluster():
    found = [
        cluster.from_environment(_step(PROCID=str(rank))) for rank in range(7)
    ]
    assert [c.rank for c in found] == list(range(7))
    assert len({c.tasks for c in found}) == 1
    addresses = [address for _, address in found[0].tasks]
    assert len(set(addresses)) == 7
    hosts = [address.split(":")[0] for address in addresses]
    assert hosts == ["gpu001"] * 2 + ["gpu002"] * 2 + ["gpu003"] * 2 + ["b2"]
    ports = [int(address.split(":")[1]) for address in addresses]
    assert all(1024 < port < 32768 for port in ports)
    assert ports[1] == ports[0] + 1 and ports[6] == ports[0]


def test_jobs_and_steps_of_one_node_have_ports_of_their_own():
    seen = set()
    for job in range(50):
        for step in (0, 1, 2):
            ids = {"JOB_ID": str(1234567 + job), "STEP_ID": str(step)}
            seen |= {*cluster.from_environment(_step(**ids)).tasks}
    assert len(seen) == 50 * 3 * 7


def test_the_script_of_a_batch_job_is_no_worker():
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_NODELIST": "n[1-8]",
    }
    assert cluster.from_environment(environment) is None
    with pytest.raises(errors.UserError, match="launch/slurm or srun"):
        cluster.require(environment)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"STEP_NUM_TASKS": "8"}, "of 8, but 7 on 4 of 4"),
        ({"STEP_NODELIST": "n1"}, "on 4 of 1 node(s)"),
        ({"STEP_NODELIST": "n[1-"}, "n[1-"),
        ({"STEP_TASKS_PER_NODE": "2(x"}, "2(x"),
        ({"PROCID": "7"}, "task 7 of 7"),
        ({"PROCID": "x"}, "'x'"),
        ({"STEP_NUM_TASKS": ""}, "''"),
        # As --distribution=cyclic would place them.
        ({"PROCID": "1", "NODEID": "1", "LOCALID": "0"}, "distribution=block"),
    ],
)
def test_variables_that_contradict_each_other_are_told(changed, told):
    with pytest.raises(errors.UserError) as error:
        cluster.from_environment(_step(**changed))
    assert told in str(error.value) and "srun" in str(error.value)


# ---- Coming up together ------------------------------------------------------


def _local(count):
    """Clusters of `count` tasks at free ports of this machine, one for each."""
    variables = small.cluster(count=count)
    return [cluster.from_environment(each) for each in variables]


def _outcome(own, timeout=20):
    """What `wait_for_all` comes to: None, or the error's text."""
    try:
        return rendezvous.wait_for_all(own, timeout)
    except errors.UserError as error:
        return str(error)


_POOL = concurrent.futures.ThreadPoolExecutor(8)


def _start(own, timeout=20):
    """Waits in a thread, at its port; returns the future of the outcome."""
    future = _POOL.submit(_outcome, own, timeout)
    processes.wait_for(lambda: failures.answers(*own.places[0]))
    return future


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_go_on_once_all_are_up(count):
    clusters = _local(count)
    # In any order, and again: the ports are free afterwards.
    for order in (clusters, clusters[::-1]):
        assert [*_POOL.map(_outcome, order)] == [None] * count


def test_an_absent_worker_is_named_to_all_in_time():
    first, second, third = _local(3)
    address = third.tasks[2][1]
    told = _start(first, timeout=3)
    # Its time ends before that of the first one, which decides.
    told_second = _outcome(second, timeout=1)
    absent = f"1 of 3 did not start, or ended: worker 2 ({address})"
    assert absent in told.result(20)
    assert absent in told_second


def test_an_absent_first_worker_is_named(monkeypatch):
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.1)
    first, second = _local(2)
    address = first.tasks[0][1]
    unanswered = f"worker 0 ({address}) did not answer"
    assert unanswered in _outcome(second, timeout=0.5)
    # Nor does another program that listens there.
    with socket.create_server(first.places[0]) as server:
        closed = _POOL.submit(lambda: server.accept()[0].close())
        assert unanswered in _outcome(second, timeout=0.5)
        closed.result(20)


@pytest.mark.parametrize(
    ("differing", "text"),
    [
        # It reports, and listens nowhere.
        ({}, "worker 1 runs, but worker 0 cannot connect to 127.0.0.1"),
        ({"TensorFlow": "1.0"}, "worker 1 has TensorFlow 1.0, worker 0"),
    ],
)
def test_a_worker_that_cannot_take_part_is_named(differing, text):
    first, second = _local(2)
    waiting = _start(first)
    facts = rendezvous.shared_facts(second) | differing
    with _connected(second, [1, facts]) as connection:
        told = waiting.result(20)
        status, reason = json.load(connection.makefile())
    assert text in told
    assert (status, reason) == (2, told)


def test_a_worker_that_ended_is_absent_and_one_that_is_repeated_counts_once():
    first, second, third = _local(3)
    told = _start(first, timeout=3)
    for own in (second, second, third):
        _connected(own).close()
    kept = [_connected(third), _connected(third)]
    absent = f"worker 1 ({second.tasks[1][1]})"
    assert f"1 of 3 did not start, or ended: {absent}" in told.result(20)
    for connection in kept:
        connection.close()


def _connected(own, hello=None):
    """A connection to the first worker, on which one reports."""
    connection = socket.create_connection(own.places[0])
    words = json.dumps(hello or [own.rank, rendezvous.shared_facts(own)])
    connection.sendall(words.encode())
    return connection


def test_a_taken_port_is_told():
    first, _ = _local(2)
    port = int(first.tasks[0][1].rpartition(":")[2])
    with socket.create_server(("", port)):
        told = _outcome(first)
    assert f"cannot listen at 127.0.0.1:{port}" in told


def test_strangers_at_the_port_are_no_workers():
    first, second = _local(2)
    told = _start(first)
    hellos = [0], [7, {}], [0, {}], [1, 2], [True, {}], {"a": 1, "b": 2}
    strangers = [_connected(first, hello) for hello in hellos]
    assert _outcome(second) is None and told.result(20) is None
    for connection in strangers:
        connection.close()
