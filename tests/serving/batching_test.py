"""Requests that are joined, divided, and dropped."""

import asyncio
import threading

import numpy as np
import pytest

from tf_contrastive.serving.batching import Batcher


async def _compute(requests, max_rows, cancelled=()):
    """Returns batches and results of requests that wait for the first one."""
    batches, release = [], threading.Event()

    def call(rows):
        batches.append(rows.tolist())
        assert release.wait(20)
        if -1 in rows:
            raise ValueError("a bad row")
        return {"y": 2 * rows}

    batcher, tasks = Batcher(max_rows, threads=1), []
    for kind, values in (("a", [0]), *requests):
        work = batcher.compute(kind, call, np.array(values, np.float32))
        tasks.append(asyncio.create_task(work))
        await asyncio.sleep(0)  # It begins, or waits behind those before it.
    for i in cancelled:
        tasks[1 + i].cancel()
    await asyncio.sleep(0)
    release.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return batches[1:], [
        r["y"].tolist() if isinstance(r, dict) else type(r) for r in results[1:]
    ]


def _run(requests, *arguments):
    return asyncio.run(_compute([("a", r) for r in requests], *arguments))


_CASES = [
    ([[1], [2, 3], [4]], 3, [[1, 2, 3], [4]], [[2], [4, 6], [8]]),
    ([[1], [2]], 1, [[1], [2]], [[2], [4]]),
    # A large request is divided, and one that fails fails alone.
    ([[1, 2, 3, 4, 5]], 2, [[1, 2], [3, 4], [5]], [[2, 4, 6, 8, 10]]),
    ([np.zeros([0, 2])], 4, [[]], [[]]),
    ([[1], [-1], [2]], 4, [[1, -1, 2], [1], [-1], [2]], [[2], ValueError, [4]]),
]


@pytest.mark.parametrize(("requests", "limit", "batches", "results"), _CASES)
def test_requests_that_wait_are_joined(requests, limit, batches, results):
    assert _run(requests, limit) == (batches, results)


def test_only_requests_of_a_kind_and_a_size_are_joined():
    requests = [("a", [1]), ("b", [2]), ("a", [3]), ("a", [[4]]), ("b", [5])]
    batches, results = asyncio.run(_compute(requests, 8))
    assert batches == [[1, 3], [2, 5], [[4]]]
    assert results == [[2], [4], [6], [[8]], [10]]


def test_what_is_cancelled_before_it_begins_is_dropped():
    batches, results = _run([[1], [2], [3]], 4, [1])
    assert batches == [[1, 3]]
    assert results == [[2], asyncio.CancelledError, [6]]


def test_two_batches_are_computed_at_a_time():
    active, most, release = [], [], threading.Event()

    def call(rows):
        active.append(rows)
        most.append(len(active))
        assert release.wait(20)
        active.pop()
        return {"y": rows}

    async def compute():
        batcher = Batcher(8)
        work = [batcher.compute(i, call, np.zeros([1])) for i in range(9)]
        tasks = asyncio.gather(*work)
        while len(most) < 2:
            await asyncio.sleep(0.001)
        release.set()
        await tasks

    asyncio.run(compute())
    assert max(most) == 2 and len(most) == 9
