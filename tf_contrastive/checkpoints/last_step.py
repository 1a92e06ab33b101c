"""The checkpoint that a run leaves when an error ends it."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.checkpoints.saving import Checkpoints


@contextlib.contextmanager
def saving_on_error(
    saved: Checkpoints,
    strategy: tf.distribute.Strategy,
) -> Iterator[None]:
    """Saves the present step before an error of TensorFlow ends the run.

    Raises:
      UserError: for an image that can no longer be read.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Without saving, which needs all workers.
            raise
        saved.finish()
        if named := datasets.name_unreadable(error):
            raise errors.UserError(
                f"{named}; saved at step {saved.step:,}"
            ) from error
        raise
