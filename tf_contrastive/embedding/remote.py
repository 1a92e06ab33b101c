"""A shard on a worker of any engine: `job.embed_shard`, and what it needs.

What a worker lacks is reported when it embeds its first shard. Engines may run
a shard twice: its file is written whole, and has the same content.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, embedding
from tf_contrastive.base import errors, files, installation
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets.source import Files, in_files, in_memory
from tf_contrastive.embedding import job as jobs
from tf_contrastive.embedding import output_files

_PROBES = 8  # Images whose embeddings are compared.
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
      token: path of a file beside the output, another one for each job.
      job: without the examples of its source.
      saved_model: export that workers can read.
      versions: of the process that started the job.
      probe: what its encoder makes of `_probe`, float32 [n, D].
    """

    token: str
    job: jobs.Job = dataclasses.field(compare=False)
    saved_model: str = dataclasses.field(compare=False)
    versions: dict[str, str] = dataclasses.field(compare=False)
    probe: np.ndarray = dataclasses.field(compare=False)

    def embed(self, part: Part) -> str:
        """Writes a part's file, unless another attempt has done so.

        Returns:
          A warning about this worker, or an empty string.

        Raises:
          UserError: if this worker is unlike the process that started the job,
            or a file cannot be read or written.
        """
        embedder, warning = _embedder(self)
        # A single file may be an old one.
        if not (self.job.shard_size and files.exists(part.shard.path)):
            source = part.open(self.job)
            jobs.embed_shard(self.job, embedder, part.shard, source)
        return warning

    def check(self) -> None:
        """Raises `UserError` if this process cannot do what the first did."""
        for name, own in _versions().items():
            if own != self.versions[name]:
                raise errors.UserError(
                    f"{name} is {own} on the worker {socket.gethostname()}, and"
                    f" {self.versions[name]} where the job was started: make"
                    " them equal"
                )
        _check_present([self.token])
        _check_present([f"{self.saved_model}/saved_model.pb"])


@contextlib.contextmanager
def work(
    job: jobs.Job, saved_model: str, encoder: Callable[..., tf.Tensor]
) -> Iterator[Work]:
    """Yields what the workers of a job get; its token exists meanwhile."""
    absent = ("records", "arrays", "files", "paths", "digests")
    source = dataclasses.replace(job.source, **dict.fromkeys(absent))
    with files.partial(job.output) as token:
        if not files.exists(token):  # In an object store.
            files.write(token, "", output_files.ADVICE)
        yield Work(
            token,
            dataclasses.replace(job, source=source),
            saved_model,
            _versions(),
            _probe(job, embedding.Embedder(encoder)),
        )


def user_error(text: str) -> errors.UserError | None:
    """Returns the `UserError` of a worker that an engine's message quotes."""
    quoted = re.findall(r"^[\w.]*UserError: (.+)$", text, re.MULTILINE)
    return errors.UserError(quoted[-1]) if quoted else None


# ---- On a worker -------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _embedder(work: Work) -> tuple[embedding.Embedder, str]:
    """Checks the worker and loads the model, once in a process.

    Returns:
      The embedder and a warning, see `Work.embed`.
    """
    work.check()
    embedder = embedding.Embedder(tf.saved_model.load(work.saved_model))
    probe = _probe(work.job, embedder)
    if np.array_equal(probe, work.probe):
        return embedder, ""
    difference = np.abs(probe - work.probe).max() / np.abs(work.probe).max()
    return embedder, (
        f"the worker {socket.gethostname()} computes otherwise: its embeddings"
        f" of the same images differ by {difference:.1e} of the largest value"
    )


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


def _probe(job: jobs.Job, embedder: embedding.Embedder) -> np.ndarray:
    """Embeds a few images of noise: float32 [n, D]."""
    shape = job.image_size, job.image_size, 3 + job.extra_channels
    noise = np.random.default_rng(0).random([_PROBES, *shape], np.float32)
    ((h, *_),) = embedder([(noise,)])
    return h


def _versions() -> dict[str, str]:
    return {
        "tf_contrastive": installation.VERSION,
        "tensorflow": tf.__version__,
        "Pillow": importlib.metadata.version("Pillow"),
    }
