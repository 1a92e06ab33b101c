"""What all benchmarks share: time, peak memory, comparison, tables.

A benchmark is a series of cases. In each, several implementations do the same
on the same numbers: `side_by_side` checks that they agree, and times them in
turns, so that a machine that slows down slows all of them.
"""

import dataclasses
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, process
from importlib import metadata
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import terminal

# Seconds after which a call has been repeated often enough, if it was so often.
_ENOUGH_SECONDS = 20.0
_ENOUGH_REPEATS = 3

_MIB = 2**20

# Packages whose versions say what was measured, where they are installed.
_PACKAGES = (
    "tf_contrastive",
    "tensorflow",
    "keras",
    "keras-cv",
    "numpy",
    "pytorch-metric-learning",
    "scikit-learn",
    "scipy",
    "torch",
)

# Does once what is measured and returns what it computed.
Call = Callable[[], Any]
# Gets all ready for a case: inputs, imports, but nothing of what is measured. A
# function of a module, since memory is measured in another process.
Make = Callable[[Any], Call]


class Error(NamedTuple):
    """How far an output is from ours, and how far it may be."""

    found: float
    allowed: float


@dataclasses.dataclass
class Result:
    """One implementation in one case. None: not measured, as `note` says."""

    implementation: str
    milliseconds: float | None = None  # Median of the repeats.
    repeats: int = 0
    times_ours: float | None = None  # Milliseconds divided by ours.
    peak_growth_mib: float | None = None  # Peak memory of the first call.
    peak_total_mib: float | None = None  # The same with all there was before.
    graph_building_seconds: float | None = None  # First call less the median.
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""
    failed: bool = False


class Report(NamedTuple):
    """What a benchmark found."""

    results: list[dict[str, Any]]
    tables: list[str]
    passed: bool


def side_by_side(
    makers: Mapping[str, Make],
    case: Any,
    *,
    errors: Callable[[Any, Any], dict[str, Error]],
    skipped: Mapping[str, str],
    repeats: int,
    memory: bool,
    say: Callable[[str], None],
) -> list[Result]:
    """Measures implementations of the same, and checks that they agree.

    Args:
      makers: implementation -> what makes it; the first is ours.
      case: what they are made for; can be pickled.
      errors: (outputs, our outputs) -> the error of each output by its name.
      skipped: implementation -> why it is not run.
      repeats: calls of which the median is taken; fewer if they take long.
      memory: whether to measure peak memory.
      say: is told what is being done.

    Returns:
      A result for each implementation, in their order. One that does not
      agree with ours, or that runs out of memory, has failed and is not timed.
    """
    # PyTorch's OpenMP threads spin while they wait, which slows down everything
    # that is timed in turns, several times. PyTorch reads this when it is
    # imported, and KerasCV imports it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    results = {n: Result(n, note=skipped.get(n, "")) for n in makers}
    calls: dict[str, Call] = {}
    first_seconds: dict[str, float] = {}
    ours = None
    for name, result in results.items():
        if result.note:
            continue
        say(f"{case}: {name}")
        try:
            calls[name] = makers[name](case)
            if memory:
                _measure_memory(result, makers[name], case)
            first_seconds[name], outputs = _timed(calls[name])
        except ImportError:
            result.note = "not installed"
        except (process.BrokenProcessPool, tf.errors.ResourceExhaustedError):
            result.note = "out of memory, or killed"
            result.failed = True
        else:
            ours = outputs if ours is None else ours
            _check(result, errors(outputs, ours))
        if result.note:
            calls.pop(name, None)
    say(f"{case}: timing of {', '.join(calls) or 'none'}")
    for name, seconds in in_turns(calls, repeats).items():
        result, median = results[name], statistics.median(seconds)
        result.milliseconds = 1000 * median
        result.repeats = len(seconds)
        result.graph_building_seconds = max(first_seconds[name] - median, 0.0)
    _compare_times(list(results.values()))
    return list(results.values())


def _check(result: Result, errors: dict[str, Error]) -> None:
    result.errors = {name: error.found for name, error in errors.items()}
    # Not "above", which would let NaN pass.
    wrong = [n for n, e in errors.items() if not e.found <= e.allowed]
    if wrong:
        result.failed = True
        result.note = "differs from ours: " + ", ".join(
            f"{n} by {errors[n].found:.1e} (allowed: {errors[n].allowed:.0e})"
            for n in wrong
        )


def _compare_times(results: list[Result]) -> None:
    ours = results[0].milliseconds
    for result in results:
        if ours is not None and result.milliseconds is not None:
            result.times_ours = result.milliseconds / ours


# ---- Time --------------------------------------------------------------------


def _timed(call: Call) -> tuple[float, Any]:
    start = time.perf_counter()
    outputs = call()
    return time.perf_counter() - start, outputs


def in_turns(calls: Mapping[str, Call], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, made one after the other, again and again."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(1, repeats + 1):
        for name, call in calls.items():
            seconds[name].append(_timed(call)[0])
        spent = time.perf_counter() - start
        if done >= _ENOUGH_REPEATS and spent > _ENOUGH_SECONDS * len(calls):
            break
    return seconds


# ---- Memory ------------------------------------------------------------------


def _measure_memory(result: Result, make: Make, case: Any) -> None:
    result.peak_growth_mib, result.peak_total_mib = peak_memory(make, case)


def peak_memory(make: Make, case: Any) -> tuple[float, float]:
    """Makes and calls it once, in a fresh process.

    Returns:
      MiB: (by which the peak grew in the call, the peak with all before).
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as fresh:
        before, after = fresh.submit(_peaks, make, case).result()
    return (after - before) / _MIB, after / _MIB


def _peaks(make: Make, case: Any) -> tuple[int, int]:
    """Peak bytes of this process before and after the call."""
    call = make(case)
    before = _peak()
    call()
    return before, _peak()


def _peak() -> int:
    """The most memory that this process has held, in bytes."""
    try:
        # Linux hands ru_maxrss of a parent on to the programs that it starts,
        # but not this.
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    # KiB, and on macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# ---- What is reported --------------------------------------------------------


def environment() -> dict[str, Any]:
    """What ran: versions, processors, platform."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "versions": versions,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "accelerators": [
            device.name
            for device in tf.config.list_physical_devices()
            if device.device_type != "CPU"
        ],
    }


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Lays rows out under headings, numbers to the right.

    Args:
      columns: heading -> a format with the row's fields, such as "{size}" or
        "{milliseconds:.1f}". A field that is None shows as "-".
      rows: the fields of each row.
    """
    lines = [list(columns)] + [
        [_cell(text, row) for text in columns.values()] for row in rows
    ]
    texts = {
        place
        for place, text in enumerate(columns.values())
        if not all(
            isinstance(row[_field(text)], int | float | None) for row in rows
        )
    }
    return terminal.format_table(lines, texts)


def _cell(text: str, row: Mapping[str, Any]) -> str:
    return "-" if row[_field(text)] is None else text.format(**row)


def _field(text: str) -> str:
    return text.strip("{}").partition(":")[0]
