"""The processes that train together, from `TF_CONFIG` or from SLURM.

A malformed cluster is reported in one line: TensorFlow would wait forever for a
missing worker.
"""

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Mapping

from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver

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


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together, and this one's place among them."""

    # "chief" (at most one) and "worker" -> "host:port" of each task.
    jobs: Mapping[str, tuple[str, ...]]
    task_type: str  # The job of this process.
    index: int  # Its position in that job.
    origin: str  # For messages: "TF_CONFIG" or "SLURM".

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

    Raises `UserError` for a malformed one.
    """
    if environment.get("TF_CONFIG"):
        return _read_tf_config(environment["TF_CONFIG"])
    # A batch script has SLURM_PROCID, too, but is a single process.
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        return _read_slurm(environment)
    return None


def require(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Reads the cluster; an absent one is an error, too."""
    cluster = from_environment(environment)
    if cluster is not None:
        return cluster
    raise errors.UserError(
        f"{errors.arg('strategy', 'multiworker')}: TF_CONFIG is not set and"
        f" this is not a step of a SLURM job: on each worker, set {_EXAMPLE},"
        " or start it by launch/multiworker, launch/slurm or srun"
    )


def check_first(command: str) -> None:
    """Raises `UserError` in all but the first process of a cluster."""
    cluster = from_environment()
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
    try:
        rank = int(environment["SLURM_PROCID"])
        size = int(environment["SLURM_STEP_NUM_TASKS"])
        hosts = slurm_cluster_resolver.expand_hostlist(
            environment["SLURM_STEP_NODELIST"]
        )
        per_host = slurm_cluster_resolver.expand_tasks_per_node(
            environment["SLURM_STEP_TASKS_PER_NODE"]
        )
        # Steps of a job that run at the same time have ports of their own.
        job = int(environment["SLURM_JOB_ID"])
        step = int(environment["SLURM_STEP_ID"])
    except (IndexError, KeyError, ValueError) as error:
        raise _not_by_srun(errors.first_line(error)) from error
    places = [
        (node, local) for node, n in enumerate(per_host) for local in range(n)
    ]
    if len(hosts) != len(per_host) or not rank < len(places) == size:
        raise _not_by_srun(
            f"task {rank} of {size}, but {len(places)} on {len(per_host)} of"
            f" {len(hosts)} node(s)"
        )
    node = environment.get("SLURM_NODEID", str(places[rank][0]))
    if node != str(places[rank][0]):
        raise _not_by_srun(f"task {rank} is on node {node}, not in blocks")
    first = (job + 101 * step) * _PORTS_PER_STEP
    addresses = tuple(
        f"{hosts[node]}:{_FIRST_PORT + (first + local) % _NUM_PORTS}"
        for node, local in places
    )
    return Cluster({"worker": addresses}, "worker", rank, "SLURM")


def _not_by_srun(fault: str) -> errors.UserError:
    return errors.UserError(
        f"SLURM: {fault}: start the command by srun --distribution=block, or"
        " set TF_CONFIG"
    )
