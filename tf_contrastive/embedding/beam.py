"""The same job on Apache Beam, with its model handler for TensorFlow.

A worker takes a shard, reads and preprocesses its images as one machine does,
and hands them to RunInference, whose handler holds one model per process. What
cannot be read, or fails in the model, is listed and leaves the rest alone. The
shards that come out are those of one machine.
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
    """A shard and its share of the source, without tensors."""

    shard: jobs.Shard
    arrays: dict[str, np.ndarray] | None
    files: Files | None

    def source(self, job: jobs.Job) -> datasets.Source:
        whole = job.source
        info = dataclasses.replace(
            whole.info, num_examples=self.shard.stop - self.shard.start
        )
        if self.arrays is None and self.files is None:
            rows = np.arange(self.shard.start, self.shard.stop)
            return _opened(*job.opener).select(rows)
        if self.arrays is None:
            return in_files(self.files, whole.decode, info)
        return in_memory(self.arrays, whole.decode, info, decoded=whole.decoded)


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


def _portable(job: jobs.Job) -> jobs.Job:
    """The job without its examples, as it goes to workers."""
    source = dataclasses.replace(
        job.source, records=None, arrays=None, files=None
    )
    return dataclasses.replace(job, source=source)


class _Read(apache_beam.DoFn):
    """A shard's part -> ((shard's number, row, label), image) of each."""

    def __init__(self, job: jobs.Job) -> None:
        self._job = job

    def process(self, packed: bytes) -> Iterator[tuple[tuple, np.ndarray]]:
        part = pickler.loads(packed)
        batches = self._job.batches(part.source(self._job))
        for batch in batches.as_numpy_iterator():
            for row, image, label in zip(*batch, strict=True):
                yield (part.shard.number, int(row), int(label)), image


class _Handler(tensorflow_inference.TFModelHandlerTensor):
    """Beam's handler of TensorFlow models, for an export of this package."""

    def load_model(self) -> Any:
        """Loads the SavedModel; Keras, which Beam asks, would want its own."""
        return tf.saved_model.load(self._model_uri)


def _infer(
    model: Any,
    batch: Sequence[np.ndarray],
    inference_args: dict[str, Any],
    model_id: str | None = None,
) -> Iterable[base.PredictionResult]:
    """Embeds a batch of images."""
    del inference_args
    embeddings = model(tf.stack(batch)).numpy()
    for embedding in embeddings:
        # Without its example: images need not travel any further.
        yield base.PredictionResult(None, embedding, model_id)


class _Write(apache_beam.DoFn):
    """(shard's number, its part, what was embedded of it) -> files."""

    def __init__(self, job: jobs.Job, size: int) -> None:
        self._job = job
        self._size = size

    def process(self, element: tuple[int, dict[str, list]]) -> Iterator[int]:
        number, found = element
        part = pickler.loads(found["parts"][0])
        # In whatever order they came; twice, if a worker was lost.
        rows = {row: rest for row, *rest in found["embedded"]}
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
    """Makes a pipeline, to be filled by `run`.

    Args:
      runner: name of the runner.
      options: further flags of Beam.

    Raises:
      UserError: for a runner that there is not, or options that Beam refuses.
    """
    flags = [f"runner={runner}", *shlex.split(options)]
    try:
        chosen = pipeline_options.PipelineOptions(flags)
        return apache_beam.Pipeline(options=chosen)
    except ValueError as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise errors.UserError(
            f"runner={runner} with beam_options={options!r}: {reason}: give"
            " a runner that Beam has, such as DirectRunner, and options of it"
        ) from error


def run(
    made: apache_beam.Pipeline,
    job: jobs.Job,
    saved_model: str,
    embedding_size: int,
    shards: Sequence[jobs.Shard],
) -> None:
    """Embeds shards on a runner of Beam, and waits for them.

    Args:
      made: of `pipeline`.
      job: what is to be done; paths as the workers know them.
      saved_model: export, where workers can read it.
      embedding_size: D.
      shards: of `begin`.

    Raises:
      UserError: if too much cannot be read.
    """
    handler = base.KeyedModelHandler(
        _Handler(
            saved_model,
            inference_fn=_infer,
            min_batch_size=1,
            max_batch_size=job.batch_size,
        )
    )
    # Beam packs what flows by plain pickle, which the functions that read
    # files are too much for.
    parts = [
        (part.shard.number, pickler.dumps(part)) for part in _parts(job, shards)
    ]
    portable = _portable(job)
    with made:
        parts = made | "Shards" >> apache_beam.Create(parts)
        images = (
            parts
            # So that workers share them.
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
