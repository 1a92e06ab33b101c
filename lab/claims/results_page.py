"""The page of a claim: its verdict, relations, setting, values and plots."""

import itertools
import os
import re
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lab.claims import definitions, selection, verdicts
from tf_contrastive.base import terminal
from tf_contrastive.evaluation import figures

PLOT_FILE = "result.png"
# An outcome -> the p-value that decided it; otherwise that of the bound.
_P_VALUES = {
    verdicts.CONTRADICTED: "p_against",
    verdicts.SMALLER: "p_zero",
    verdicts.NONE_FOUND: "p_zero",
}

# Distinguishable with colour blindness, and in gray.
_COLORS = (
    *("#1f77b4", "#d95f02", "#7570b3", "#1b9e77"),
    *("#666666", "#e7298a", "#a6761d", "#17becf"),
)

Table = list[tuple[str, ...]]
# (case, arm) -> (the values of its seeds, the paper's value or None).
Points = dict[tuple[str, str], tuple[list[float], float | None]]

_OUTCOMES = f"""Accuracies are fractions, losses nats. Outcomes are by
paired sign-flip tests over the seeds, one-sided, at 5 %, of each relation
alone; p is that of the outcome, with five seeds at least 1/32 = 0.0312.
*{verdicts.HOLDS}*: beyond the bound, or within a tolerance.
*{verdicts.CONTRADICTED}*: in the other direction, or beyond the tolerance.
*{verdicts.SMALLER}*: above 0 only. *{verdicts.UNDECIDED}*: a tie that is
neither."""


Row = Mapping[str, Any]  # Of `verdicts.judge_all`.


def tables(recipe: definitions.Recipe, result: dict[str, Any]) -> str:
    """Returns the measured and printed values, the relations, the verdicts."""
    values = _values(recipe, result)
    relations = _relations(result["relations"])
    parts = [(k, v) for k, v in result["parts"].items() if k]
    return "\n\n".join(
        [
            terminal.format_table(values, texts=range(3)),
            terminal.format_table(relations, texts=(0, 1, 2, 6, 7)),
            "\n".join(f"{part}: {verdict}" for part, verdict in parts),
            f"{result['claim']}: {result['verdict']}",
        ]
    )


def _points(
    recipe: definitions.Recipe, result: dict[str, Any]
) -> dict[str, Points]:
    """Returns the seeds' values and the paper's, by the name of the value."""
    units = sorted(result["units"], key=lambda unit: unit["seed"])
    values: dict[str, Points] = {}
    for name, key in itertools.product(recipe.values, recipe.units()):
        numbers = [
            unit["values"].get(name)
            for unit in units
            if (unit["case"], unit["arm"]) == key
        ]
        if numbers := [number for number in numbers if number is not None]:
            paper = recipe.paper_value(*key, name)
            values[name] = values.get(name, {}) | {key: (numbers, paper)}
    return values


def _values(recipe: definitions.Recipe, result: dict[str, Any]) -> Table:
    rows: Table = [("case", "arm", "value", "ours", "sd", "seeds", "paper")]
    for name, points in _points(recipe, result).items():
        for (case, arm), (numbers, paper) in points.items():
            sd = f"{statistics.stdev(numbers):.4f}" if numbers[1:] else "-"
            mean, count = f"{statistics.fmean(numbers):.4f}", str(len(numbers))
            printed = "-" if paper is None else f"{paper:g}"
            rows.append((case or "-", arm, name, mean, sd, count, printed))
    return rows


def _relations(rows: Sequence[Row]) -> Table:
    headings = ("part", "case", "relation", "mean", "seeds", "p", "outcome")
    table: Table = [(*headings, "why it decides nothing")]
    for row in rows:
        cells = [row.get("part") or "-", row["case"] or "-"]
        cells += [_shortened(row["relation"])]
        if row["verdict"] in (verdicts.INVALID, verdicts.INCOMPLETE):
            cells += ["-"] * 3
        else:
            p_value = row[_P_VALUES.get(row["verdict"], "p_bound")]
            cells += [f"{row['mean']:+.4f}", _agreeing(row), f"{p_value:.4f}"]
        table.append((*cells, row["verdict"], row.get("also", "-")))
    return table


def _shortened(relation: str) -> str:
    """Returns a relation's text, in which a repeated term is printed once."""
    words = re.split(r"( [+-] | [<>]= | within )", relation)
    signed = zip(["", *words[1::2]], words[::2], strict=True)
    text = ""
    for (sign, term), group in itertools.groupby(signed):
        count = len(list(group))
        text += sign + (f"{count} x " if count > 1 else "") + term
    return text


