"""Results for people: the tables of a claim, and RESULTS.md."""

import itertools
import json
import os
import statistics
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_contrastive import checkpoints, errors, terminal
from tf_contrastive.evaluation import plots
from tf_contrastive.papers.claims import definitions, measures, runs, verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Next to RESULTS.md: the plots and results of the claims.
FOLDER = "results"
PLOT_FILE = "result.png"

# Distinguishable with colour blindness, and in gray.
_COLORS = ("#1f77b4", "#d95f02", "#7570b3", "#1b9e77", "#666666")

Table = list[tuple[str, ...]]
# (case, arm) -> (the values of its seeds, the paper's value or None).
Points = dict[tuple[str, str], tuple[list[float], float | None]]

_INTRODUCTION = (
    "# Results\n\nWhat the papers claim, and what was measured here. `python -m"
    " tf_contrastive reproduce --report` writes this file from the result files"
    f" in [{FOLDER}]({FOLDER}). The verdict is by a one-sided paired sign-flip"
    " test over seeds at p <= 0.05: a claim holds if every relation exceeds its"
    " minimal effect, fails if one of them is significantly on the other side,"
    " and is not significant otherwise. Recipes and relations"
    " (`tf_contrastive/papers/claims/claims.json`) were written before they"
    " were run; earlier attempts are listed with them."
)


def plan(units: Iterable[measures.Unit]) -> str:
    """Returns the commands of a claim, in order."""
    lines = []
    for unit in units:
        names = filter(None, (unit.case, unit.arm, f"seed {unit.seed}"))
        lines.append(f"# {', '.join(names)}")
        lines += [runs.command_line(words) for words in unit.commands] or [
            f"# no command: {json.dumps(unit.settings)}"
        ]
    return "\n".join(lines)


def tables(recipe: definitions.Recipe, result: dict[str, Any]) -> str:
    """Returns the measured and printed values, the relations, the verdict."""
    values, relations = _values(recipe, result), _relations(result)
    parts = [
        terminal.format_table(values, texts=range(3)),
        terminal.format_table(relations, texts=(0, 1, 5)),
        f"{result['claim']}: {result['verdict']}",
    ]
    return "\n\n".join(parts)


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


def _relations(result: dict[str, Any]) -> Table:
    rows: Table = [("case", "relation", "mean", "p", "p against", "verdict")]
    for row in result["relations"]:
        numbers = ["-", "-", "-"]
        if "mean" in row:
            p_values = [f"{row[key]:.4f}" for key in ("p", "p_against")]
            numbers = [f"{row['mean']:+.4f}", *p_values]
        case = row["case"] or "-"
        rows.append((case, row["relation"], *numbers, row["verdict"]))
    return rows


# ---- RESULTS.md --------------------------------------------------------------


def write(
    known: Mapping[str, definitions.Claim], workdir: str, folder: str
) -> str:
    """Writes `<folder>/RESULTS.md`, results and plots; returns its path.

    Results that are in `<folder>/results` from an earlier report stay in it
    unless the workdir has newer ones, so that a report can cover the runs of
    several machines.
    """
    path = os.path.join(folder, "RESULTS.md")
    saved = os.path.join(folder, FOLDER)
    advice = "set `report_dir` to a folder that you may write to"
    with errors.write_errors(path, advice):
        tf.io.gfile.makedirs(saved)
        results = {}
        for name, claim in known.items():
            result = runs.read(name, workdir)
            if result:
                _copy(claim, result, workdir, os.path.join(saved, name))
            result = result or runs.read(name, saved)
            if result and result["scale"] in claim.recipes:
                results[name] = result
        checkpoints.write_file(path, _document(known, results, saved), advice)
    return path


def _copy(
    claim: definitions.Claim, result: dict[str, Any], workdir: str, folder: str
) -> None:
    """Copies a result and the plots of its first seed, and plots its values."""
    recipe = claim.recipe(result["scale"])
    tf.io.gfile.makedirs(folder)
    copies = {runs.path_of(claim.name, workdir): runs.RESULT_FILE}
    for unit in result["units"]:
        for file in recipe.plots if unit["seed"] == 0 else ():
            source = os.path.join(workdir, unit["evaluation"], file)
            copies[source] = _plot_name(unit["case"], unit["arm"], file)
    for source, name in copies.items():
        if tf.io.gfile.exists(source):
            target = os.path.join(folder, name)
            tf.io.gfile.copy(source, target, overwrite=True)
    panels = _points(recipe, result)
    if panels:
        with tf.io.gfile.GFile(os.path.join(folder, PLOT_FILE), "wb") as file:
            file.write(draw(panels))


