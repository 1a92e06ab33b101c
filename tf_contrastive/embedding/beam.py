"""Bulk embedding on Apache Beam.

A worker takes a shard, reads and preprocesses its images like `job.run`, and
passes them to RunInference, whose handler holds one model per process. Images
that cannot be read, or fail in the model, are listed. The files are those of
`job.run`.
"""

import dataclasses
import functools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam
import numpy as np
import tensorflow as tf
from apache_beam.internal import pickler
from apache_beam.ml.inference import base, tensorflow_inference
from apache_beam.options import pipeline_options

from tf_contrastive import datasets, errors
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


def _parts(job: jobs.Job, shards: Iterable[jobs.Shard]) -> Iterator[_Part]:
    for shard in shards:
        part = job.source.select(np.arange(shard.start, shard.stop))
        arrays = part.arrays
        if arrays is not None:
            arrays = {name: rows.numpy() for name, rows in arrays.items()}
        yield _Part(shard, arrays, None if job.opener else part.files)


@functools.cache
def _opened(name: str, split: str, data_dir: str) -> datasets.Source:
    """Opens a dataset once in a process."""
    return datasets.source(name, split, data_dir=data_dir or None)


class _Read(apache_beam.DoFn):
    """A shard's part -> ((shard's number, row, label), image) of each."""

    def __init__(self, job: jobs.Job) -> None:
        self._job = job

    def process(self, packed: bytes) -> Iterator[tuple[tuple, np.ndarray]]:
        part = pickler.loads(packed)
        batches = self._job.batches(part.open(self._job))
        for batch in batches.as_numpy_iterator():
            for row, image, label in zip(*batch, strict=True):
                yield (part.shard.number, int(row), int(label)), image


class _Handler(tensorflow_inference.TFModelHandlerTensor):
    """Beam's handler of TensorFlow models, for an export of this package."""

    def load_model(self) -> Any:
        """Loads the SavedModel; Beam's own loader is that of Keras models."""
        return tf.saved_model.load(self._model_uri)


def _infer(
    model: Any,
    batch: Sequence[np.ndarray],
    inference_args: dict[str, Any],
    model_id: str | None = None,
) -> Iterable[base.PredictionResult]:
    """Embeds a batch of images."""
    del inference_args
    for embedding in model(tf.stack(batch)).numpy():
        # Without its image, which is not needed any further.
        yield base.PredictionResult(None, embedding, model_id)


class _Write(apache_beam.DoFn):
    """(shard's number, its part and its embeddings) -> files."""

    def __init__(self, job: jobs.Job, size: int) -> None:
        self._job = job
        self._size = size

    def process(self, element: tuple[int, dict[str, list]]) -> Iterator[int]:
        number, groups = element
        part = pickler.loads(groups["parts"][0])
        # In any order; twice, if a worker was lost.
        rows = {row: rest for row, *rest in groups["embedded"]}
        order = sorted(rows)
        embeddings = np.zeros([len(rows), self._size], np.float32)
        labels = np.zeros([len(rows)], np.int32)
        for i, row in enumerate(order):
            labels[i], embeddings[i] = rows[row]
        paths = (part.arrays or {}).get("path")
        self._job.write(
            part.shard, np.array(order, np.int64), embeddings, labels, paths
        )
        yield number


def pipeline(
    runner: str, options: str = Embedding.beam_options
) -> apache_beam.Pipeline:
    """Makes an empty pipeline for `run`.

    Args:
      runner: name of the runner.
      options: further flags of Beam.

    Raises:
      UserError: for an unknown runner, or options that Beam refuses.
    """
    flags = [f"--runner={runner}", *shlex.split(options)]
    try:
        parsed = pipeline_options.PipelineOptions(flags)
        return apache_beam.Pipeline(options=parsed)
    except ValueError as error:
        raise errors.UserError(
            f"runner={runner} with beam_options={options!r}:"
            f" {errors.first_line(error)}: use a runner of Beam, such as"
            " DirectRunner, and its options"
        ) from error


def run(
    pipeline: apache_beam.Pipeline,
    job: jobs.Job,
    saved_model: str,
    embedding_size: int,
    shards: Sequence[jobs.Shard],
) -> None:
    """Embeds shards on a runner of Beam, and waits for them.

    Args:
      pipeline: result of `pipeline`.
      job: the job; its paths must be valid on the workers.
      saved_model: export that workers can read.
      embedding_size: D.
      shards: result of `job.begin`.

    Raises:
      UserError: if too many images cannot be read.
    """
    handler: Any = base.KeyedModelHandler(
        _Handler(
            saved_model,
            inference_fn=_infer,
            min_batch_size=1,
            max_batch_size=job.batch_size,
        )
    )
    # Pickled here, since Beam's plain pickle cannot handle the functions that
    # read files.
    parts = [
        (part.shard.number, pickler.dumps(part)) for part in _parts(job, shards)
    ]
    source = dataclasses.replace(
        job.source, records=None, arrays=None, files=None
    )
    portable = dataclasses.replace(job, source=source)
    with pipeline:
        parts = pipeline | "Shards" >> apache_beam.Create(parts)
        images = (
            parts
            | "Share" >> apache_beam.Reshuffle()
            | "Part" >> apache_beam.Values()
            | "Read" >> apache_beam.ParDo(_Read(portable))
        )
        embedded, _ = (
            images
            | "Embed" >> base.RunInference(handler).with_exception_handling()
        )
        by_shard = embedded | "Key" >> apache_beam.Map(_by_shard)
        _ = (
            {"parts": parts, "embedded": by_shard}
            | "Group" >> apache_beam.CoGroupByKey()
            | "Write" >> apache_beam.ParDo(_Write(portable, embedding_size))
        )
    job.check_bad(jobs.bad_images(job))


def _by_shard(element: tuple[tuple, Any]) -> tuple[int, tuple]:
    (number, row, label), result = element
    return number, (row, label, result.inference)
