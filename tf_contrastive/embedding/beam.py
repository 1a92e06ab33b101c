"""Bulk embedding on Apache Beam: a worker embeds a shard, as `job.run` does."""

import dataclasses
import functools
import shlex
from collections.abc import Sequence

import apache_beam
import numpy as np
import tensorflow as tf
from apache_beam.internal import pickler
from apache_beam.options import pipeline_options

from tf_contrastive import datasets, embedding, errors
from tf_contrastive.config.embed import Embedding
from tf_contrastive.datasets.source import Files, in_files, in_memory
from tf_contrastive.embedding import job as jobs


@dataclasses.dataclass(frozen=True)
class _Part:
    """A shard and its part of the source, without tensors."""

    shard: jobs.Shard
    arrays: dict[str, np.ndarray] | None
    files: Files | None

    def open(self, job: jobs.Job) -> datasets.Source:
        """Opens the part on a worker."""
        whole = job.source
        info = dataclasses.replace(
            whole.info, num_examples=self.shard.stop - self.shard.start
        )
        if self.arrays is not None:
            return in_memory(
                self.arrays, whole.decode, info, decoded=whole.decoded
            )
        if self.files is not None:
            return in_files(self.files, whole.decode, info)
        rows = np.arange(self.shard.start, self.shard.stop)
        return _opened(*job.opener).select(rows)


@functools.cache
def _opened(name: str, split: str, data_dir: str) -> datasets.Source:
    """Opens a dataset once in a process."""
    return datasets.source(name, split, data_dir=data_dir or None)


@functools.cache
def _embedder(saved_model: str) -> embedding.Embedder:
    """Loads the model once in a process."""
    return embedding.Embedder(tf.saved_model.load(saved_model))


class _Embed(apache_beam.DoFn):
    """Embeds a shard's part, and writes its file."""

    def __init__(self, job: jobs.Job, saved_model: str) -> None:
        self._job = job
        self._saved_model = saved_model

    def process(self, packed: bytes) -> None:
        part = pickler.loads(packed)
        embedder = _embedder(self._saved_model)
        rows = jobs.embed(self._job, embedder, part.open(self._job))
        self._job.write(part.shard, *rows)


def pipeline(
    runner: str, options: str = Embedding.beam_options
) -> apache_beam.Pipeline:
    """Makes an empty pipeline for `run`, with further flags of Beam.

    Raises:
      UserError: for an unknown runner, or options that Beam refuses.
    """
    flags = [f"--runner={runner}", *shlex.split(options)]
    try:
        parsed = pipeline_options.PipelineOptions(flags)
        return apache_beam.Pipeline(options=parsed)
    except ValueError as error:
        raise errors.UserError(
            f"{errors.arg('runner', runner)} with"
            f" {errors.arg('beam_options', repr(options))}:"
            f" {errors.first_line(error)}: use a runner of Beam, such as"
            " DirectRunner, and its options"
        ) from error


def run(
    pipeline: apache_beam.Pipeline,
    job: jobs.Job,
    saved_model: str,
    shards: Sequence[jobs.Shard],
) -> None:
    """Embeds shards on a runner of Beam, and waits for them.

    Args:
      pipeline: result of `pipeline`.
      job: the job; its paths must be valid on the workers.
      saved_model: export that workers can read.
      shards: result of `job.begin`.

    Raises:
      UserError: if too many images cannot be read.
    """
    parts = []
    for shard in shards:
        part = job.source.select(np.arange(shard.start, shard.stop))
        arrays = None if part.arrays is None else part.columns()
        files = None if job.opener else part.files
        # Pickled here, since Beam's plain pickle cannot handle the functions
        # that read files.
        parts.append(pickler.dumps(_Part(shard, arrays, files)))
    source = dataclasses.replace(
        job.source, records=None, arrays=None, files=None, paths=None
    )
    portable = dataclasses.replace(job, source=source)
    with pipeline:
        _ = (
            pipeline
            | "Shards" >> apache_beam.Create(parts)
            | "Share" >> apache_beam.Reshuffle()
            | "Embed" >> apache_beam.ParDo(_Embed(portable, saved_model))
        )
    job.check_bad(jobs.bad_images(job))
