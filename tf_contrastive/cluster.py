"""Which processes train together: from `TF_CONFIG`, or from SLURM.

Layer 1. No TensorFlow: whatever is wrong with a cluster is told in one line
before TensorFlow starts, which would wait for a missing worker for ever.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tf_contrastive import config, terminal

# Jobs that train together, in the order of their ranks.
_JOBS = ("chief", "worker")
_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host1:2222", "host2:2222"]},'
    ' "task": {"type": "worker", "index": 0}}\''
)
# Ports of SLURM jobs: below those that Linux gives to outgoing connections.
_FIRST_PORT, _NUM_PORTS, _PORTS_PER_STEP = 16384, 16384, 16
# SLURM itself knows no more hosts in a range.
_MAX_HOSTS = 65536
# What the first task answers to the others.
_GO, _GIVE_UP = b"go\n", b"give up\n"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together, and which of them this one is.

    Attributes:
      jobs: "chief" (at most one) and "worker" -> "host:port" of each task.
      task_type: the job of this process.
      index: its position in that job.
      origin: what said so, for messages: "TF_CONFIG" or "SLURM".
    """

    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    index: int
    origin: str

    @property
    def tasks(self) -> tuple[tuple[str, str], ...]:
        """(name, "host:port") of every task, in the order of ranks."""
        return tuple(
            (f"{job} {i}", address)
            for job in _JOBS
            for i, address in enumerate(self.jobs.get(job, ()))
        )

    @property
    def rank(self) -> int:
        """The position of this process among all tasks."""
        before = self.jobs.get("chief", ()) if self.task_type != "chief" else ()
        return len(before) + self.index


