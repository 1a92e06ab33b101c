"""Clusters, and `TF_CONFIG`, which describes one."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from tf_contrastive import errors

EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host1:2222", "host2:2222"]},'
    ' "task": {"type": "worker", "index": 0}}\''
)


# Jobs that train together, in the order of their ranks.
JOBS = ("chief", "worker")


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
            for job in JOBS
            for i, address in enumerate(self.jobs.get(job, ()))
        )

    @property
    def rank(self) -> int:
        """The position of this process among all tasks."""
        before = self.jobs.get("chief", ()) if self.task_type != "chief" else ()
        return len(before) + self.index


def read(text: str) -> Cluster | None:
    """Reads a TF_CONFIG.

    Returns:
      None if it names no cluster.

    Raises:
      UserError: if it is malformed.
    """
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
    jobs = _jobs(parsed["cluster"])
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


def _jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    """Checks the cluster of a TF_CONFIG."""
    if not isinstance(cluster, dict):
        raise _wrong("has a cluster that is not an object of jobs")
    if others := sorted(set(cluster) - set(JOBS)):
        raise _wrong(
            f"has a job {others[0]!r}: only chief and worker train together"
        )
    jobs = {}
    for job in JOBS:
        addresses = cluster.get(job, [])
        if not isinstance(addresses, list) or not all(
            isinstance(address, str) for address in addresses
        ):
            raise _wrong(f'has a job {job!r} that is not a list of "host:port"')
        if addresses:
            jobs[job] = tuple(addresses)
    if not jobs:
        raise _wrong("has a cluster without chief and worker")
    if len(jobs.get("chief", ())) > 1:
        raise _wrong("has more than one chief")
    every = [address for addresses in jobs.values() for address in addresses]
    for address in every:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise _wrong(f"has the address {address!r}, not a host:port")
        if every.count(address) > 1:
            raise _wrong(f"gives two tasks the address {address}")
    return jobs


def _wrong(fault: str) -> errors.UserError:
    return errors.UserError(f"TF_CONFIG {fault}: write it as {EXAMPLE}")
