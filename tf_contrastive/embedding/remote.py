"""A worker's share of a job, on any engine: it embeds a shard as `job.run`.

What a worker needs is checked when it embeds its first shard. Engines may run a
shard twice, also at the same time: its file is whole, and the first one stays.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_contrastive
from tf_contrastive import datasets, embedding
from tf_contrastive.base import errors, files
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets.source import Files, in_files, in_memory
from tf_contrastive.embedding import job as jobs
from tf_contrastive.embedding import output_files

# Variables that change what TensorFlow computes.
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_USE_LEGACY_KERAS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)
# They decode images, or write files.
_PACKAGES = ("Pillow", "pillow-heif", "pyarrow")
_PROBES = 8  # Images whose embeddings are compared.
_PATHS = (
    20  # Files looked for, at most, before a shard's are said to be absent.
)


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
    """What all workers of a job get, and how they embed a part.

    Attributes:
      token: path of a file beside the output, another one for each job.
      job: without the examples of its source.
      saved_model: export that workers can read.
      versions, variables: those of the process that started the job.
      probe: what its encoder makes of `_probe`, float32 [n, D].
    """

    token: str
    job: jobs.Job = dataclasses.field(compare=False)
    saved_model: str = dataclasses.field(compare=False)
    versions: dict[str, str] = dataclasses.field(compare=False)
    variables: dict[str, str] = dataclasses.field(compare=False)
    probe: np.ndarray = dataclasses.field(compare=False)

    def embed(self, part: Part, threads: int = 0) -> str:
        """Writes a part's file, unless another attempt has done so.

        Args:
          part: one of `parts`.
          threads: of TensorFlow; 0: one for each core.

        Returns:
          A warning about this worker, or an empty string.

        Raises:
          UserError: if this worker is unlike the process that started the job,
            or a file cannot be read or written.
        """
        embedder, warning = _embedder(self, threads)
        if not self._is_done(part):
            rows = jobs.embed(self.job, embedder, part.open(self.job))
            if not self._is_done(part):
                self.job.write(part.shard, *rows)
        return warning

    def _is_done(self, part: Part) -> bool:
        """Whether the file is of this job; a single file may be an old one."""
        return bool(self.job.shard_size) and files.exists(part.shard.path)

    def check(self) -> None:
        """Raises `UserError` if this process cannot do what the first did."""
        own = {**_versions(), **_variables()}
        for name, value in {**self.versions, **self.variables}.items():
            if own[name] != value:
                raise errors.UserError(
                    f"{name} is {own[name]} on the worker {_host()}, and"
                    f" {value} where the job was started: make them equal"
                )
        for kind, path in (
            ("the folder of the output", self.token),
            ("the encoder's export", f"{self.saved_model}/saved_model.pb"),
        ):
            if not files.exists(path):
                raise errors.UserError(
                    f"{os.path.dirname(path)}, {kind}, is not on the worker"
                    f" {_host()} what it is where the job was started: use a"
                    " folder that all workers share"
                )


@contextlib.contextmanager
def work(
    job: jobs.Job, saved_model: str, encoder: Callable[..., tf.Tensor]
) -> Iterator[Work]:
    """Yields what the workers of a job get; its token exists meanwhile."""
    source = dataclasses.replace(
        job.source,
        records=None,
        arrays=None,
        files=None,
        paths=None,
        digests=None,
    )
    with files.partial(job.output) as token:
        if not files.exists(token):  # In an object store.
            files.write(token, "", output_files.ADVICE)
        yield Work(
            token,
            dataclasses.replace(job, source=source),
            saved_model,
            _versions(),
            _variables(),
            _probe(job, embedding.Embedder(encoder)),
        )


def user_error(text: str) -> errors.UserError | None:
    """Returns the `UserError` of a worker that an engine's message quotes."""
    quoted = re.findall(r"^[\w.]*UserError: (.+)$", text, re.MULTILINE)
    return errors.UserError(quoted[-1]) if quoted else None


# ---- On a worker -------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _embedder(work: Work, threads: int) -> tuple[embedding.Embedder, str]:
    """Checks the worker and loads the model, once in a process.

    Returns:
      The embedder and a warning, see `Work.embed`.
    """
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    work.check()
    embedder = embedding.Embedder(tf.saved_model.load(work.saved_model))
    probe = _probe(work.job, embedder)
    if np.array_equal(probe, work.probe):
        return embedder, ""
    difference = np.abs(probe - work.probe).max() / np.abs(work.probe).max()
    return embedder, (
        f"the worker {_host()} is another kind of machine: its embeddings of"
        f" the same images differ by {difference:.1e} of the largest value"
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
            f"{first[0]} is not on the worker {_host()}: use a folder that all"
            " workers share"
        )


def _probe(job: jobs.Job, embedder: embedding.Embedder) -> np.ndarray:
    """Embeds a few images of noise: float32 [n, D]."""
    shape = job.image_size, job.image_size, 3 + job.extra_channels
    noise = np.random.default_rng(0).random([_PROBES, *shape], np.float32)
    ((h, *_),) = embedder([(noise,)])
    return h


def _versions() -> dict[str, str]:
    versions = {
        "Python": "{}.{}".format(*sys.version_info),
        "tf_contrastive": tf_contrastive.__version__,
        "tensorflow": tf.__version__,
    }
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def _variables() -> dict[str, str]:
    return {name: os.environ.get(name, "unset") for name in VARIABLES}


def _host() -> str:
    return socket.gethostname()
