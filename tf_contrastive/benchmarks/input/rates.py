"""Examples a second of every implementation, in turns with the floor."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_contrastive import datasets
from tf_contrastive.benchmarks import measure
from tf_contrastive.benchmarks.input.makers import (
    FLOOR,
    HOST_SHARE,
    VARIANTS,
    Case,
    Make,
    implementations,
)
from tf_contrastive.config.benchmark import Benchmarking


def of_cases(
    cases: list[Case],
    source: datasets.Source,
    how: Benchmarking,
    seconds: float,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measures all implementations of all cases.

    Args:
      cases: whose views are made of one source.
      source: what is read.
      how: how often, and whether of this package alone.
      seconds: of each measurement.
      say: is told what is being done.

    Returns:
      A row of each implementation of each case.
    """
    results = []
    for case in cases:
        makers = implementations(case, only_ours=how.only_ours)
        say(f"{case}: {', '.join(makers)}")
        measured = _in_turns(makers, source, case, seconds, how.repeats)
        results += [_row(case, name, *measured) for name in makers]
    return results


def _row(
    case: Case,
    name: str,
    rates: Mapping[str, float],
    first: Mapping[str, float],
    notes: Mapping[str, str],
) -> dict[str, Any]:
    """The results of one implementation of a case, see `_in_turns`."""
    rate, floor = rates.get(name), rates.get(FLOOR)
    ours = {FLOOR, HOST_SHARE, *VARIANTS}
    times = rates["ours"] / rate if rate and name not in ours else None
    return {
        **dataclasses.asdict(case),
        "implementation": name,
        "examples_per_second": rate,
        "of_floor": rate / floor if rate and floor else None,
        "times_peer": times,
        "first_batch_seconds": first.get(name),
        "note": notes.get(name, ""),
    }


def _in_turns(
    makers: Mapping[str, Make],
    source: datasets.Source,
    case: Case,
    seconds: float,
    repeats: int,
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Medians of examples/s, seconds to the first batch, and what failed.

    Every measurement has an iterator of its own, which works for nobody while
    another is measured.
    """
    rates: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    notes: dict[str, str] = {}
    for _ in range(repeats):
        for name, make in makers.items():
            if name in notes:
                continue
            try:
                start = time.perf_counter()
                batches = iter(make(source, case))
                next(batches)
                first.setdefault(name, time.perf_counter() - start)
            except ImportError:
                notes[name] = "not installed"
                continue
            rates.setdefault(name, []).append(
                _rate(batches, case.batch_size, seconds)
            )
            del batches
    medians = {name: statistics.median(r) for name, r in rates.items()}
    return medians, first, notes


def _rate(batches: Iterator[Any], batch_size: int, seconds: float) -> float:
    """Examples a second, once what was made ahead is used up."""
    for _ in range(2):
        next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or count < 2:
        next(batches)
        count += 1
    return count * batch_size / (time.perf_counter() - start)


def table(results: list[dict[str, Any]]) -> str:
    """What `of_cases` measured, as text."""
    return measure.table(
        {
            "policy": "{policy}",
            "pixels": "{image_size}",
            "implementation": "{implementation}",
            "examples/s": "{examples_per_second:,.0f}",
            "of the floor": "{of_floor:.2f}",
            "ours times as fast": "{times_peer:.1f}",
            "first batch s": "{first_batch_seconds:.2f}",
            "note": "{note}",
        },
        results,
    )
