"""Results for people: the tables of a claim, and RESULTS.md."""

import itertools
import json
import os
import re
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive import errors, files, terminal
from tf_contrastive.evaluation import plots
from tf_contrastive.lab.claims import definitions, measures, runs, verdicts

FOLDER = definitions.RESULTS
PLOT_FILE = "result.png"
# Relations whose differences the summary shows; of more, only their number.
_MAX_SHOWN = 3
# p-values of `verdicts.judge` -> their headings.
_P_VALUES = {
    "p_zero": "p, above 0",
    "p_bound": "p, beyond the bound",
    "p_against": "p, opposite",
}

# Distinguishable with colour blindness, and in gray.
_COLORS = (
    "#1f77b4",
    "#d95f02",
    "#7570b3",
    "#1b9e77",
    "#666666",
    "#e7298a",
    "#a6761d",
    "#17becf",
)

Table = list[tuple[str, ...]]
# (case, arm) -> (the values of its seeds, the paper's value or None).
Points = dict[tuple[str, str], tuple[list[float], float | None]]

_INTRODUCTION = f"""# Results

What the papers claim, and what was measured here. `python -m tf_contrastive
reproduce --report` writes this file from the result files in `{FOLDER}`.
[CIFAR-10](guide/cifar10.md) compares SupCon, SimCLR and cross entropy at the
largest size that was trained here.

These runs are small networks on two CPU cores, which can show the direction of
an effect, not the papers' numbers. A claim is judged by *relations*. Each has a
difference of two settings and a bound: the smallest difference that counts, or
the tolerance of a tie. The papers print no bounds; they are this project's.
Recipes and relations (`tf_contrastive/lab/claims/claims.json`) were written
before they were run, or are named as added later; earlier attempts are listed
with them. CIFAR-10 was read from a copy that was stored as JPEG."""
_VERDICTS = f"""Accuracies are fractions, losses nats.

A relation is tested over seeds by one-sided paired sign-flip tests at the 5 %
level: that the difference is above 0, that it is beyond the bound, and that it
has the opposite direction. The smallest p of five seeds is 1/32 = 0.0312. In
brackets is p corrected for the number of relations (Westfall and Young's maxT,
signs flipped in all relations together). A relation's own verdict is by the
uncorrected p, a claim's by the corrected one.

- *{verdicts.HOLDS}*: all relations do.
- *{verdicts.CONTRADICTED}*: a relation is significantly in the opposite
  direction, or a claimed tie beyond its bound.
- *{verdicts.SMALLER}*: every relation is significantly above 0, but not all
  are beyond the bound.
- *{verdicts.NONE_FOUND}*: a difference is not significantly above 0.
- *{verdicts.UNDECIDED}*: a claimed tie is neither shown nor contradicted; or
  relations hold, or one is contradicted, by the uncorrected p only.
- *{verdicts.INVALID}*: a network that is compared did not train: its final loss
  is not below that of equal embeddings.

Relations that are reported, not judged, do not enter the verdict."""


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
        terminal.format_table(relations, texts=(0, 1, 6)),
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
    headings = ("case", "relation", "mean", *_P_VALUES.values(), "verdict")
    rows: Table = [headings]
    for row in result["relations"]:
        mean = f"{row['mean']:+.4f}" if "mean" in row else "-"
        judged = "corrected" in row
        p_values = [
            f"{row[key]:.4f} ({row['corrected'][key]:.4f})"
            if judged and key in row
            else "-"
            for key in _P_VALUES
        ]
        verdict = row["verdict"]
        if reason := row.get("not_judged"):
            verdict = f"{verdict}: {reason}"
        case = row["case"] or "-"
        rows.append((case, _shortened(row), mean, *p_values, verdict))
    return rows


def _shortened(row: Mapping[str, Any]) -> str:
    """Returns a relation's text, in which a repeated term is printed once."""
    words = re.split(r"( [+-] | [<>]= )", row["relation"])
    signed = zip(["", *words[1::2]], words[::2], strict=True)
    text = ""
    for (sign, term), group in itertools.groupby(signed):
        count = len(list(group))
        text += sign + (f"{count} x " if count > 1 else "") + term
    return text


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
            result = runs.read(claim, workdir)
            if result:
                _copy(claim, result, workdir, os.path.join(saved, name))
            result = result or runs.read(claim, saved)
            if result and result["scale"] in claim.recipes:
                results[name] = result
                _draw(claim, result, os.path.join(saved, name))
        files.write(path, _document(known, results, saved), advice)
    return path


