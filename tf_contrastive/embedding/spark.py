"""Bulk embedding on Apache Spark: a task embeds a shard, as `job.run` does."""

import contextlib
import os
import pickle
import re
import shlex
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyspark
import tensorflow as tf
from pyspark import cloudpickle

from tf_contrastive.base import errors, terminal
from tf_contrastive.embedding import job as jobs
from tf_contrastive.embedding import remote

_POLL_SECONDS = 0.5
# Without an executor for this time there is a warning.
_WAIT_SECONDS = 20.0
_CONNECT_SECONDS = 10.0


def configuration(options: str) -> pyspark.SparkConf:
    """Reads `spark_options`; those of `spark-submit` are added by Spark.

    Raises:
      UserError: for a property that is none, without Java, or if no master
        answers.
    """
    conf = pyspark.SparkConf(loadDefaults=False)
    for word in shlex.split(options):
        name, equals, value = word.partition("=")
        if not equals or not name.startswith("spark."):
            raise errors.UserError(
                f"{errors.arg('spark_options', options)}: {word!r} is not of"
                " the form spark.NAME=VALUE"
            )
        conf.set(name, value)
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if not (os.path.exists(java) or shutil.which("java")):
        raise errors.UserError(
            f"{errors.arg('runner', 'spark')} needs Java, which is not found:"
            " install Java 17, or set JAVA_HOME"
        )
    master = conf.get("spark.master", "") or ""
    if master.startswith("spark://"):
        _check_answers(master)
    if master.startswith("local"):
        conf.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
        conf.setIfMissing("spark.driver.host", "localhost")
        conf.setIfMissing("spark.ui.enabled", "false")
    conf.setIfMissing("spark.app.name", "tf_contrastive embed")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    for name in remote.VARIABLES:
        if name in os.environ:
            conf.setIfMissing(f"spark.executorEnv.{name}", os.environ[name])
    # Without it, workers take the first python3 of their PATH.
    python = conf.get("spark.pyspark.python", sys.executable) or sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    return conf


def _check_answers(master: str) -> None:
    """Spark itself waits for a minute."""
    reasons = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            address = host.strip("[]"), int(port)
            socket.create_connection(address, _CONNECT_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(errors.first_line(error))
    raise errors.UserError(
        f"{errors.arg('spark_options', f'spark.master={master}')}: nothing"
        f" answers there ({'; '.join(reasons)}): start the master, or correct"
        " its address"
    )


def run(
    conf: pyspark.SparkConf,
    job: jobs.Job,
    saved_model: str,
    encoder: Callable[..., tf.Tensor],
    shards: Sequence[jobs.Shard],
) -> None:
    """Embeds shards on a Spark cluster, and waits for them.

    Args:
      conf: result of `configuration`.
      job: the job; its paths must be valid on the workers.
      saved_model: export of the encoder that workers can read.
      encoder: the encoder.
      shards: result of `job.begin`.

    Raises:
      UserError: if a worker lacks something, or cannot read or write a file,
        or Spark ends the job.
    """
    # Spark's plain pickle cannot handle the functions that read files.
    parts = [cloudpickle.dumps(part) for part in remote.parts(job, shards)]
    with (
        remote.work(job, saved_model, encoder) as work,
        _context(conf) as context,
    ):
        reports = context.accumulator([], _Lists())
        failures: list[Exception] = []

        def submit() -> None:
            rows = context.parallelize(parts, len(parts))
            try:
                rows.foreachPartition(lambda part: _embed(work, part, reports))
            except Exception as error:  # Also of py4j, when it is cancelled.
                failures.append(error)

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        progress = _Progress(context, reports, len(parts))
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            progress.show()
    if failures:
        raise _ended(failures[0]) from failures[0]


def _embed(
    work: remote.Work, parts: Iterable[bytes], reports: pyspark.Accumulator
) -> None:
    """Embeds the part of a task, and reports it. Other errors are retried."""
    context = pyspark.TaskContext.get()
    assert context is not None
    for packed in parts:
        part = pickle.loads(packed)
        try:
            warning = work.embed(part, context.cpus())
        except errors.UserError as error:
            reports.add([("error", str(error))])
            return
        if warning:
            reports.add([("warning", warning)])
        place = f"{part.shard.path} ({socket.gethostname()})"
        reports.add([("done", place)])


class _Lists(pyspark.AccumulatorParam):
    """Joins the reports of tasks: (kind, text)."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1 += value2
        return value1


class _Progress:
    """Logs what tasks have reported, and how many executors there are."""

    def __init__(
        self,
        context: pyspark.SparkContext,
        reports: pyspark.Accumulator,
        total: int,
    ) -> None:
        self._context = context
        self._reports = reports
        self._total = total
        self._seen = self._done = 0
        self._warnings: set[str] = set()
        self._executors = 0
        self._start = time.monotonic()

    def show(self) -> None:
        """Logs what is new; raises a task's `UserError`."""
        self._show_executors()
        reports = self._reports.value[self._seen :]
        self._seen += len(reports)
        for kind, text in reports:
            if kind == "error":
                raise errors.UserError(text)
            if kind == "done":
                self._done += 1
                terminal.info(f"{text}: {self._done:,} of {self._total:,}")
            elif text not in self._warnings:
                self._warnings.add(text)
                terminal.warning(text)

    def _show_executors(self) -> None:
        if self._context.master.startswith("local"):
            return
        with contextlib.suppress(Exception):  # The JVM may have ended.
            status = self._context._jsc.sc().getExecutorMemoryStatus()
            executors = status.size() - 1
            if executors != self._executors:
                terminal.info(f"executors: {executors}")
                self._executors = executors
                self._start = time.monotonic()
        waited = time.monotonic() - self._start
        if not self._executors and waited > _WAIT_SECONDS:
            self._start = time.monotonic()
            terminal.warning(
                f"{self._context.master} has given no executor for"
                f" {waited:.0f} s: are workers up, with as many free cores and"
                " as much memory as an executor needs?"
            )


@contextlib.contextmanager
def _context(conf: pyspark.SparkConf) -> Iterator[pyspark.SparkContext]:
    """Yields a connection to the cluster, which ends all jobs at its end."""
    # The lines of Java are hidden from now on, too.
    with terminal.without_start_lines():
        try:
            context = pyspark.SparkContext(conf=conf)
        except Exception as error:
            failure = _ended(error)
            failure.__cause__ = error
            context = None
    if context is None:
        raise failure
    try:
        yield context
    finally:
        context.stop()


def _ended(error: Exception) -> errors.UserError:
    """Returns the error for a job that Spark has ended, with its reason.

    That is the last line of a task's traceback in Python, or the first line.
    """
    text = str(getattr(error, "java_exception", error))
    if known := remote.user_error(text):
        return known
    quoted = re.findall(r"^[\w.]*(?:Error|Exception): .+$", text, re.MULTILINE)
    reason = quoted[-1] if quoted else errors.first_line(Exception(text))
    return errors.UserError(
        f"{errors.arg('runner', 'spark')}: Spark ended the job ({reason}):"
        " correct this, and repeat the command; finished files are kept"
    )