def _plot_name(case: str, arm: str, file: str) -> str:
    stem, extension = os.path.splitext(os.path.basename(file))
    return runs.slug(case, arm, stem) + extension


def _document(
    known: Mapping[str, definitions.Claim],
    results: Mapping[str, dict[str, Any]],
    saved: str,
) -> str:
    summary: Table = [("id", "items", "claim", "scale", "verdict", "minutes")]
    for name, result in results.items():
        minutes = sum(unit["minutes"] for unit in result["units"])
        summary.append(
            (
                f"[{name}](#{name.lower()})",
                ", ".join(known[name].items),
                known[name].claim,
                result["scale"],
                f"**{result['verdict']}**",
                f"{minutes:.0f}",
            )
        )
    parts = [_INTRODUCTION, _markdown(summary)]
    for name, result in results.items():
        parts += _section(known[name], result, os.path.join(saved, name))
    parts += ["## Not run here", _not_run(known, results)]
    return "\n\n".join(parts) + "\n"


def _section(
    claim: definitions.Claim, result: dict[str, Any], folder: str
) -> list[str]:
    recipe = claim.recipe(result["scale"])
    count = f"{result['seeds']} seeds"
    if result["verdict"] == verdicts.INCOMPLETE:
        count = f"{len(result['units'])} runs so far"
    parts = [
        f"## {claim.name}",
        claim.claim,
        *filter(None, [recipe.note]),
        _markdown(_values(recipe, result)),
        _markdown(_relations(result)),
        f"Verdict: **{result['verdict']}** ({count}).",
        *(f"Tried before: {text}" for text in recipe.tried),
    ]
    images = [("", claim.name, PLOT_FILE)]
    for file, caption in recipe.plots.items():
        for case, arm in recipe.units():
            name = ", ".join(filter(None, (case, arm)))
            heading = f"{caption}: {name}\n\n"
            images.append((heading, name, _plot_name(case, arm, file)))
    for heading, name, file in images:
        if tf.io.gfile.exists(os.path.join(folder, file)):
            path = f"{FOLDER}/{claim.name}/{file}"
            parts.append(f"{heading}![{name}]({path})")
    again = (
        "To repeat it: `python -m tf_contrastive reproduce"
        f" --claim={claim.name} --scale={result['scale']}"
        " --workdir=reproduction`."
    )
    commands = ["\n".join(unit["commands"]) for unit in result["units"]]
    if first := next(filter(None, commands), ""):
        again += f" Its first run:\n\n```\n{first}\n```"
    return [*parts, again]


def _not_run(
    known: Mapping[str, definitions.Claim], results: Mapping[str, Any]
) -> str:
    rows: Table = [("id", "item", "claim", "how")]
    papers = definitions.papers()
    for name, item in definitions.items().items():
        claim = definitions.claim_of(name, known)
        if claim and claim.name in results:
            continue
        how = item.note
        if claim:
            scales = ", ".join(f"`--scale={s}`" for s in claim.recipes)
            how = f"`--claim={claim.name}` at {scales}"
        author = papers[name.partition("-")[0]].partition(",")[0]
        rows.append((name, f"{author}, {item.where}", item.claim, how))
    return _markdown(rows)


def _markdown(rows: Table) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


# ---- Plots -------------------------------------------------------------------


def draw(panels: Mapping[str, Points]) -> bytes:
    """Draws a panel for each value, cases and arms side by side, as PNG."""
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width = max(0.5 * len(points) for points in panels.values())
    figure, axes = plots.panels(rows, columns, min(max(3.2, width), 5.0), 2.8)
    for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, name, points)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    return plots.png(figure)


def _panel(axis: "Axes", name: str, points: Points) -> None:
    plots.plain(axis)
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
        axis.legend(fontsize=7, frameon=False)