def compared(row: Row) -> str:
    """Returns what a row compares, in words."""
    text = _shortened(re.split(" (?:[<>]=|within) ", row["relation"])[0])
    return text + f" ({row['case']})" * bool(row["case"])


def _agreeing(row: Row) -> str:
    """Returns how many seeds have the sign of the mean."""
    signs = np.sign(row["differences"])
    return f"{np.sum(signs == np.sign(row['mean']))} of {len(signs)}"


def difference(recipe: definitions.Recipe, row: Row) -> str:
    """Returns a row's mean, in how many seeds it has its sign, the paper's."""
    if row["verdict"] in (verdicts.INVALID, verdicts.INCOMPLETE):
        return row["verdict"]
    text = f"{row['mean']:+.3f} in {_agreeing(row)} seeds"
    relation = {r.text: r for r in recipe.relations}[row["relation"]]
    left = _printed(recipe, relation.left, row["case"])
    right = _printed(recipe, relation.right, row["case"])
    if left is None or right is None:
        return text
    return f"{text} (paper {left - right:+.3f})"


def _printed(
    recipe: definitions.Recipe, terms: Sequence[definitions.Term], case: str
) -> float | None:
    """Returns the sum of terms by the paper's numbers, None without one."""
    total = 0.0
    for term in terms:
        place = term.case or case
        cells = [recipe.paper_value(place, x, term.value) for x in term.arms]
        numbers = [cell for cell in cells if cell is not None]
        if len(numbers) < len(cells) or term.other:
            return None
        total += np.ptp(numbers) if numbers[1:] else numbers[0]
    return total


def deciding(rows: Sequence[Row]) -> Row:
    """Returns a row that is contradicted, else one that does not hold."""
    for verdict in (verdicts.INVALID, verdicts.CONTRADICTED):
        for row in rows:
            if row["verdict"] == verdict:
                return row
    return next((r for r in rows if r["verdict"] != verdicts.HOLDS), rows[0])


def supporting(result: Mapping[str, Any], part: str) -> list[Row]:
    """Returns the rows that support a part of the claim."""
    return [row for row in result["relations"] if row.get("part") == part]


def page(claim: definitions.Claim, result: dict[str, Any], folder: str) -> str:
    """Returns a claim's page; `folder` is that of its plots, beside it."""
    recipe = claim.recipe(result["scale"])
    has_plot = tf.io.gfile.exists(os.path.join(folder, PLOT_FILE))
    count = f"{result['seeds']} seeds"
    if result["verdict"] == verdicts.INCOMPLETE:
        count = f"{len(result['units'])} runs so far"
    rows = result["relations"]
    supports = _relations([row for row in rows if "part" in row])
    also = _relations([row for row in rows if "also" in row])
    parts = [
        f"# {claim.name}",
        f"The paper's claim ({claim.reference}): {claim.claim}",
        "Verdict at this scale, by the [rule](../RESULTS.md):"
        f" **{result['verdict']}** ({count},"
        f" {minutes(result):.0f} minutes).",
        markdown(_parts(recipe, result)),
        *filter(
            None,
            [
                recipe.diagnosis,
                *_gate(result),
                edges(result),
                _added(result),
            ],
        ),
        *[f"![{claim.name}]({claim.name}/{PLOT_FILE})"] * has_plot,
        "## Relations",
        _OUTCOMES,
        markdown([row[:-1] for row in supports]),
        *([markdown([row[1:] for row in also])] if also[1:] else []),
        "## Setting",
        recipe.note or "The paper's.",
        *(f"Also tried: {text}" for text in recipe.tried),
        "## Values",
        "Means and standard deviations over the seeds.",
        markdown(_values(recipe, result)),
    ]
    again = (
        "`python -m lab reproduce"
        f" --claim={claim.name} --scale={result['scale']}"
        " --workdir=reproduction`."
    )
    commands = ["\n".join(unit["commands"]) for unit in result["units"]]
    if first := next(filter(None, commands), ""):
        again += f" Its first run:\n\n```\n{first}\n```"
    return "\n\n".join([*parts, "## To repeat it", again]) + "\n"


def minutes(result: Mapping[str, Any]) -> float:
    """Returns the minutes of all of a result's units."""
    return sum(unit["minutes"] for unit in result["units"])


def _parts(recipe: definitions.Recipe, result: Mapping[str, Any]) -> Table:
    table: Table = [("part of the claim", "verdict", "evidence")]
    for part, verdict in result["parts"].items():
        evidence = "-"
        if rows := supporting(result, part):
            evidence = difference(recipe, deciding(rows))
            if len(rows) > 1:
                held = sum(row["verdict"] == verdicts.HOLDS for row in rows)
                evidence += f"; {held} of {len(rows)} relations hold"
        table.append((part or "all of it", verdict, evidence))
    return table


