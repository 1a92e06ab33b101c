"""The processes that train together, however that was said."""

import dataclasses
from collections.abc import Mapping

# Jobs that train together, in the order of their ranks.
JOBS = ("chief", "worker")


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
            for job in JOBS
            for i, address in enumerate(self.jobs.get(job, ()))
        )

    @property
    def rank(self) -> int:
        """The position of this process among all tasks."""
        before = self.jobs.get("chief", ()) if self.task_type != "chief" else ()
        return len(before) + self.index
