"""The cluster of a SLURM step, from the variables that srun sets."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping

from tf_contrastive import errors
from tf_contrastive.distribution.cluster.tf_config import Cluster

# Ports of SLURM jobs: below those that Linux gives to outgoing connections.
_FIRST_PORT, _NUM_PORTS, _PORTS_PER_STEP = 16384, 16384, 16
# SLURM's own limit of hosts in a range.
_MAX_HOSTS = 65536


def in_step(environment: Mapping[str, str]) -> bool:
    """Whether this process is a task that srun started."""
    # A batch script has SLURM_PROCID, too, but is a single process.
    return "SLURM_PROCID" in environment and any(
        name in environment
        for name in (
            "SLURM_STEP_ID",
            "SLURM_STEPID",
            "SLURM_STEP_NODELIST",
            "SLURM_STEP_NUM_TASKS",
        )
    )


def read(environment: Mapping[str, str]) -> Cluster:
    """Reads the tasks of a SLURM step: ranks from 0, node by node.

    Raises:
      UserError: if the variables are not of such a step, or its tasks are not
        distributed in blocks.
    """
    number = functools.partial(_number, environment)
    rank = number("SLURM_PROCID")
    size = number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    hosts = expand_hosts(
        _variable(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    )
    per_host = expand_tasks(
        _variable(
            environment,
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE",
            default=f"1(x{len(hosts)})",
        )
    )
    if len(hosts) != len(per_host) or sum(per_host) != size or rank >= size:
        raise errors.UserError(
            f"SLURM: task {rank} of {size}, but {sum(per_host)} task(s) on"
            f" {len(per_host)} of {len(hosts)} node(s): start the command by"
            " srun, or set TF_CONFIG"
        )
    places = [
        (node, local) for node, n in enumerate(per_host) for local in range(n)
    ]
    _check_place(environment, rank, *places[rank])
    first = _first_port(
        number("SLURM_JOB_ID", "SLURM_JOBID", default="0"),
        number("SLURM_STEP_ID", "SLURM_STEPID", default="0"),
    )
    addresses = tuple(
        f"{hosts[node]}:{_FIRST_PORT + (first + local) % _NUM_PORTS}"
        for node, local in places
    )
    return Cluster({"worker": addresses}, "worker", rank, "SLURM")


def _variable(
    environment: Mapping[str, str], *names: str, default: str | None = None
) -> str:
    """Returns the first variable that is set."""
    for name in names:
        if environment.get(name):
            return environment[name]
    if default is None:
        raise errors.UserError(
            f"SLURM: {' and '.join(names)} are not set: start the command"
            " by srun, or set TF_CONFIG"
        )
    return default


def _number(
    environment: Mapping[str, str], *names: str, default: str | None = None
) -> int:
    value = _variable(environment, *names, default=default)
    if not value.isdecimal():
        raise errors.UserError(
            f"SLURM: {names[0]}={value} is not a whole number: start the"
            " command by srun, or set TF_CONFIG"
        )
    return int(value)


def _check_place(
    environment: Mapping[str, str], rank: int, node: int, local: int
) -> None:
    """Raises `UserError` if a task is not where blocks would place it."""
    actual = (
        _number(environment, "SLURM_NODEID", default=str(node)),
        _number(environment, "SLURM_LOCALID", default=str(local)),
    )
    if actual != (node, local):
        raise errors.UserError(
            f"SLURM: task {rank} is number {actual[1]} on node {actual[0]}, in"
            f" blocks it would be number {local} on node {node}: use srun"
            " --distribution=block"
        )


def _first_port(job: int, step: int) -> int:
    """Returns a step's first port; steps of close numbers do not overlap."""
    # Steps of one job that run at the same time are few, jobs follow closely.
    return (job + 101 * step) * _PORTS_PER_STEP % _NUM_PORTS


def expand_hosts(text: str) -> list[str]:
    """Expands a SLURM list of hosts, as `scontrol show hostnames` does.

    `gpu[001-003,7],b2` is gpu001, gpu002, gpu003, gpu7 and b2; several brackets
    multiply, and the last one varies fastest.

    Raises:
      UserError: if it is not such a list.
    """
    parts = re.findall(r"(?:[^,\[\]\s]|\[[^\[\]\s]*\])+", text)
    if ",".join(parts) != text or not parts:
        raise _wrong_hosts(text)
    hosts: list[str] = []
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


def _wrong_hosts(text: str) -> errors.UserError:
    return errors.UserError(
        f"SLURM: {text!r} is not a list of nodes, such as gpu[001-003,7],b2:"
        " start the command by srun, or set TF_CONFIG"
    )


def expand_tasks(text: str) -> list[int]:
    """Expands SLURM's list of tasks per node: `2(x3),1` is 2, 2, 2, 1.

    Raises:
      UserError: if it is not such a list.
    """
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if not match or int(match[2] or 1) > _MAX_HOSTS:
            raise errors.UserError(
                f"SLURM: {text!r} is not a list of tasks per node, such as"
                " 2(x3),1: start the command by srun, or set TF_CONFIG"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
