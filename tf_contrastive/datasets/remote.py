"""Batches made by other machines: the client of TensorFlow's data service.

Workers take an epoch apart by dynamic sharding: rows in memory by the batch,
records of files by the file. The set of views is that of the run without a
service, in the order in which they are ready. If a worker dies, runs wait until
it is back at its port; what it had taken on is lost to the epoch, and views of
the next epoch take its place. If the dispatcher dies, what workers have taken
on is lost for good, and TensorFlow would ask for more for ever: a run ends.
"""

import collections
import socket
import threading
import time
import warnings
from collections.abc import Callable

import tensorflow as tf

from tf_contrastive import errors, terminal
from tf_contrastive.datasets import sampler
from tf_contrastive.datasets.sharing import Share
from tf_contrastive.datasets.source import Source

# Seconds in which a dispatcher must answer, between two questions to it in a
# run, without an answer until it counts as lost, and without a batch until that
# is told.
_PATIENCE = 10
_EVERY = 1
LOST_AFTER = 60
STALLED_AFTER = 120


def _connect(address: str) -> None:
    """Raises `OSError` if nothing answers at grpc://host:port."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    socket.create_connection((host, int(port)), _PATIENCE).close()


def check(address: str) -> None:
    """Raises `UserError` if nothing answers at grpc://host:port."""
    try:
        _connect(address)
    except OSError as error:
        raise errors.UserError(
            f"data_service={address}: nothing answers there ({error}): start"
            " one with launch/data_service, which prints its address"
        ) from error


class Delivered:
    """Counts the examples that came from the service, by epoch.

    Attributes:
      lost: why no more will come, once that is so.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        self._answered = self._came = time.monotonic()
        self._stalled = False
        self._lock = threading.Lock()
        self._examples = collections.Counter()
        self._first, self._done, self._total = 0, 0, 0

    def expect(self, first: int, done: int, total: int) -> None:
        """Says what is to come: epochs of `total`, the first without `done`."""
        self._first, self._done, self._total = first, done, total

    def expected(self, epoch: int) -> int:
        """Examples of an epoch that come if no worker dies."""
        return self._total - self._done * (epoch == self._first)

    def examples(self, epoch: int) -> int:
        """Examples of an epoch, counted from 0, that have come so far."""
        with self._lock:
            return self._examples[epoch]

    def _add(self, epoch, count) -> None:
        with self._lock:
            self._examples[int(epoch)] += int(count)
        self._came, self._stalled = time.monotonic(), False

    def _tell_a_stall(self, address: str) -> None:
        if self._stalled or time.monotonic() - self._came < STALLED_AFTER:
            return
        self._stalled = True
        terminal.warning(
            f"data_service={address}: no batch came for {STALLED_AFTER} s;"
            " unless steps take that long, a worker is gone: start one at its"
            " port, and the run goes on"
        )

    def counted(
        self, batches: tf.data.Dataset, epoch: tf.Tensor, rows: int
    ) -> tf.data.Dataset:
        """Returns the same batches, of `rows` examples, and counts them."""

        def count(*batch):
            tf.numpy_function(self._add, [epoch, rows], [], stateful=True)
            return batch if len(batch) > 1 else batch[0]

        return batches.map(count)

    def until_lost(
        self, batches: tf.data.Dataset, address: str
    ) -> tf.data.Dataset:
        """Returns the same batches, which fail once the dispatcher is gone.

        Beside them runs a dataset without elements that asks for it now and
        then, whose error ends a wait for batches that will never come.
        """

        def ask(_):
            time.sleep(_EVERY)
            try:
                _connect(address)
                self._answered = time.monotonic()
            except OSError as error:
                if time.monotonic() - self._answered < LOST_AFTER:
                    return
                self.lost = (
                    f"data_service={address} answers no more ({error}): start"
                    " one with launch/data_service and repeat this command with"
                    " its address, which resumes the run"
                )
                raise
            self._tell_a_stall(address)

        def empty(number):
            tf.numpy_function(ask, [number], [])
            return batches.take(0)

        self._answered = self._came = time.monotonic()
        asked = tf.data.Dataset.counter().flat_map(empty)
        both = tf.data.Dataset.from_tensors(batches).concatenate(
            tf.data.Dataset.from_tensors(asked)
        )
        return both.interleave(
            lambda dataset: dataset,
            cycle_length=2,
            num_parallel_calls=2,
            deterministic=False,
        )


def batches(
    source: Source,
    make: Callable[..., tf.data.Dataset],
    share: Share,
    address: str,
    delivered: Delivered | None,
    *,
    steps: int,
    seed: int,
    start_step: int,
    buffer: int,
) -> tf.data.Dataset:
    """Batches from the service, epoch after epoch, each a job of its own.

    Args:
      source: what to draw from.
      make: (source, draws, whole=False) -> batches, with the last, smaller one.
      share: of the pipeline.
      address: of the dispatcher.
      delivered: counts what came.
      steps, seed, start_step, buffer: see `sampler.shuffled`.

    Raises:
      UserError: if nothing answers.
    """
    check(address)
    delivered = delivered or Delivered()
    first, done = divmod(start_step, steps)
    delivered.expect(first, done * share.local, steps * share.local)

    def of_epoch(number):
        draws = _draws(source, seed, number, buffer, steps, share)
        made = _distribute(make(source, draws, whole=False), address)
        made = made.rebatch(share.rows, drop_remainder=True)
        skipped = tf.where(number == first, tf.cast(done, tf.int64), 0)
        made = made.take((steps - skipped) * share.elements)
        return delivered.counted(made, number, share.rows)

    epochs = tf.data.Dataset.range(first, sampler.FOREVER)
    return delivered.until_lost(epochs.flat_map(of_epoch), address)


def _draws(
    source: Source,
    seed: int,
    number: tf.Tensor,
    buffer: int,
    steps: int,
    share: Share,
) -> tf.data.Dataset:
    """Returns a pipeline's draws of epoch `number`, for workers to share."""
    order, key = sampler.seeds(seed, number)
    if source.arrays is None:
        draws = sampler.one_pass(source, order, key, buffer)
        pipelines, pipeline = share.pipelines, share.pipeline
        return draws.filter(lambda index, *_: index % pipelines == pipeline)
    # Workers take one row of this after the other: an element of a step.
    places = sampler.order_of(source, order)
    places = places[: steps * share.batch_size]
    places = tf.reshape(places, [steps, share.pipelines, share.local])
    places = tf.reshape(places[:, share.pipeline], [-1, share.rows])

    def one_by_one(indices):
        keys = tf.fill([share.rows], key)
        return tf.data.Dataset.from_tensor_slices((indices, keys, {}))

    return tf.data.Dataset.from_tensor_slices(places).flat_map(one_by_one)


def _distribute(batches: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """Has the service make these batches, each exactly once."""
    service = tf.data.experimental.service
    with warnings.catch_warnings():
        # TensorFlow warns of its own reading of options inside of a function.
        warnings.simplefilter("ignore", UserWarning)
        return batches.apply(
            service.distribute(service.ShardingPolicy.DYNAMIC, address)
        )
