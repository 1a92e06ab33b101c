"""Batches made by other machines: the client of TensorFlow's data service.

Workers take an epoch apart by dynamic sharding: rows in memory by the batch,
records of files by the file. The set of views is that of the run without a
service, in the order in which they are ready. If a worker dies, runs wait until
it is back at its port; what it had taken on is lost to the epoch, and views of
the next epoch take its place.
"""

import collections
import socket
import threading
import warnings

import tensorflow as tf

from tf_contrastive import config

# Seconds in which a dispatcher must answer.
_PATIENCE = 10


def check(address: str) -> None:
    """Raises `UserError` if nothing answers at grpc://host:port."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except OSError as error:
        raise config.UserError(
            f"--data_service={address}: nothing answers there ({error}): start"
            " one with launch/data_service, which prints its address"
        ) from error


class Delivered:
    """Counts the examples that came from the service, by epoch."""

    def __init__(self) -> None:
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

    def counted(
        self, batches: tf.data.Dataset, epoch: tf.Tensor, rows: int
    ) -> tf.data.Dataset:
        """Returns the same batches, of `rows` examples, and counts them."""

        def count(*batch):
            tf.numpy_function(self._add, [epoch, rows], [], stateful=True)
            return batch if len(batch) > 1 else batch[0]

        return batches.map(count)


def distribute(batches: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """Has the service make these batches, each exactly once."""
    service = tf.data.experimental.service
    with warnings.catch_warnings():
        # TensorFlow warns of its own reading of options inside of a function.
        warnings.simplefilter("ignore", UserWarning)
        return batches.apply(
            service.distribute(service.ShardingPolicy.DYNAMIC, address)
        )
