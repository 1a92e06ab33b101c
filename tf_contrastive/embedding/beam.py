"""Bulk embedding on Apache Beam: a worker embeds a shard, as `job.run` does."""

import shlex
from collections.abc import Sequence

import apache_beam
from apache_beam.internal import pickler
from apache_beam.options import pipeline_options

from tf_contrastive.base import errors
from tf_contrastive.config.embed import Embedding
from tf_contrastive.embedding import job as jobs
from tf_contrastive.embedding import remote


class _Embed(apache_beam.DoFn):
    """Embeds a shard, and writes its file."""

    def process(self, packed: bytes) -> None:
        pickler.loads(packed).embed()


def pipeline(
    runner: str, options: str = Embedding.runner_options
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
            f" {errors.arg('runner_options', repr(options))}:"
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

    Paths in `job` and `saved_model` must be valid on the workers.

    Raises:
      UserError: if a worker lacks something, or cannot read or write a file.
    """
    # Pickled here, since Beam's plain pickle cannot handle the functions that
    # read files.
    works = [*map(pickler.dumps, remote.works(job, saved_model, shards))]
    try:
        with pipeline:
            _ = (
                pipeline
                | "Shards" >> apache_beam.Create(works)
                | "Share" >> apache_beam.Reshuffle()
                | "Embed" >> apache_beam.ParDo(_Embed())
            )
    except RuntimeError as error:  # It quotes that of a worker.
        raise remote.user_error(str(error)) or error from error
