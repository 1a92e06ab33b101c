"""Requests that are joined, divided, and dropped."""

import asyncio
import threading

import numpy as np

from tf_contrastive.serving.batching import Batcher


def _rows(values):
    return {"x": np.array(values, np.float32)}


async def _compute(requests, max_rows, cancelled=()):
    """Computes requests while the first one holds the only thread.

    Returns the batches, and the outputs or errors.
    """
    batches, release = [], threading.Event()

    def call(inputs):
        batches.append(inputs["x"].tolist())
        assert release.wait(20)
        if -1 in inputs["x"]:
            raise ValueError("a bad row")
        return {"y": 2 * inputs["x"]}

    batcher = Batcher(max_rows, 0.0, 1, lambda rows: None)
    tasks = []
    for values in ([0], *requests):
        work = batcher.compute("kind", call, _rows(values), True)
        tasks.append(asyncio.create_task(work))
        await asyncio.sleep(0.05)
    for i in cancelled:
        tasks[1 + i].cancel()
    await asyncio.sleep(0)
    release.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert batcher.depth() == 0
    batcher.close()
    return batches[1:], [
        r["y"].tolist() if isinstance(r, dict) else type(r) for r in results[1:]
    ]


def _run(*arguments):
    return asyncio.run(_compute(*arguments))


def test_requests_that_wait_are_joined():
    batches, results = _run([[1], [2, 3], [4]], 3)
    assert batches == [[1, 2, 3], [4]]
    assert results == [[2], [4, 6], [8]]


def test_a_large_request_is_divided():
    batches, results = _run([[1, 2, 3, 4, 5]], 2)
    assert batches == [[1, 2], [3, 4], [5]]
    assert results == [[2, 4, 6, 8, 10]]


def test_a_request_that_fails_fails_alone():
    batches, results = _run([[1], [-1], [2]], 4)
    assert batches == [[1, -1, 2], [1], [-1], [2]]
    assert results == [[2], ValueError, [4]]


def test_what_is_cancelled_before_it_begins_is_dropped():
    batches, results = _run([[1], [2], [3]], 4, [1])
    assert batches == [[1, 3]]
    assert results == [[2], asyncio.CancelledError, [6]]
