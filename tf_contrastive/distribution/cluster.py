"""The processes that train together, from `TF_CONFIG` or from SLURM.

A malformed cluster is reported in one line: TensorFlow would wait forever for a
missing worker.
"""

import contextlib
import dataclasses
import ipaddress
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tf_contrastive.base import errors

_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host1:2222", "host2:2222"]},'
    ' "task": {"type": "worker", "index": 0}}\''
)
# Jobs that train together, in the order of their ranks.
_JOBS = ("chief", "worker")
# Ports of SLURM jobs: below those that Linux gives to outgoing connections.
_FIRST_PORT, _NUM_PORTS, _PORTS_PER_STEP = 16384, 16384, 16
_NO_HOSTS = "is not a list of nodes, such as gpu[001-003,7],b2"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together, and this one's place among them.

    Attributes:
      jobs: "chief" (at most one) and "worker" -> "host:port" of each task.
      task_type: the job of this process.
      index: its position in that job.
      origin: the source, for messages: "TF_CONFIG" or "SLURM".
    """

    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    index: int
    origin: str

    @property
    def tasks(self) -> tuple[tuple[str, str], ...]:
        """Name and "host:port" of every task, in the order of ranks."""
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
    """Reads the cluster from `TF_CONFIG`, else from SLURM's variables, if any.

    Raises:
      UserError: for a malformed cluster.
    """
    if environment.get("TF_CONFIG"):
        return _read_tf_config(environment["TF_CONFIG"])
    # A batch script has SLURM_PROCID, too, but is a single process.
    in_step = {
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_STEP_NODELIST",
        "SLURM_STEP_NUM_TASKS",
    }
    if "SLURM_PROCID" in environment and in_step & set(environment):
        return _read_slurm(environment)
    return None


def require(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Reads the cluster; an absent one is an error, too."""
    cluster = from_environment(environment)
    if cluster is not None:
        return cluster
    if "SLURM_JOB_ID" in environment:
        raise errors.UserError(
            f"{errors.arg('strategy', 'multiworker')}: this is a SLURM job, but"
            " not one of its steps: start the command by srun, or by"
            " launch/slurm"
        )
    raise errors.UserError(
        f"{errors.arg('strategy', 'multiworker')}: TF_CONFIG is not set and"
        f" this is not a step of a SLURM job: on each worker, set {_EXAMPLE},"
        " or start it by launch/multiworker"
    )


def check_first(
    command: str, environment: Mapping[str, str] = os.environ
) -> None:
    """Raises `UserError` in all but the first process of a cluster."""
    cluster = from_environment(environment)
    if cluster is not None and cluster.rank:
        raise errors.UserError(
            f"{cluster.origin}: this is process {cluster.rank + 1} of"
            f" {len(cluster.tasks)} that train together, but {command} does"
            " not share its work among them: start it once, without"
            " launch/multiworker, srun or TF_CONFIG"
        )


# ---- TF_CONFIG ---------------------------------------------------------------


def _read_tf_config(text: str) -> Cluster | None:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong(
            f"is not JSON ({error.msg} at character {error.pos + 1})"
        ) from error
    if not isinstance(parsed, dict):
        raise _wrong("is not an object with cluster and task")
    if not parsed.get("cluster"):
        return None
    jobs = _check_jobs(parsed["cluster"])
    task = parsed.get("task")
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        raise _wrong("has no task with a type and an index")
    kind, index = task["type"], str(task["index"])
    if kind not in jobs:
        raise _wrong(
            f"says that this is a {kind!r}, but its cluster has only"
            f" {' and '.join(jobs)}"
        )
    size = len(jobs[kind])
    if not re.fullmatch(r"[0-9]+", index) or int(index) >= size:
        raise _wrong(
            f"says that this is {kind} {index}, but its cluster has {size}: the"
            f" index must be from 0 to {size - 1}"
        )
    return Cluster(jobs, kind, int(index), "TF_CONFIG")


def _check_jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict) or not all(
        isinstance(addresses, list)
        and all(isinstance(address, str) for address in addresses)
        for addresses in cluster.values()
    ):
        raise _wrong('has a cluster that is not lists of "host:port" by job')
    if others := sorted(set(cluster) - set(_JOBS)):
        raise _wrong(
            f"has a job {others[0]!r}: only chief and worker train together"
        )
    jobs = {
        job: tuple(map(_canonical, cluster[job]))
        for job in _JOBS
        if cluster.get(job)
    }
    if not jobs:
        raise _wrong("has a cluster without chief and worker")
    if len(jobs.get("chief", ())) > 1:
        raise _wrong("has more than one chief")
    every = [address for addresses in jobs.values() for address in addresses]
    for address in every:
        if every.count(address) > 1:
            raise _wrong(f"gives two tasks the address {address}")
    return jobs


