"""A shard on a worker of any engine: `job.embed_shard`, and what it needs.

Before each shard a worker checks its versions and the shared folders. Engines
may run a shard twice: its file is written whole, and has the same content.
"""

import dataclasses
import functools
import importlib.metadata
import os
import re
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, embedding
from tf_contrastive.base import errors, files, installation
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets.source import Files, in_files, in_memory
from tf_contrastive.embedding import job as jobs

# Files looked for, at most, before a shard's are reported as absent.
_PATHS = 20


@dataclasses.dataclass(frozen=True)
class Part:
    """A shard and its part of the source, without tensors."""

    shard: jobs.Shard
    arrays: dict[str, np.ndarray] | None
    files: Files | None

    def open(self, job: jobs.Job) -> datasets.Source:
        """Opens the part on a worker.

        Raises:
          UserError: if its files are not there.
        """
        whole = job.source
        info = dataclasses.replace(
            whole.info, num_examples=self.shard.stop - self.shard.start
        )
        if self.arrays is not None:
            _check_present(self.arrays.get("path", []))
            return in_memory(
                self.arrays, whole.decode, info, decoded=whole.decoded
            )
        if self.files is not None:
            _check_present(self.files.names)
            return in_files(self.files, whole.decode, info)
        rows = np.arange(self.shard.start, self.shard.stop)
        return _opened(*job.opener).select(rows)


def parts(job: jobs.Job, shards: Sequence[jobs.Shard]) -> Iterator[Part]:
    """Yields each shard with its part of the source."""
    for shard in shards:
        part = job.source.select(np.arange(shard.start, shard.stop))
        arrays = None if part.arrays is None else part.columns()
        yield Part(shard, arrays, None if job.opener else part.files)


@dataclasses.dataclass(frozen=True)
class Work:
    """What all workers of a job get.

    Attributes:
      job: without the examples of its source.
      saved_model: export that workers can read.
      versions: of the process that started the job.
    """

    job: jobs.Job
    saved_model: str
    versions: dict[str, str]

    @classmethod
    def of(cls, job: jobs.Job, saved_model: str) -> "Work":
        """Returns the work of a job that `job.begin` has begun."""
        absent = ("records", "arrays", "files", "paths", "digests")
        without: dict[str, Any] = dict.fromkeys(absent)
        source = dataclasses.replace(job.source, **without)
        return cls(
            dataclasses.replace(job, source=source), saved_model, _versions()
        )

    def embed(self, part: Part) -> None:
        """Writes a part's file, unless another attempt has done so.

        Raises:
          UserError: if this worker is unlike the process that started the job,
            or a file cannot be read or written.
        """
        self._check()
        if not files.exists(part.shard.path):
            embedder = _embedder(self.saved_model)
            jobs.embed_shard(
                self.job, embedder, part.shard, part.open(self.job)
            )

    def _check(self) -> None:
        for name, own in _versions().items():
            if own != self.versions[name]:
                raise errors.UserError(
                    f"{name} is {own} on the worker {socket.gethostname()}, and"
                    f" {self.versions[name]} where the job was started: make"
                    " them equal"
                )
        _check_present([self.job.identity_path])
        _check_present([f"{self.saved_model}/saved_model.pb"])


def user_error(text: str) -> errors.UserError | None:
    """Returns the `UserError` of a worker that an engine's message quotes."""
    quoted = re.findall(r"^[\w.]*UserError: (.+)$", text, re.MULTILINE)
    return errors.UserError(quoted[-1]) if quoted else None


# ---- On a worker -------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _embedder(saved_model: str) -> embedding.Embedder:
    """Loads the model once in a process."""
    return embedding.Embedder(tf.saved_model.load(saved_model))


@functools.cache
def _opened(
    name: str, split: str, data_dir: str, reading: Reading
) -> datasets.Source:
    """Opens a dataset once in a process."""
    return datasets.source(
        name, split, data_dir=data_dir or None, reading=reading
    )


def _check_present(paths: Sequence[Any] | np.ndarray) -> None:
    """Raises `UserError` if no file is there, as without a shared folder.

    A single one may be unreadable, and is listed as such.
    """
    first = [tf.compat.as_str(path) for path in paths[:_PATHS]]
    if first and not any(map(files.exists, first)):
        raise errors.UserError(
            f"{os.path.dirname(first[0])} is not on the worker"
            f" {socket.gethostname()} what it is where the job was started: use"
            " a folder that all workers share"
        )


def _versions() -> dict[str, str]:
    return {
        "tf_contrastive": installation.VERSION,
        "tensorflow": tf.__version__,
        "Pillow": importlib.metadata.version("Pillow"),
    }