def from_environment(
    environment: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """Reads the cluster from `TF_CONFIG` or else SLURM's variables.

    Returns:
      None where neither names one.

    Raises:
      UserError: for a cluster that is malformed.
    """
    if environment.get("TF_CONFIG"):
        return _from_tf_config(environment["TF_CONFIG"])
    if _in_slurm_step(environment):
        return _from_slurm(environment)
    return None


def needed(environment: Mapping[str, str] = os.environ) -> Cluster:
    """`from_environment`, where there must be one.

    Raises:
      UserError: for no cluster, or a malformed one.
    """
    cluster = from_environment(environment)
    if cluster is not None:
        return cluster
    if "SLURM_JOB_ID" in environment:
        raise config.UserError(
            "strategy=multiworker: this is a SLURM job, but none of its steps:"
            " start the command by srun, or by launch/slurm"
        )
    raise config.UserError(
        "strategy=multiworker: TF_CONFIG is not set and this is no step of a"
        f" SLURM job: set, on each worker, {_EXAMPLE}, or start it by"
        " launch/multiworker"
    )


# ---- TF_CONFIG ---------------------------------------------------------------


def _from_tf_config(text: str) -> Cluster | None:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong_tf_config(
            f"is no JSON ({error.msg} at character {error.pos + 1})"
        ) from error
    if not isinstance(parsed, dict):
        raise _wrong_tf_config("is no object of cluster and task")
    if not parsed.get("cluster"):
        return None
    jobs = _jobs(parsed["cluster"])
    task = parsed.get("task")
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        raise _wrong_tf_config("has no task with a type and an index")
    kind, index = task["type"], str(task["index"])
    if kind not in jobs:
        raise _wrong_tf_config(
            f"says that this is a {kind!r}, but its cluster has"
            f" {' and '.join(jobs)} alone"
        )
    size = len(jobs[kind])
    if not re.fullmatch(r"[0-9]+", index) or int(index) >= size:
        raise _wrong_tf_config(
            f"says that this is {kind} {index}, but its cluster has {size} of"
            f" them: the index must be from 0 to {size - 1}"
        )
    return Cluster(jobs, kind, int(index), "TF_CONFIG")


def _jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    """Checks the cluster of a TF_CONFIG."""
    if not isinstance(cluster, dict):
        raise _wrong_tf_config("has a cluster that is no object of jobs")
    strange = sorted(set(cluster) - set(_JOBS))
    if strange:
        raise _wrong_tf_config(
            f"has a job {strange[0]!r}: only chief and worker train together"
        )
    jobs = {}
    for job in _JOBS:
        addresses = cluster.get(job, [])
        if not isinstance(addresses, list) or not all(
            isinstance(address, str) for address in addresses
        ):
            raise _wrong_tf_config(
                f'has a job {job!r} that is no list of "host:port"'
            )
        if addresses:
            jobs[job] = tuple(addresses)
    if not jobs:
        raise _wrong_tf_config("has a cluster without chief and worker")
    if len(jobs.get("chief", ())) > 1:
        raise _wrong_tf_config("has more than one chief")
    every = [address for addresses in jobs.values() for address in addresses]
    for address in every:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise _wrong_tf_config(
                f"has the address {address!r}, which is no host:port"
            )
        if every.count(address) > 1:
            raise _wrong_tf_config(f"gives two tasks the address {address}")
    return jobs


def _wrong_tf_config(fault: str) -> config.UserError:
    return config.UserError(f"TF_CONFIG {fault}: write it as {_EXAMPLE}")


# ---- SLURM -------------------------------------------------------------------


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    # The script of a batch job has SLURM_PROCID, too, but it is one process.
    return "SLURM_PROCID" in environment and any(
        name in environment
        for name in (
            "SLURM_STEP_ID",
            "SLURM_STEPID",
            "SLURM_STEP_NODELIST",
            "SLURM_STEP_NUM_TASKS",
        )
    )


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """The tasks of a SLURM step, in blocks: rank 0 and on, node by node."""

    def variable(*names: str, default: str | None = None) -> str:
        for name in names:
            if environment.get(name):
                return environment[name]
        if default is None:
            raise config.UserError(
                f"SLURM: {' and '.join(names)} are not set: start the command"
                " by srun, or set TF_CONFIG"
            )
        return default

    def number(*names: str, default: str | None = None) -> int:
        value = variable(*names, default=default)
        if not value.isdecimal():
            raise config.UserError(
                f"SLURM: {names[0]}={value} is no whole number: start the"
                " command by srun, or set TF_CONFIG"
            )
        return int(value)

    rank = number("SLURM_PROCID")
    size = number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    hosts = expand_hosts(variable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    per_host = expand_tasks(
        variable(
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE",
            default=f"1(x{len(hosts)})",
        )
    )
    if len(hosts) != len(per_host) or sum(per_host) != size or rank >= size:
        raise config.UserError(
            f"SLURM: task {rank} of {size}, but {sum(per_host)} task(s) on"
            f" {len(per_host)} of {len(hosts)} node(s): start the command by"
            " srun, or set TF_CONFIG"
        )
    places = [
        (node, local) for node, n in enumerate(per_host) for local in range(n)
    ]
    node, local = places[rank]
    said = (
        number("SLURM_NODEID", default=str(node)),
        number("SLURM_LOCALID", default=str(local)),
    )
    if said != (node, local):
        raise config.UserError(
            f"SLURM: task {rank} is number {said[1]} on node {said[0]}, in"
            f" blocks it would be number {local} on node {node}: give srun"
            " --distribution=block"
        )
    first = _first_port(
        number("SLURM_JOB_ID", "SLURM_JOBID", default="0"),
        number("SLURM_STEP_ID", "SLURM_STEPID", default="0"),
    )
    addresses = tuple(
        f"{hosts[node]}:{_FIRST_PORT + (first + local) % _NUM_PORTS}"
        for node, local in places
    )
    return Cluster({"worker": addresses}, "worker", rank, "SLURM")


def _first_port(job: int, step: int) -> int:
    """Where a step's ports begin: neighbours in number do not overlap."""
    # Steps of one job that run at the same time are few, jobs follow closely.
    return (job + 101 * step) * _PORTS_PER_STEP % _NUM_PORTS


def expand_hosts(text: str) -> list[str]:
    """Hosts of a SLURM list, as `scontrol show hostnames` prints them.

    `gpu[001-003,7],b2` are gpu001, gpu002, gpu003, gpu7 and b2; several
    brackets multiply, the last one fastest.

    Raises:
      UserError: if it is no such list.
    """
    parts = re.findall(r"(?:[^,\[\]\s]|\[[^\[\]\s]*\])+", text)
    if ",".join(parts) != text or not parts:
        raise _wrong_hosts(text)
    hosts = []
    for part in parts:
        pieces = [
            list(_expand_ranges(piece[1:-1], text))
            if piece.startswith("[")
            else [piece]
            for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part)
        ]
        hosts += map("".join, itertools.product(*pieces))
        if len(hosts) > _MAX_HOSTS:
            raise _wrong_hosts(text)
    return hosts


def _expand_ranges(ranges: str, text: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if not match:
            raise _wrong_hosts(text)
        low, high = match[1], match[2] or match[1]
        if not 0 <= int(high) - int(low) < _MAX_HOSTS:
            raise _wrong_hosts(text)
        for i in range(int(low), int(high) + 1):
            yield str(i).zfill(len(low))


def _wrong_hosts(text: str) -> config.UserError:
    return config.UserError(
        f"SLURM: {text!r} is no list of nodes, such as gpu[001-003,7],b2: start"
        " the command by srun, or set TF_CONFIG"
    )


def expand_tasks(text: str) -> list[int]:
    """Tasks on each node, of SLURM's short form: `2(x3),1` is 2, 2, 2, 1.

    Raises:
      UserError: if it is no such list.
    """
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if not match or int(match[2] or 1) > _MAX_HOSTS:
            raise config.UserError(
                f"SLURM: {text!r} are no tasks per node, such as 2(x3),1: start"
                " the command by srun, or set TF_CONFIG"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


# ---- Coming up together ------------------------------------------------------


def wait_for_all(cluster: Cluster, timeout: float) -> None:
    """Returns once every process of the cluster is up and can be reached.

    The first task listens on its own port, the one that TensorFlow's server
    takes afterwards; the others tell it that they are there, and it tries
    their ports in turn.

    Args:
      cluster: of this process; must be equal on all of them.
      timeout: in seconds.

    Raises:
      UserError: naming what did not come up in time, or cannot be reached.
    """
    deadline = time.monotonic() + timeout
    others = len(cluster.tasks) - 1
    with _listen(cluster) as server:
        try:
            if cluster.rank == 0:
                if others:
                    terminal.tell(
                        f"workers    waiting for {others} more, at most"
                        f" {timeout:g} s"
                    )
                _gather(cluster, server, deadline)
            else:
                _report(cluster, deadline)
        except TimeoutError as error:
            raise config.UserError(
                f"{cluster.origin}: {error} within {timeout:g} s: start every"
                " worker by the same command, each where its address says"
            ) from error


def _listen(cluster: Cluster) -> socket.socket:
    name, address = cluster.tasks[cluster.rank]
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=len(cluster.tasks),
        )
    except OSError as error:
        raise config.UserError(
            f"{cluster.origin}: {name} is to listen at {address}, but cannot"
            f" ({error.strerror}): end what runs there, or take another port"
        ) from error


def _fingerprint(cluster: Cluster) -> str:
    return hashlib.sha256(repr(cluster.tasks).encode()).hexdigest()


def _gather(cluster: Cluster, server: socket.socket, deadline: float) -> None:
    """Waits for the others, and tells all of them whether to go on."""
    present: dict[int, socket.socket] = {}
    verdict = _GIVE_UP
    try:
        while len(present) < len(cluster.tasks) - 1:
            connection = _accept(cluster, server, set(present), deadline)
            connection.settimeout(5)
            try:
                rank, fingerprint = json.loads(_read_line(connection))
                if not 0 < rank < len(cluster.tasks):
                    raise ValueError(rank)
            except (OSError, ValueError, TypeError):
                connection.close()  # Whoever that was.
                continue
            # One that was started anew takes its own place.
            present[rank] = connection
            _check_peer(cluster, rank, fingerprint)
        verdict = _GO
    finally:
        for connection in present.values():
            with connection, contextlib.suppress(OSError):
                connection.sendall(verdict)


def _check_peer(cluster: Cluster, rank: int, fingerprint: str) -> None:
    name, address = cluster.tasks[rank]
    if fingerprint != _fingerprint(cluster):
        raise config.UserError(
            f"{cluster.origin}: {name} was given other addresses than"
            f" {cluster.tasks[0][0]}: give all workers the same cluster"
        )
    try:
        socket.create_connection(_split(address), timeout=5).close()
    except OSError as error:
        raise config.UserError(
            f"{cluster.origin}: {name} is up, but cannot be reached at"
            f" {address} ({error}): give an address that the other workers can"
            " connect to"
        ) from error


def _accept(
    cluster: Cluster,
    server: socket.socket,
    present: set[int],
    deadline: float,
) -> socket.socket:
    server.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        return server.accept()[0]
    except TimeoutError:
        absent = [
            f"{name} ({address})"
            for rank, (name, address) in enumerate(cluster.tasks)
            if rank and rank not in present
        ]
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise TimeoutError(
            f"{len(absent)} of {len(cluster.tasks)} did not come up:"
            f" {', '.join(absent[:3])}{more}"
        ) from None


def _report(cluster: Cluster, deadline: float) -> None:
    """Tells the first task that this one is up, and waits for its word."""
    name, address = cluster.tasks[0]
    hello = json.dumps([cluster.rank, _fingerprint(cluster)]) + "\n"
    while (left := deadline - time.monotonic()) > 0:
        # What answers may be another run's server that is about to end: only
        # the word itself counts.
        word = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(_split(address), left) as connection,
        ):
            connection.sendall(hello.encode())
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            word = _read_line(connection)
        if word == _GO:
            return
        if word == _GIVE_UP:
            raise config.UserError(
                f"{cluster.origin}: {name} ({address}) gave up waiting for all"
                " workers: see what it says"
            )
        time.sleep(0.2)
    raise TimeoutError(f"{name} ({address}) did not let this worker go on")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _read_line(connection: socket.socket) -> bytes:
    """Reads up to a newline, or the end."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 256:
        received = connection.recv(256)
        if not received:
            break
        line += received
    return line
