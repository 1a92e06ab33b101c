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
class Work:
    """A shard, and what a worker needs to embed it."""

    job: jobs.Job  # Without the examples of its source.
    shard: jobs.Shard
    # The shard's part of the source; None: a worker opens it by `job.opener`.
    arrays: dict[str, np.ndarray] | None
    files: Files | None
    saved_model: str  # An export that workers can read.
    versions: dict[str, str]  # Of the process that started the job.

    def embed(self) -> None:
        """Writes the shard's file, unless another attempt has done so.

        Raises:
          UserError: if this worker is unlike the process that started the job,
            or a file cannot be read or written.
        """
        for name, own in _versions().items():
            if own != self.versions[name]:
                raise errors.UserError(
                    f"{name} is {own} on the worker {socket.gethostname()}, and"
                    f" {self.versions[name]} where the job was started: make"
                    " them equal"
                )
        _check_present([self.job.identity_path])
        _check_present([f"{self.saved_model}/saved_model.pb"])
        if not files.exists(self.shard.path):
            embedder = _embedder(self.saved_model)
            jobs.embed_shard(self.job, embedder, self.shard, self._open())

    def _open(self) -> datasets.Source:
        """Opens the shard's part of the source."""
        whole = self.job.source
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
        return _opened(*self.job.opener).select(rows)


def works(
    job: jobs.Job, saved_model: str, shards: Sequence[jobs.Shard]
) -> Iterator[Work]:
    """Yields the work of each shard of a job that `job.begin` has begun."""
    absent = ("records", "arrays", "files", "paths", "digests")
    without: dict[str, Any] = dict.fromkeys(absent)
    source = dataclasses.replace(job.source, **without)
    plain = dataclasses.replace(job, source=source)
    for shard in shards:
        part = job.source.select(np.arange(shard.start, shard.stop))
        arrays = None if part.arrays is None else part.columns()
        own_files = None if job.opener else part.files
        yield Work(plain, shard, arrays, own_files, saved_model, _versions())


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
