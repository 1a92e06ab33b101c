"""The choice of each arm's flags, and the bracket of its learning rate.

A best rate at an edge of its grid is not tuned: a better one may lie beyond.
`beyond` extends the grid there, for all arms of a case alike, until the best
rate has a worse neighbour on both sides.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lab.claims import definitions, verdicts

_RATE = "--learning_rate="
# Further rates of an arm, at most.
EXTENSIONS = 4

# Units of a selection, each with the "flags" that it tries.
Tried = Sequence[Mapping[str, Any]]


class Edge(NamedTuple):
    """A best rate that is the lowest or the highest of those tried."""

    best: float
    rates: list[float]  # In order.


def key(case: str, arm: str) -> str:
    """Returns a unit's name in "chosen" of a result."""
    return f"{case}/{arm}"


def best(tried: Tried, value: str) -> dict[str, list[str]]:
    """Returns the best flags of each case and arm, by a value of the units.

    One that did not train (`verdicts.is_untrained`), or failed, loses against
    one that did.
    """
    scores: dict[str, tuple[tuple[bool, float], list[str]]] = {}
    for unit in tried:
        number = unit["values"].get(value)
        trained = number is not None and not verdicts.is_untrained(unit)
        score = trained, float("-inf") if number is None else number
        name = key(unit["case"], unit["arm"])
        if name not in scores or score > scores[name][0]:
            scores[name] = score, unit["flags"]
    return {name: flags for name, (_, flags) in scores.items()}


def edges(tried: Tried, chosen: Mapping[str, list[str]]) -> dict[str, Edge]:
    """Returns the best rates at an edge of what was tried, by case and arm."""
    found = {}
    for name, flags in chosen.items():
        rate, rates = _rate(flags), _rates(tried, name, flags)
        if rate in (rates[0], rates[-1]) and len(rates) > 1:
            found[name] = Edge(rate, rates)
    return found


def beyond(
    select: definitions.Select, tried: Tried, chosen: Mapping[str, list[str]]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields (case, arm, flags) to try beyond the edges of the grids.

    If an arm's best rate is at an edge, every arm of its case gets a further
    rate on that side, unless the arm at the edge has `EXTENSIONS` already.
    """
    at_edge = edges(tried, chosen)
    for case in dict.fromkeys(unit["case"] for unit in tried):
        names = {arm: key(case, arm) for arm in select.flags}
        sides = {
            at_edge[name].best == at_edge[name].rates[-1]
            for arm, name in names.items()
            if name in at_edge
            and len(at_edge[name].rates) < len(select.flags[arm]) + EXTENSIONS
        }
        for is_high, (arm, name) in itertools.product(sides, names.items()):
            rates = _rates(tried, name, chosen[name])
            if len(rates) > 1:
                last, other = rates[-2:][::-1] if is_high else rates[:2]
                rate = f"{last * last / other:.3g}"
                yield case, arm, [*_others(chosen[name]), f"{_RATE}{rate}"]


def _rates(tried: Tried, name: str, flags: Sequence[str]) -> list[float]:
    """Returns the rates that were tried with the same other flags, in order."""
    return sorted(
        {
            _rate(unit["flags"])
            for unit in tried
            if key(unit["case"], unit["arm"]) == name
            and _others(unit["flags"]) == _others(flags)
        }
    )


def _rate(flags: Sequence[str]) -> float:
    """Returns the learning rate among flags, 0 without one."""
    rates = [x.removeprefix(_RATE) for x in flags if x.startswith(_RATE)]
    return float(rates[-1]) if rates else 0.0


def _others(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith(_RATE)]