def untrained(result: dict[str, Any]) -> dict[str, str]:
    """Returns the losses of the cases and arms that did not train."""
    gates: dict[str, list[dict[str, float]]] = {}
    for unit in filter(verdicts.is_untrained, result["units"]):
        name = ", ".join(filter(None, (unit["case"], unit["arm"])))
        gates.setdefault(name, []).append(unit["gate"])
    return {
        name: f"final losses are {_range([x['final'] for x in found])}, that of"
        f" equal embeddings is {found[0]['collapsed']:.2f}"
        for name, found in gates.items()
    }


def _range(numbers: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{f(numbers):.2f}" for f in (min, max))
    return " to ".join(ends)


def _gate(result: dict[str, Any]) -> Iterator[str]:
    """Yields the arms that did not train, or whose loss was not recorded."""
    for name, losses in untrained(result).items():
        yield f"Not trained: {name}. Its {losses}."
    trained = [unit for unit in result["units"] if unit["commands"]]
    if any("gate" not in unit for unit in trained):
        yield "Final losses were not recorded: the gate was not applied."


def edges(result: Mapping[str, Any]) -> str:
    """Returns the tuned rates that are at an edge of what was tried."""
    at_edge = selection.edges(
        result.get("selection", ()), result.get("chosen", {})
    )
    if not at_edge:
        return ""
    texts = [
        f"{name.removeprefix('/')} {edge.best:g} (tried:"
        f" {', '.join(f'{rate:g}' for rate in edge.rates)})"
        for name, edge in at_edge.items()
    ]
    return (
        "Not bracketed: these tuned rates are the lowest or highest that was"
        f" tried, so that a better one may lie beyond: {'; '.join(texts)}."
    )


def _added(result: dict[str, Any]) -> str:
    """Returns which supporting relations were not written before the run."""
    registered = set(result["registered"])
    added = set()
    for row in result["relations"]:
        text, _, bound = row["relation"].partition(" within ")
        # Once a relation of each side.
        sides = {f"{text} >= -{bound}", f"{text} <= {bound}"}
        before = row["relation"] in registered or sides <= registered
        if "part" in row and not before:
            added.add(_shortened(row["relation"]))
    if not added:
        return ""
    return f"Relations added after the run: {'; '.join(sorted(added))}."


def markdown(rows: Table) -> str:
    """Formats a table, whose first row are the headings."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def plot(claim: definitions.Claim, result: dict[str, Any]) -> bytes | None:
    """Plots what supporting relations compare, or else all values, as PNG."""
    recipe = claim.recipe(result["scale"])
    panels = _points(recipe, result)
    compared = [
        {v for term in relation.left + relation.right for v in term.values}
        for relation in recipe.relations
        if not relation.also
    ]
    supporting_ = set().union(*compared)
    panels = {k: v for k, v in panels.items() if k in supporting_} or panels
    if not panels:
        return None
    columns = min(len(panels), 3)
    width = max(0.5 * len(points) for points in panels.values())
    figure, axes = figures.panels(
        -(-len(panels) // columns),
        columns,
        min(max(3.2, width), 5.0),
        2.8,
        sharey=any(len(x) > 1 for x in compared),
    )
    for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, name, points)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    return figures.png(figure)


def _panel(axis: Any, name: str, points: Points) -> None:
    cases = list(dict.fromkeys(case for case, _ in points))
    arms = list(dict.fromkeys(arm for _, arm in points))
    step = 0.8 / len(arms)
    labelled = set()
    for (case, arm), (numbers, paper) in points.items():
        number = arms.index(arm)
        color = _COLORS[number % len(_COLORS)]
        x = cases.index(case) + (number - (len(arms) - 1) / 2) * step
        axis.plot([x] * len(numbers), numbers, "o", color=color, alpha=0.5)
        mean = statistics.fmean(numbers)
        label = None if arm in labelled else arm
        ends = [x - 0.4 * step, x + 0.4 * step]
        axis.plot(ends, [mean, mean], color=color, label=label)
        labelled.add(arm)
        if paper is not None:
            axis.plot(x, paper, "D", mec="black", mfc="none")
    printed = any(paper is not None for _, paper in points.values())
    title = f"{name}; diamonds: the paper" if printed else name
    axis.set_title(title, fontsize=9)
    labels = [textwrap.fill(case, 12) for case in cases]
    axis.set_xticks(range(len(cases)), labels, fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.margins(x=0.1)
    if len(arms) > 1:
        # Beside the panel, where it covers no point.
        axis.legend(
            fontsize=7,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )
