"""Batches made by other machines: the client of TensorFlow's data service.

Workers divide an epoch by dynamic sharding: rows in memory by the batch,
records of files by the file. The set of views is that of a run without the
service, in the order in which they are ready. If a worker dies, runs wait until
it is back at its port; the examples that it had taken are missing from the
epoch, and views of the next epoch replace them. If the dispatcher dies, the
examples taken by workers are lost and TensorFlow would wait forever: the run
ends.
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
from tf_contrastive.datasets.sampler import HostShard
from tf_contrastive.datasets.source import Source

# In seconds: limit of one connection, time between two connections during a
# run, time without an answer until the dispatcher counts as lost, and time
# without a batch until a warning.
_CONNECT_TIMEOUT = 10
_CHECK_EVERY = 1
LOST_AFTER = 60
STALLED_AFTER = 120


def _connect(address: str) -> None:
    """Raises `OSError` if nothing answers at grpc://host:port."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    socket.create_connection((host, int(port)), _CONNECT_TIMEOUT).close()


def check(address: str) -> None:
    """Raises `UserError` if nothing answers at grpc://host:port."""
    try:
        _connect(address)
    except OSError as error:
        raise errors.UserError(
            f"data_service={address}: nothing answers there ({error}): start"
            " one with launch/data_service, which prints its address"
        ) from error


class DeliveryCounter:
    """Counter of the examples that came from the service, by epoch.

    Attributes:
      lost: why no more examples will come; None while they do.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        self._last_answer = self._last_batch = time.monotonic()
        self._stalled = False
        self._lock = threading.Lock()
        self._examples: collections.Counter[int] = collections.Counter()
        self._first, self._done, self._total = 0, 0, 0

    def expect(self, first: int, done: int, total: int) -> None:
        """Sets the expectation: epochs of `total`, the first without `done`."""
        self._first, self._done, self._total = first, done, total

    def expected(self, epoch: int) -> int:
        """Examples of an epoch that come if no worker dies."""
        return self._total - self._done * (epoch == self._first)

    def examples(self, epoch: int) -> int:
        """Examples of an epoch, counted from 0, that have come so far."""
        with self._lock:
            return self._examples[epoch]

    def _add(self, epoch: int, count: int) -> None:
        with self._lock:
            self._examples[int(epoch)] += int(count)
        self._last_batch, self._stalled = time.monotonic(), False

    def _warn_if_stalled(self, address: str) -> None:
        idle = time.monotonic() - self._last_batch
        if self._stalled or idle < STALLED_AFTER:
            return
        self._stalled = True
        terminal.warning(
            f"data_service={address}: no batch came for {STALLED_AFTER} s;"
            " unless steps take that long, a worker is gone: restart it at its"
            " port, and the run continues"
        )

    def counted(
        self, batches: tf.data.Dataset, epoch: tf.Tensor, rows: int
    ) -> tf.data.Dataset:
        """Returns the same batches, of `rows` examples, and counts them."""

        def count(*batch: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, ...]:
            tf.numpy_function(self._add, [epoch, rows], [], stateful=True)
            return batch if len(batch) > 1 else batch[0]

        return batches.map(count)

    def until_lost(
        self, batches: tf.data.Dataset, address: str
    ) -> tf.data.Dataset:
        """Returns the same batches, which fail once the dispatcher is gone.

        A dataset without elements runs in parallel and connects to the
        dispatcher now and then; its error ends a wait for batches that will
        never come.
        """

        def ask(_: int) -> None:
            time.sleep(_CHECK_EVERY)
            try:
                _connect(address)
                self._last_answer = time.monotonic()
            except OSError as error:
                if time.monotonic() - self._last_answer < LOST_AFTER:
                    return
                self.lost = (
                    f"data_service={address} no longer responds ({error}):"
                    " start one with launch/data_service and repeat this"
                    " command with its address, which resumes the run"
                )
                raise
            self._warn_if_stalled(address)

        def empty(number: tf.Tensor) -> tf.data.Dataset:
            tf.numpy_function(ask, [number], [])
            return batches.take(0)

        self._last_answer = self._last_batch = time.monotonic()
        checks = tf.data.Dataset.counter().flat_map(empty)
        both = tf.data.Dataset.from_tensors(batches).concatenate(
            tf.data.Dataset.from_tensors(checks)
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
    shard: HostShard,
    address: str,
    delivered: DeliveryCounter | None,
    *,
    steps: int,
    seed: int,
    start_step: int,
    buffer: int,
) -> tf.data.Dataset:
    """Batches from the service; each epoch is a job of its own.

    Args:
      source: dataset to draw from.
      make: (source, draws, whole=False) -> batches, with a last, smaller one.
      shard: shard of the pipeline.
      address: grpc://host:port of the dispatcher.
      delivered: counter of the examples.
      steps, seed, start_step, buffer: see `sampler.shuffled`.

    Raises:
      UserError: if nothing answers.
    """
    check(address)
    counter = delivered or DeliveryCounter()
    first, done = divmod(start_step, steps)
    counter.expect(first, done * shard.local, steps * shard.local)

    def of_epoch(number: tf.Tensor) -> tf.data.Dataset:
        draws = _draws(source, seed, number, buffer, steps, shard)
        result = _distribute(make(source, draws, whole=False), address)
        result = result.rebatch(shard.rows, drop_remainder=True)
        skipped = tf.where(number == first, tf.cast(done, tf.int64), 0)
        result = result.take((steps - skipped) * shard.elements)
        return counter.counted(result, number, shard.rows)

    epochs = tf.data.Dataset.range(first, sampler.MAX_EPOCHS)
    return counter.until_lost(epochs.flat_map(of_epoch), address)


def _draws(
    source: Source,
    seed: int,
    number: tf.Tensor,
    buffer: int,
    steps: int,
    shard: HostShard,
) -> tf.data.Dataset:
    """Returns a pipeline's draws of epoch `number`, for workers to share."""
    order, key = sampler.seeds(seed, number)
    if source.arrays is None:
        draws = sampler.one_pass(source, order, key, buffer)
        pipelines, pipeline = shard.pipelines, shard.pipeline
        return draws.filter(lambda index, *_: index % pipelines == pipeline)
    # Workers take one row of this after the other: an element of a step.
    places = sampler.shuffled_rows(source, order)
    places = places[: steps * shard.batch_size]
    places = tf.reshape(places, [steps, shard.pipelines, shard.local])
    places = tf.reshape(places[:, shard.pipeline], [-1, shard.rows])

    def one_by_one(indices: tf.Tensor) -> tf.data.Dataset:
        keys = tf.fill([shard.rows], key)
        return tf.data.Dataset.from_tensor_slices((indices, keys, {}))

    return tf.data.Dataset.from_tensor_slices(places).flat_map(one_by_one)


def _distribute(batches: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """Makes these batches by the service, each exactly once."""
    service = tf.data.experimental.service
    with warnings.catch_warnings():
        # TensorFlow warns that it reads options inside a function.
        warnings.simplefilter("ignore", UserWarning)
        return batches.apply(
            service.distribute(service.ShardingPolicy.DYNAMIC, address)
        )