def _copy(
    claim: definitions.Claim, result: dict[str, Any], workdir: str, folder: str
) -> None:
    """Copies a result and the plots of its first seed."""
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
            files.write(target, files.read(source))


def _draw(
    claim: definitions.Claim, result: dict[str, Any], folder: str
) -> None:
    """Plots the values that the judged relations compare, or else all."""
    recipe = claim.recipe(result["scale"])
    panels = _points(recipe, result)
    compared = [
        {term.value for term in relation.left + relation.right}
        for relation in recipe.relations
        if not relation.not_judged
    ]
    judged = set().union(*compared)
    panels = {k: v for k, v in panels.items() if k in judged} or panels
    if panels:
        plot = draw(panels, any(len(x) > 1 for x in compared))
        files.write(os.path.join(folder, PLOT_FILE), plot)


def _plot_name(case: str, arm: str, file: str) -> str:
    stem, extension = os.path.splitext(os.path.basename(file))
    return runs.slug(case, arm, stem) + extension


def _document(
    known: Mapping[str, definitions.Claim],
    results: Mapping[str, dict[str, Any]],
    saved: str,
) -> str:
    headings = ("id", "the paper's claim", "judged here", "verdict")
    summary: Table = [(*headings, "differences", "minutes")]
    for name, result in results.items():
        minutes = sum(unit["minutes"] for unit in result["units"])
        link = f"[{name}](#{name.lower()})"
        if result["scale"] != "cpu":
            link += f" ({result['scale']})"
        verdict = f"**{result['verdict']}**"
        if result["verdict"] == verdicts.HOLDS and _beyond(result):
            verdict += " in the judged part"
        summary.append(
            (
                link,
                known[name].claim,
                known[name].recipe(result["scale"]).judged or "-",
                verdict,
                _measured(result),
                f"{minutes:.0f}",
            )
        )
    parts = [_INTRODUCTION, _markdown(summary), _folded("Verdicts", _VERDICTS)]
    for name, result in results.items():
        parts += _section(known[name], result, os.path.join(saved, name))
    parts += ["## Not run here", _not_run(known, results)]
    return "\n\n".join(parts) + "\n"


def _measured(result: dict[str, Any]) -> str:
    """Returns the judged differences, or how many relations hold."""
    rows = [r for r in result["relations"] if "not_judged" not in r]
    reported = len(result["relations"]) - len(rows)
    holding = sum(row["verdict"] == verdicts.HOLDS for row in rows)
    texts = []
    for row in rows:
        if "mean" in row:
            sign = ">=" if row["at_least"] else "<="
            case = f"{row['case']}: " if row["case"] else ""
            texts.append(
                f"{case}{row['mean']:+.3f} (bound {sign} {row['bound']:g})"
                + " (invalid)" * (row["verdict"] == verdicts.INVALID)
            )
    details = f": {'; '.join(texts)}" if 0 < len(texts) <= _MAX_SHOWN else ""
    text = f"{holding} of {len(rows)} relations hold{details}"
    if reported:
        beyond = _beyond(result)
        text += f"; {reported} more reported, {beyond} not within bounds"
    return text


def _beyond(result: dict[str, Any]) -> int:
    """Returns how many of the reported relations are not within bounds."""
    count = 0
    for row in result["relations"]:
        if "not_judged" in row and "mean" in row:
            above = row["mean"] - row["bound"]
            count += above < 0 if row["at_least"] else above > 0
    return count


def _folded(title: str, *parts: str) -> str:
    """Returns parts that a reader unfolds."""
    lines = (f"<details><summary>{title}</summary>", *parts, "</details>")
    return "\n\n".join(lines)