def _canonical(address: str) -> str:
    """Returns an address in the same form for all of its spellings."""
    host, _, port = address.rpartition(":")
    is_port = re.fullmatch("0*[0-9]{1,5}", port) and 0 < int(port) < 65536
    if match := re.fullmatch(r"\[([0-9A-Fa-f:.]+)\]", host):
        with contextlib.suppress(ValueError):
            host = f"[{ipaddress.IPv6Address(match[1])}]"
    elif re.fullmatch(r"[\w.-]+", host, re.ASCII):
        host = host.lower().removesuffix(".")
    else:
        host = ""
    if not host or not is_port:
        raise _wrong(
            f"has the address {address!r}, not a host:port (an IPv6 address is"
            " in brackets)"
        )
    return f"{host}:{int(port)}"


def _wrong(fault: str) -> errors.UserError:
    return errors.UserError(f"TF_CONFIG {fault}: write it as {_EXAMPLE}")


# ---- SLURM -------------------------------------------------------------------


def _read_slurm(environment: Mapping[str, str]) -> Cluster:
    """Reads the tasks of a step: ranks from 0, in blocks, node by node."""

    def variable(*names: str, default: str = "") -> str:
        """Returns the first variable that is set."""
        for name in names:
            if environment.get(name):
                return environment[name]
        if not default:
            raise _not_by_srun(f"{' and '.join(names)} are not set")
        return default

    def number(*names: str, default: str = "") -> int:
        value = variable(*names, default=default)
        if not value.isdecimal():
            raise _not_by_srun(f"{names[0]}={value} is not a whole number")
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
        raise _not_by_srun(
            f"task {rank} of {size}, but {sum(per_host)} task(s) on"
            f" {len(per_host)} of {len(hosts)} node(s)"
        )
    places = [
        (node, local) for node, n in enumerate(per_host) for local in range(n)
    ]
    node, local = places[rank]
    actual = (
        number("SLURM_NODEID", default=str(node)),
        number("SLURM_LOCALID", default=str(local)),
    )
    if actual != (node, local):
        raise errors.UserError(
            f"SLURM: task {rank} is number {actual[1]} on node {actual[0]}, in"
            f" blocks it would be number {local} on node {node}: use srun"
            " --distribution=block"
        )
    # Ports of close jobs do not overlap, nor those of the few steps of a job
    # that run at the same time.
    job = number("SLURM_JOB_ID", "SLURM_JOBID", default="0")
    step = number("SLURM_STEP_ID", "SLURM_STEPID", default="0")
    first = (job + 101 * step) * _PORTS_PER_STEP
    addresses = tuple(
        f"{hosts[node]}:{_FIRST_PORT + (first + local) % _NUM_PORTS}"
        for node, local in places
    )
    return Cluster({"worker": addresses}, "worker", rank, "SLURM")


def _not_by_srun(fault: str) -> errors.UserError:
    return errors.UserError(
        f"SLURM: {fault}: start the command by srun, or set TF_CONFIG"
    )


def expand_hosts(text: str) -> list[str]:
    """Expands a SLURM list of hosts, as `scontrol show hostnames` does.

    `gpu[001-003,7],b2` is gpu001, gpu002, gpu003, gpu7 and b2; several brackets
    multiply, and the last one varies fastest.
    """
    parts = re.findall(r"(?:[^,\[\]\s]|\[[^\[\]\s]*\])+", text)
    hosts: list[str] = []
    for part in parts:
        pieces = [
            list(_expand_ranges(piece)) if piece.startswith("[") else [piece]
            for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part)
        ]
        hosts += map("".join, itertools.product(*pieces))
    if ",".join(parts) != text or not hosts:
        raise _not_by_srun(f"{text!r} {_NO_HOSTS}")
    return hosts


def _expand_ranges(piece: str) -> Iterator[str]:
    for part in piece[1:-1].split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        low, high = match.groups(match[1]) if match else ("1", "0")
        if int(low) > int(high):
            raise _not_by_srun(f"{piece!r} {_NO_HOSTS}")
        for i in range(int(low), int(high) + 1):
            yield str(i).zfill(len(low))


def expand_tasks(text: str) -> list[int]:
    """Expands SLURM's list of tasks per node: `2(x3),1` is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if not match:
            raise _not_by_srun(
                f"{text!r} is not a list of tasks per node, such as 2(x3),1"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
