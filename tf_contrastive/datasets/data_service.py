"""Batches made by other machines: the client of TensorFlow's data service.

The set of views is that of a run without the service. If a worker is killed,
runs wait until it is back at its port; the examples that it had taken are
missing from the epoch. If the dispatcher dies, TensorFlow would wait forever:
the run ends.
"""

import collections
import math
import socket
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.datasets import sampler
from tf_contrastive.datasets.sampler import Stream

# In seconds.
_CONNECT_TIMEOUT = 10
_CHECK_EVERY = 1  # During a run.
LOST_AFTER = 60  # Without an answer of the dispatcher.
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
# Of images in memory, which the check would copy.
_MAX_CHECKED_BYTES = 100_000_000


def _connect(address: str) -> None:
    """Raises `OSError` if nothing answers at grpc://host:port."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    target = host.strip("[]"), int(port)
    socket.create_connection(target, _CONNECT_TIMEOUT).close()


class DataService:
    """A dispatcher at grpc://host:port, and a counter of what comes from it.

    Attributes:
      address: of the dispatcher.
      lost: why no more examples will come; None while they may.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.lost: str | None = None
        self._last_answer = time.monotonic()
        self._lock = threading.Lock()
        self._examples: collections.Counter[int] = collections.Counter()
        self._first, self._done, self._total = 0, 0, 0

    def check(self) -> None:
        """Raises `UserError` if nothing answers."""
        try:
            _connect(self.address)
        except OSError as error:
            raise errors.UserError(
                f"{errors.arg('data_service', self.address)}: nothing answers"
                f" there ({error}): start one with launch/data_service, which"
                " prints its address"
            ) from error

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

    def batches(
        self, stream: Stream, make: Callable[[tf.data.Dataset], tf.data.Dataset]
    ) -> tf.data.Dataset:
        """Returns the stream's batches; each epoch is a job of the service.

        `make` makes batches of draws, the last one smaller.

        Raises:
          UserError: if nothing answers.
        """
        first, done = divmod(stream.order.start_step, stream.steps)
        arrays = (stream.source.arrays or {}).values()
        if sum(np.asarray(x).nbytes for x in arrays) < _MAX_CHECKED_BYTES:
            _check_operations(make(_draws(stream, tf.constant(first))))
        self.check()
        self._first, self._done = first, done * stream.local
        self._total = stream.steps * stream.local
        service = tf.data.experimental.service

        def of_epoch(number: tf.Tensor) -> tf.data.Dataset:
            def count(*batch: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, ...]:
                counted = [number, stream.rows]
                tf.numpy_function(self._add, counted, [], stateful=True)
                return batch if len(batch) > 1 else batch[0]

            result = make(_draws(stream, number))
            with warnings.catch_warnings():
                # TensorFlow warns that it reads options inside a function.
                warnings.simplefilter("ignore", UserWarning)
                dynamic = service.ShardingPolicy.DYNAMIC
                result = result.apply(service.distribute(dynamic, self.address))
            result = result.rebatch(stream.rows, drop_remainder=True)
            skipped = tf.where(number == first, tf.cast(done, tf.int64), 0)
            elements = stream.local // stream.rows
            return result.take((stream.steps - skipped) * elements).map(count)

        epochs = tf.data.Dataset.range(first, sampler.MAX_EPOCHS)
        return self._until_lost(epochs.flat_map(of_epoch))

    def _until_lost(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the same batches, which fail once the service is lost.

        A dataset without elements runs in parallel and connects to the service;
        its error ends a wait for batches that will never come.
        """

        def empty(number: tf.Tensor) -> tf.data.Dataset:
            tf.numpy_function(self._watch, [number], [])
            return batches.take(0)

        self._last_answer = time.monotonic()
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

    def _watch(self, _: int) -> None:
        """Waits, and raises `OSError` if the service is lost."""
        time.sleep(_CHECK_EVERY)
        given = errors.arg("data_service", self.address)
        try:
            _connect(self.address)
            self._last_answer = time.monotonic()
        except OSError as error:
            if time.monotonic() - self._last_answer < LOST_AFTER:
                return
            self.lost = (
                f"{given} no longer responds ({error}): start one with"
                " launch/data_service and repeat this command with its"
                " address, which resumes the run"
            )
            raise


def _check_operations(dataset: tf.data.Dataset) -> None:
    """Raises `UserError` for operations that only this process can run."""
    serialized = dataset._as_serialized_graph().numpy()
    graph = tf.compat.v1.GraphDef.FromString(serialized)
    functions = [node for f in graph.library.function for node in f.node_def]
    if any(node.op in _PYTHON for node in (*graph.node, *functions)):
        raise errors.UserError(
            f"{errors.arg('data_service')}: the data or the views run Python,"
            " such as a generator or tf.numpy_function, which the workers of a"
            " service do not: use TensorFlow operations, or remove"
            f" {errors.arg('data_service')}"
        )


def _draws(stream: Stream, number: tf.Tensor) -> tf.data.Dataset:
    """Returns a pipeline's draws of epoch `number`, for workers to share.

    Workers take a batch of rows in memory, or a file of records, at a time.
    """
    order, key = stream.seeds(number)
    if stream.source.arrays is None:
        draws = stream.one_pass(order, key, stream.buffer)
        pipelines, pipeline = stream.pipelines, stream.pipeline
        return draws.filter(lambda index, *_: index % pipelines == pipeline)
    shape = [stream.steps, stream.pipelines, stream.local]
    places = stream.shuffled_rows(order)[: math.prod(shape)]
    places = tf.reshape(places, shape)[:, stream.pipeline]
    places = tf.reshape(places, [-1, stream.rows])

    def one_by_one(indices: tf.Tensor) -> tf.data.Dataset:
        keys = tf.fill([stream.rows], key)
        return tf.data.Dataset.from_tensor_slices((indices, keys, {}))

    return tf.data.Dataset.from_tensor_slices(places).flat_map(one_by_one)