def _section(
    claim: definitions.Claim, result: dict[str, Any], folder: str
) -> list[str]:
    """Returns a claim's verdict, its picture, and the rest folded."""
    recipe = claim.recipe(result["scale"])
    count = f"{result['seeds']} seeds"
    if result["verdict"] == verdicts.INCOMPLETE:
        count = f"{len(result['units'])} runs so far"
    judged = [r for r in result["relations"] if "not_judged" not in r]
    reported = [r for r in result["relations"] if "not_judged" in r]
    parts = [
        f"## {claim.name}",
        f"The paper's claim: {claim.claim}",
        *([f"Judged here: {recipe.judged}"] if recipe.judged else []),
        f"Verdict: **{result['verdict']}** ({count}).",
        *filter(None, [recipe.diagnosis, *_gate(result), _added(result)]),
        *_images(claim.name, folder, {PLOT_FILE: claim.name}),
        _markdown(_relations({"relations": judged})),
    ]
    if reported:
        rows = _relations({"relations": reported})
        # Without p-values.
        rows = [("case", "relation", "mean", "why it is not judged")] + [
            (*row[:3], row[-1].partition(": ")[2]) for row in rows[1:]
        ]
        table = _markdown(rows)
        parts.append(_folded("Relations that are reported, not judged", table))
    tried = [f"Also tried: {text}" for text in recipe.tried]
    if recipe.note or tried:
        parts.append(_folded("Setting", *filter(None, [recipe.note, *tried])))
    values = _markdown(_values(recipe, result))
    parts.append(_folded("All values, means over the seeds", values))
    for file, caption in recipe.plots.items():
        titles = {
            _plot_name(case, arm, file): ", ".join(filter(None, (case, arm)))
            for case, arm in recipe.units()
        }
        if images := list(_images(claim.name, folder, titles, captions=True)):
            parts.append(_folded(caption, *images))
    again = (
        "`python -m tf_contrastive reproduce"
        f" --claim={claim.name} --scale={result['scale']}"
        " --workdir=reproduction`."
    )
    commands = ["\n".join(unit["commands"]) for unit in result["units"]]
    if first := next(filter(None, commands), ""):
        again += f" Its first run:\n\n```\n{first}\n```"
    return [*parts, _folded("To repeat it", again)]


def _images(
    claim: str, folder: str, titles: Mapping[str, str], captions: bool = False
) -> Iterator[str]:
    """Yields those of the images (file -> title) that exist."""
    for file, title in titles.items():
        if tf.io.gfile.exists(os.path.join(folder, file)):
            heading = f"{title}\n\n" if captions else ""
            yield f"{heading}![{title}]({FOLDER}/{claim}/{file})"


def _gate(result: dict[str, Any]) -> Iterator[str]:
    """Yields the arms that did not train, or whose loss was not recorded."""
    trained = [unit for unit in result["units"] if unit["commands"]]
    untrained: dict[str, list[dict[str, float]]] = {}
    for unit in filter(verdicts.is_untrained, trained):
        name = ", ".join(filter(None, (unit["case"], unit["arm"])))
        untrained.setdefault(name, []).append(unit["gate"])
    for name, gates in untrained.items():
        losses = ", ".join(f"{gate['final']:.2f}" for gate in gates)
        yield (
            f"Not trained: {name}. Final losses are {losses}; that of equal"
            f" embeddings is {gates[0]['collapsed']:.2f}."
        )
    if any("gate" not in unit for unit in trained):
        yield "Final losses were not recorded: the gate was not applied."


def _added(result: dict[str, Any]) -> str:
    """Returns which judged relations were not written before the run."""
    added = {
        row["relation"]
        for row in result["relations"]
        if row["relation"] not in result["registered"]
        and "not_judged" not in row
    }
    if not added:
        return ""
    return f"Relations added after the run: {'; '.join(sorted(added))}."


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


def draw(panels: Mapping[str, Points], shared: bool = False) -> bytes:
    """Draws a panel for each value, cases and arms side by side, as PNG.

    `shared` is whether all panels have the same scale.
    """
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width = max(0.5 * len(points) for points in panels.values())
    figure, axes = plots.panels(
        rows, columns, min(max(3.2, width), 5.0), 2.8, sharey=shared
    )
    for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, name, points)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    return plots.png(figure)


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
