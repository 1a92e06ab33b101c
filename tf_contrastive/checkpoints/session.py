"""What a job needs while it writes into a run's folder, and at its end."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import datasets, distribution
from tf_contrastive.base import errors
from tf_contrastive.checkpoints.lock import FolderLock
from tf_contrastive.checkpoints.preemption import PreemptionListener
from tf_contrastive.checkpoints.saving import Checkpoints


@contextlib.contextmanager
def session(
    workdir: str, strategy: tf.distribute.Strategy
) -> Iterator[tuple[FolderLock, PreemptionListener]]:
    """Context in which a job owns its folder, and hears when it must end.

    Yields the lock, which the chief has, and the listener.

    Raises:
      UserError: if another process has the lock, or a worker does not see it.
    """
    lock = FolderLock(workdir)
    with contextlib.ExitStack() as resources:
        if distribution.is_chief(strategy):
            resources.enter_context(lock)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Until the chief has the lock.
            distribution.any_worker(strategy, False)
            if distribution.any_worker(strategy, not lock.is_visible()):
                raise errors.UserError(
                    f"{errors.arg('workdir', workdir)}: not all workers see"
                    " what the first one writes there: use a folder that they"
                    " share, or gs://"
                )
        listener = PreemptionListener(strategy)
        yield lock, resources.enter_context(listener)


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
