"""The processes that train together, from `TF_CONFIG` or from SLURM.

A malformed cluster is reported in one line: TensorFlow would wait forever for a
missing worker.
"""

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping

from tf_contrastive.base import errors

_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host1:2222", "host2:2222"]},'
    ' "task": {"type": "worker", "index": 0}}\''
)
# Jobs that train together, in the order of their ranks.
_JOBS = ("chief", "worker")
# Ports of SLURM jobs: below those that Linux gives to outgoing connections.
_FIRST_PORT, _NUM_PORTS, _PORTS_PER_STEP = 16384, 16384, 16
# Characters of a malformed TF_CONFIG that its error shows.
_SHOWN = 200
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
    def places(self) -> list[tuple[str, int]]:
        """Host and port of every task, in the order of ranks."""
        parts = [address.rpartition(":") for _, address in self.tasks]
        return [(host.strip("[]"), int(port)) for host, _, port in parts]

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
        if not parsed.get("cluster"):
            return None
        jobs = {
            job: tuple(map(str, addresses))
            for job, addresses in sorted(parsed["cluster"].items())
            if addresses
        }
        kind, index = parsed["task"]["type"], int(str(parsed["task"]["index"]))
        every = list(itertools.chain(*jobs.values()))
        valid = (
            jobs.keys() <= set(_JOBS)
            and len(jobs.get("chief", ())) <= 1
            and len(set(every)) == len(every)
            and all(map(_is_address, every))
            and 0 <= index < len(jobs[kind])
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        valid = False
    if not valid:
        raise errors.UserError(
            f"TF_CONFIG={text[:_SHOWN]} is not a cluster of workers, and at"
            " most one chief, each at a host:port of its own (an IPv6 address"
            f" in brackets), with this one's task: write it as {_EXAMPLE}"
        )
    return Cluster(jobs, kind, index, "TF_CONFIG")


def _is_address(text: str) -> bool:
    match = re.fullmatch(
        r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text, re.ASCII
    )
    return match is not None and 0 < int(match[1]) < 65536


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
