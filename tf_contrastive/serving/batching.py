"""Joins requests that arrive while others are computed."""

import asyncio
import collections
import concurrent.futures
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_contrastive.serving.rest import RestError

Arrays = dict[str, np.ndarray]


class _Task(NamedTuple):
    """A request, or some rows of a large one.

    Attributes:
      call: batch of inputs -> batch of outputs.
      inputs: its rows.
      rows: how many; None: it is not to be joined.
      since: when it arrived.
      outputs: future of its outputs.
    """

    call: Callable[[Arrays], Arrays]
    inputs: Arrays
    rows: int | None
    since: float
    outputs: asyncio.Future


class Batcher:
    """Computes requests in threads, several of one kind at a time.

    A batch begins when a thread is free and `timeout` is over or the batch is
    full: while all threads compute, requests collect. Its methods are called in
    the event loop.

    Args:
      max_rows: rows of a batch; a larger request is divided.
      timeout: seconds that a request waits for others.
      threads: batches that are computed at a time.
      observe: is called with the rows of each batch.
    """

    def __init__(
        self,
        max_rows: int,
        timeout: float,
        threads: int,
        observe: Callable[[int], None],
    ) -> None:
        self._max_rows, self._timeout = max_rows, timeout
        self._threads, self._observe = threads, observe
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._waiting: dict[Hashable, collections.deque[_Task]] = {}
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None

    async def compute(
        self,
        kind: Hashable,
        call: Callable[[Arrays], Arrays],
        inputs: Arrays,
        by_row: bool,
    ) -> Arrays:
        """Returns the outputs of a request.

        If it is cancelled, what has not begun is dropped.

        Args:
          kind: of its call: requests of other kinds are not joined with it.
          call: batch of inputs -> batch of outputs.
          inputs: arrays by name.
          by_row: whether each row of outputs depends on that row of inputs
            alone, and all inputs have a row for each.

        Raises:
          RestError: if the call raises it.
        """
        loop = asyncio.get_running_loop()
        total = len(next(iter(inputs.values()))) if by_row else 1
        step = self._max_rows if by_row else 1
        tasks = []
        for start in range(0, max(total, 1), step):
            part, rows = inputs, None
            if by_row:
                part = {k: v[start : start + step] for k, v in inputs.items()}
                rows = min(step, total - start)
            tasks.append(
                _Task(call, part, rows, loop.time(), loop.create_future())
            )
        sizes = [(k, v.dtype.str, v.shape[1:]) for k, v in inputs.items()]
        key = (kind, *sizes) if by_row else object()
        self._waiting.setdefault(key, collections.deque()).extend(tasks)
        self._begin()
        try:
            parts = await asyncio.gather(*(task.outputs for task in tasks))
        finally:
            for task in tasks:
                task.outputs.cancel()
        if len(parts) == 1:
            return parts[0]
        return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}

    def depth(self) -> int:
        """Returns the number of requests, or parts of them, that wait."""
        return sum(map(len, self._waiting.values()))

    def close(self) -> None:
        """Ends the threads after what they compute."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Begins batches while threads are free and tasks are ready."""
        loop = asyncio.get_running_loop()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._running < self._threads and self._waiting:
            # The oldest of those that are full, or waited long enough.
            due = {
                key: self._due(tasks) for key, tasks in self._waiting.items()
            }
            ready = [key for key in due if due[key] <= loop.time()]
            if not ready:
                self._timer = loop.call_at(min(due.values()), self._begin)
                return
            tasks = self._take(
                min(ready, key=lambda k: self._waiting[k][0].since)
            )
            if tasks:
                self._running += 1
                self._observe(sum(task.rows or 1 for task in tasks))
                computed = loop.run_in_executor(self._pool, _compute, tasks)
                computed.add_done_callback(functools.partial(self._end, tasks))

    def _due(self, tasks: collections.deque[_Task]) -> float:
        """Returns the time at which a batch of tasks begins."""
        rows = sum(t.rows or self._max_rows for t in tasks)
        full = rows >= self._max_rows
        return tasks[0].since + (0 if full else self._timeout)

    def _take(self, key: Hashable) -> list[_Task]:
        """Removes a batch of a kind from what waits."""
        waiting, rows = self._waiting[key], 0
        tasks: list[_Task] = []
        while waiting and (
            not tasks or rows + (waiting[0].rows or 0) <= self._max_rows
        ):
            task = waiting.popleft()
            if not task.outputs.done():  # That is, cancelled.
                tasks.append(task)
                rows += task.rows or 0
        if not waiting:
            del self._waiting[key]
        return tasks

    def _end(self, tasks: list[_Task], computed: asyncio.Future) -> None:
        self._running -= 1
        for task, result in zip(tasks, computed.result(), strict=True):
            if task.outputs.done():
                continue
            if isinstance(result, Exception):
                task.outputs.set_exception(result)
            else:
                task.outputs.set_result(result)
        self._begin()


def _compute(tasks: list[_Task]) -> list[Arrays | Exception]:
    """Computes a batch; if it fails, each of its tasks by itself."""
    first = tasks[0]
    try:
        if len(tasks) == 1:
            return [first.call(first.inputs)]
        joined = {
            name: np.concatenate([task.inputs[name] for task in tasks])
            for name in first.inputs
        }
        return _split(first.call(joined), [task.rows for task in tasks])
    except Exception as error:
        if len(tasks) == 1:
            return [error]
        return [result for task in tasks for result in _compute([task])]


def _split(outputs: Mapping[str, Any], rows: list[Any]) -> list[Any]:
    ends = np.cumsum(rows).tolist()
    for name, values in outputs.items():
        if len(values) != ends[-1]:
            raise RestError(500, f"output {name} has {len(values)} rows")
    return [
        {name: values[end - count : end] for name, values in outputs.items()}
        for end, count in zip(ends, rows, strict=True)
    ]
