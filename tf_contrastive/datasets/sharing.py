"""How epochs are cut into steps, and steps shared among pipelines."""

from typing import NamedTuple

import tensorflow as tf

from tf_contrastive import errors


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Returns the whole batches that an epoch has; the rest is dropped.

    Raises:
      UserError: if there is none.
    """
    if not 0 < batch_size <= num_examples:
        raise errors.UserError(
            f"batch_size={batch_size} is more than the {num_examples}"
            f" examples there are: give batch_size={num_examples} or less"
        )
    return num_examples // batch_size


class Share(NamedTuple):
    """What one pipeline gives of every batch: a run of its rows.

    Replica r sees the same rows of a batch, however many pipelines there are.

    Attributes:
      batch_size: images of the global batch.
      pipelines: pipelines (hosts) that share it.
      pipeline: which of them this is.
      rows: images of an element, of which a step takes one or several.
    """

    batch_size: int
    pipelines: int
    pipeline: int
    rows: int

    @property
    def local(self) -> int:
        """The pipeline's images of a batch."""
        return self.batch_size // self.pipelines

    @property
    def elements(self) -> int:
        """The pipeline's elements of a step."""
        return self.local // self.rows

    def of(self, draws: tf.data.Dataset) -> tf.data.Dataset:
        """Returns those of the draws of all batches that it decodes."""
        batch_size, local, pipeline = self.batch_size, self.local, self.pipeline
        if local == batch_size:
            return draws
        return (
            draws.enumerate()
            .filter(lambda place, _: place % batch_size // local == pipeline)
            .map(lambda _, draw: draw)
        )


def share(
    batch_size: int,
    replica_batch_size: int | None,
    pipelines: int,
    pipeline: int,
) -> Share:
    """Returns the share of a pipeline.

    Args:
      batch_size, pipelines, pipeline: see `Share`.
      replica_batch_size: its rows; None: all of the pipeline's of a batch.

    Raises:
      UserError: if a batch cannot be shared evenly.
    """
    if batch_size % pipelines:
        raise errors.UserError(
            f"batch_size={batch_size} is not divisible by the {pipelines}"
            f" input pipelines: give a multiple of {pipelines}"
        )
    local = batch_size // pipelines
    rows = replica_batch_size or local
    if local % rows:
        raise errors.UserError(
            f"a pipeline's share {local} of batch_size={batch_size} is not"
            f" divisible by the {rows} images of a replica"
        )
    return Share(batch_size, pipelines, pipeline, rows)
