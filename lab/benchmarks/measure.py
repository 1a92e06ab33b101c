"""The core of all benchmarks: time, peak memory, comparison and tables."""

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, process
from importlib import metadata
from typing import Any, NamedTuple

import tensorflow as tf

from lab.benchmarks.options import Common
from tf_contrastive.base import terminal
from tf_contrastive.doctor import memory

_MIB = 2**20

# Runs the measured computation once, and returns its output.
Call = Callable[[], Any]
# Prepares a case: inputs and imports, but nothing that is measured. A function
# of a module, since memory is measured in another process.
Maker = Callable[[Any], Call]
Row = dict[str, Any]


class Error(NamedTuple):
    """An output's difference from ours, and the largest allowed one."""

    value: float
    allowed: float


@dataclasses.dataclass
class Result:
    """One implementation in one case. None: not measured; see `note`."""

    implementation: str
    milliseconds: float | None = None  # Median of the repeats.
    repeats: int = 0
    times_ours: float | None = None  # Milliseconds divided by ours.
    peak_growth_mib: float | None = None  # Peak memory of the first call.
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""
    failed: bool = False


class Report(NamedTuple):
    """The results of a benchmark, as rows and as text."""

    rows: list[Row]
    text: str

    @property
    def passed(self) -> bool:
        """Whether no implementation has failed."""
        return not any(row.get("failed") for row in self.rows)


def compare(
    title: str,
    makers: Mapping[str, Maker],
    case: Any,
    options: Common,
    errors_of: Callable[[Any, Any], dict[str, Error]],
    skipped: Mapping[str, str] | None = None,
) -> list[Row]:
    """Measures implementations of the same, and checks that they agree.

    They are timed in turns: a machine that slows down slows all of them.

    Args:
      title: of the case, for the log.
      makers: implementation -> its maker; the first is ours.
      case: argument of the makers, which can be pickled.
      errors_of: (outputs, our outputs) -> name -> error.
      skipped: implementation -> why it is not run.

    Returns:
      The fields of `Result` for each implementation. One that differs from
      ours, or runs out of memory, has failed and is not timed.
    """
    results = {n: Result(n, note=(skipped or {}).get(n, "")) for n in makers}
    calls: dict[str, Call] = {}
    ours = None
    for name, result in results.items():
        if result.note:
            continue
        terminal.info(f"{title}: {name}")
        try:
            call = makers[name](case)
            if options.memory:
                result.peak_growth_mib = peak_memory(makers[name], case)
            outputs = call()
        except ImportError:
            result.note = "not installed"
        except (process.BrokenProcessPool, tf.errors.ResourceExhaustedError):
            result.note = "out of memory, or killed"
            result.failed = True
        else:
            ours = outputs if ours is None else ours
            differences = errors_of(outputs, ours)
            result.errors = {n: e.value for n, e in differences.items()}
            # Not "above", which is false for NaN.
            wrong = [
                f"{n} by {e.value:.1e} (allowed: {e.allowed:.0e})"
                for n, e in differences.items()
                if not e.value <= e.allowed
            ]
            if wrong:
                result.failed = True
                result.note = f"differs from ours: {', '.join(wrong)}"
            else:
                calls[name] = call
    terminal.info(f"{title}: timing of {', '.join(calls) or 'none'}")
    for name, seconds in in_turns(calls, options.repeats).items():
        result = results[name]
        result.milliseconds = 1000 * statistics.median(seconds)
        result.repeats = len(seconds)
        if reference := results[next(iter(makers))].milliseconds:
            result.times_ours = result.milliseconds / reference
    return [dataclasses.asdict(result) for result in results.values()]


def in_turns(
    calls: Mapping[str, Call],
    repeats: int | None = None,
    seconds: float = 20.0,
    warm_up: int = 0,
) -> dict[str, list[float]]:
    """Times calls in turns: name -> the seconds of each repeat.

    It ends after `repeats`, or after `seconds` per call and, if `repeats` is
    set, at least three repeats. Calls of `warm_up` are not timed.
    """
    for _ in range(warm_up):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    done, start = 0, time.perf_counter()
    while calls and done != repeats:
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - before)
        done += 1
        enough = done >= 3 or repeats is None
        if enough and time.perf_counter() - start > seconds * len(calls):
            break
    return times


def keras_cv() -> Any:
    """Imports KerasCV, which prints to stdout, where the table is written."""
    with contextlib.redirect_stdout(sys.stderr):
        return importlib.import_module("keras_cv")


def peak_memory(maker: Maker, case: Any) -> float:
    """Runs a case once, in a new process: the growth of its peak in MiB."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as new:
        return new.submit(_growth, maker, case).result() / _MIB


def _growth(maker: Maker, case: Any) -> int:
    """Returns by how many bytes the call raises this process's peak."""
    call = maker(case)
    before = memory.peak_resident()
    call()
    return memory.peak_resident() - before


# ---- Reports -----------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Returns versions, platform, processors and accelerators."""
    versions = {"python": platform.python_version()}
    packages = ("tf_contrastive", "tensorflow", "keras", "keras-cv")
    for package in (*packages, "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = tf.config.list_physical_devices()
    return {
        "versions": versions,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "accelerators": [d.name for d in devices if d.device_type != "CPU"],
    }


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows under headings, with numbers on the right.

    `columns` maps headings to formats of a field, such as "{milliseconds:.1f}";
    a field that is None is shown as "-".
    """
    lines, texts = [list(columns)], set()
    keys = [text.strip("{}").partition(":")[0] for text in columns.values()]
    for row in rows:
        cells = zip(keys, columns.values(), strict=True)
        lines.append(
            ["-" if row[f] is None else text.format(**row) for f, text in cells]
        )
        texts |= {i for i, f in enumerate(keys) if isinstance(row[f], str)}
    return terminal.format_table(lines, texts)
