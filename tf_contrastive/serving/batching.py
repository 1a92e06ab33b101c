"""Joins requests that arrive while others are computed."""

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
# Rows of an input -> rows of the outputs.
Call = Callable[[np.ndarray], Arrays]


class _Task(NamedTuple):
    """A request, or some rows of a large one."""

    key: Hashable  # Tasks of one can be computed together.
    call: Call
    rows: np.ndarray
    outputs: asyncio.Future


class Batcher:
    """Computes requests in two threads, several of one kind at a time.

    A batch of at most `max_rows` begins as soon as a thread is free: while both
    compute, requests collect. Its methods are called in the event loop.
    """

    def __init__(self, max_rows: int, threads: int = 2) -> None:
        self._max_rows, self._idle = max_rows, threads
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._waiting: list[_Task] = []

    async def compute(
        self, kind: Hashable, call: Call, rows: np.ndarray
    ) -> Arrays:
        """Returns `call(rows)`, which a thread computes or raises.

        Only requests of one kind are joined. If a request is cancelled, the
        parts that have not begun are dropped.
        """
        loop, key = asyncio.get_running_loop(), (kind, rows.shape[1:])
        tasks = [
            _Task(key, call, rows[i : i + self._max_rows], loop.create_future())
            for i in range(0, max(len(rows), 1), self._max_rows)
        ]
        self._waiting.extend(tasks)
        self._begin()
        try:
            parts = await asyncio.gather(*(task.outputs for task in tasks))
        finally:
            for task in tasks:
                task.outputs.cancel()
        return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}

    def _begin(self) -> None:
        """Begins batches while threads are free and tasks wait."""
        loop = asyncio.get_running_loop()
        while self._idle and (tasks := self._take()):
            self._idle -= 1
            computed = loop.run_in_executor(self._pool, _compute, tasks)
            computed.add_done_callback(functools.partial(self._end, tasks))

    def _take(self) -> list[_Task]:
        """Removes a batch from the tasks that wait: the oldest and its like."""
        tasks: list[_Task] = []
        others: list[_Task] = []
        count = 0
        for i, task in enumerate(self._waiting):
            if count == self._max_rows:
                others += self._waiting[i:]
                break
            if task.outputs.done():  # That is, cancelled.
                continue
            is_like = not tasks or task.key == tasks[0].key
            if is_like and count + len(task.rows) <= self._max_rows:
                tasks.append(task)
                count += len(task.rows)
            else:
                others.append(task)
        self._waiting = others
        return tasks

    def _end(self, tasks: list[_Task], computed: asyncio.Future) -> None:
        self._idle += 1
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
    try:
        outputs = tasks[0].call(np.concatenate([task.rows for task in tasks]))
    except Exception as error:
        if len(tasks) == 1:
            return [error]
        return [result for task in tasks for result in _compute([task])]
    ends = np.cumsum([len(task.rows) for task in tasks])
    return [
        {k: values[end - len(task.rows) : end] for k, values in outputs.items()}
        for task, end in zip(tasks, ends, strict=True)
    ]
