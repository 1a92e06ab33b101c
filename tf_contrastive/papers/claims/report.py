"""Results for people: tables of a claim, and docs/RESULTS.md."""

import json
import os
import statistics
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, errors, terminal
from tf_contrastive.papers.claims import definitions, plots, runs, verdicts

# Of a report: the pictures and the results of the claims.
FOLDER = "results"
PLOT_FILE = "result.png"


# ---- One claim ---------------------------------------------------------------


def plan(units: list[runs.Planned]) -> str:
    """The command lines of a claim, in order."""
    lines = []
    for unit in units:
        words = filter(None, (unit.case, unit.arm, f"seed {unit.seed}"))
        lines.append(f"# {', '.join(words)}")
        lines += map(str, unit.commands)
        if not unit.commands:
            lines.append(f"# no command: {json.dumps(unit.settings)}")
    return "\n".join(lines)


def tables_of(
    claim: definitions.Claim, recipe: definitions.Recipe, result: dict[str, Any]
) -> str:
    """What was measured beside what is printed, the relations, the verdict."""
    parts = [
        terminal.format_table(_values(recipe, result), texts=range(3)),
        terminal.format_table(_relations(result), texts=(0, 1, 5)),
        f"{claim.name}: {result['verdict']}",
    ]
    return "\n\n".join(part for part in parts if part)


def spread(
    result: dict[str, Any], case: str, arm: str, value: str
) -> list[float]:
    """A value of every seed that there is."""
    found = [
        unit["values"].get(value)
        for unit in sorted(result["units"], key=lambda unit: unit["seed"])
        if (unit["case"], unit["arm"]) == (case, arm)
    ]
    return [number for number in found if number is not None]


def printed(
    recipe: definitions.Recipe, case: str, arm: str, value: str
) -> float | None:
    """The paper's own number, in our unit."""
    known = definitions.items()
    for place in recipe.printed:
        column = place.columns.get(case, place.columns.get(arm))
        if place.value == value and column and arm in place.rows:
            cell = known[place.item].cell(place.rows[arm], column)
            return None if cell is None else float(cell) * place.scale
    return None


def _values(
    recipe: definitions.Recipe, result: dict[str, Any]
) -> list[tuple[str, ...]]:
    rows = [("case", "arm", "value", "ours", "sd", "seeds", "paper")]
    for value in recipe.values:
        for case, arm in recipe.units():
            found = spread(result, case, arm, value)
            if not found:
                continue
            theirs = printed(recipe, case, arm, value)
            rows.append(
                (
                    case or "-",
                    arm,
                    value,
                    f"{statistics.fmean(found):.4f}",
                    f"{statistics.stdev(found):.4f}" if found[1:] else "-",
                    str(len(found)),
                    "-" if theirs is None else f"{theirs:g}",
                )
            )
    return rows


def _relations(result: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [("case", "relation", "mean", "p", "p against", "verdict")]
    for row in result["relations"]:
        numbers = ("-", "-", "-")
        if "mean" in row:
            numbers = (
                f"{row['mean']:+.4f}",
                f"{row['p']:.4f}",
                f"{row['p_against']:.4f}",
            )
        rows.append(
            (row["case"] or "-", row["relation"], *numbers, row["verdict"])
        )
    return rows


# ---- The report --------------------------------------------------------------


def write(
    known: Mapping[str, definitions.Claim], workdir: str, folder: str
) -> str:
    """Writes RESULTS.md, from result files alone, with pictures beside it.

    Results that stand in `<folder>/results` already are taken up, too, so that
    a report can grow over several machines; those of the workdir win.

    Args:
      known: the claims.
      workdir: of the runs.
      folder: of documents, such as docs.

    Returns:
      The path written.

    Raises:
      UserError: if it cannot be written, or a result cannot be read.
    """
    path = os.path.join(folder, "RESULTS.md")
    try:
        return _write(known, workdir, path)
    except (OSError, tf.errors.OpError) as error:
        advice = "give a --report_dir that you may write to"
        raise errors.cannot_write(path, error, advice) from error


def _write(
    known: Mapping[str, definitions.Claim], workdir: str, path: str
) -> str:
    kept = os.path.join(os.path.dirname(path), FOLDER)
    tf.io.gfile.makedirs(kept)
    found = {}
    for name, claim in known.items():
        result = runs.read(name, workdir)
        if result:
            _keep(claim, result, workdir, os.path.join(kept, name))
        result = result or runs.read(name, kept)
        if result and result["scale"] in claim.recipes:
            found[name] = result
    checkpoints.write_text(path, _document(known, found, kept))
    return path


def _keep(
    claim: definitions.Claim, result: dict[str, Any], workdir: str, folder: str
) -> None:
    """Copies a result and its pictures to where documents are."""
    recipe = claim.recipe(result["scale"])
    tf.io.gfile.makedirs(folder)
    text = json.dumps(result, indent=1) + "\n"
    checkpoints.write_text(os.path.join(folder, runs.RESULT_FILE), text)
    plots.write(
        os.path.join(folder, PLOT_FILE),
        {
            value: {
                (case, arm): (
                    spread(result, case, arm, value),
                    printed(recipe, case, arm, value),
                )
                for case, arm in recipe.units()
            }
            for value in recipe.values
        },
    )
    for unit in result["units"]:
        if unit["seed"]:
            continue
        for file in recipe.pictures:
            source = os.path.join(workdir, unit["evaluation"], file)
            if tf.io.gfile.exists(source):
                name = _picture(unit["case"], unit["arm"], file)
                tf.io.gfile.copy(
                    source, os.path.join(folder, name), overwrite=True
                )


def _picture(case: str, arm: str, file: str) -> str:
    return (
        runs.slug(case, arm, os.path.splitext(os.path.basename(file))[0])
        + (os.path.splitext(file)[1])
    )


def _document(
    known: Mapping[str, definitions.Claim],
    found: Mapping[str, dict[str, Any]],
    kept: str,
) -> str:
    parts = [
        "# Results",
        "What the papers claim, and what came out here. This file is written by"
        " `python -m tf_contrastive reproduce --report`, from the result files"
        f" in [{FOLDER}]({FOLDER}) alone. A claim holds if a one-sided paired"
        " sign-flip test over seeds puts every relation beyond its minimal"
        " effect with p at most 0.05, fails if the test puts one of them on the"
        " other side, and is not significant otherwise. Recipes and relations"
        " (`tf_contrastive/reproduction/claims.json`) were written down before"
        " they were run; what was tried before stands with them.",
        _markdown(
            [("claim", "stands in", "what", "scale", "verdict", "minutes")]
            + [
                (
                    f"[{name}](#{name.lower()})",
                    ", ".join(known[name].items),
                    known[name].claim,
                    result["scale"],
                    f"**{result['verdict']}**",
                    f"{sum(u['minutes'] for u in result['units']):.0f}",
                )
                for name, result in found.items()
            ]
        ),
    ]
    for name, result in found.items():
        parts += _section(known[name], result, kept)
    parts += ["## Not run here", _open_items(known, found)]
    return "\n\n".join(parts) + "\n"


def _section(
    claim: definitions.Claim, result: dict[str, Any], kept: str
) -> list[str]:
    recipe = claim.recipe(result["scale"])
    parts = [f"## {claim.name}", claim.claim]
    if recipe.note:
        parts.append(recipe.note)
    parts += [
        _markdown(_values(recipe, result)),
        _markdown(_relations(result)),
        f"Verdict: **{result['verdict']}**"
        + (
            f" ({result['seeds']} seeds)."
            if result["verdict"] != verdicts.INCOMPLETE
            else f" ({len(result['units'])} runs so far)."
        ),
    ]
    parts += [f"Tried before: {text}" for text in recipe.tried]
    folder = os.path.join(kept, claim.name)
    if tf.io.gfile.exists(os.path.join(folder, PLOT_FILE)):
        parts.append(f"![{claim.name}]({FOLDER}/{claim.name}/{PLOT_FILE})")
    for file, caption in recipe.pictures.items():
        for case, arm in recipe.units():
            name = _picture(case, arm, file)
            if tf.io.gfile.exists(os.path.join(folder, name)):
                words = ", ".join(filter(None, (case, arm)))
                parts.append(
                    f"{caption}: {words}\n\n"
                    f"![{words}]({FOLDER}/{claim.name}/{name})"
                )
    lines = next(
        (u["commands"] for u in result["units"] if u["commands"]), None
    )
    parts.append(
        "To repeat it: `python -m tf_contrastive reproduce"
        f" --claim={claim.name} --scale={result['scale']}"
        " --workdir=reproduction`." + (" Its first run:" if lines else "")
    )
    if lines:
        parts.append("```\n" + "\n".join(lines) + "\n```")
    return parts


def _open_items(
    known: Mapping[str, definitions.Claim], found: Mapping[str, dict[str, Any]]
) -> str:
    rows = [("id", "stands in", "what", "how")]
    papers = definitions.papers()
    for name, item in definitions.items().items():
        claim = definitions.of_item(name, known)
        if claim and claim.name in found:
            continue
        how = item.note
        if claim:
            scales = ", ".join(f"`--scale={s}`" for s in claim.recipes)
            how = f"`--claim={claim.name}` at {scales}"
        title = papers[item.paper].partition(",")[0]
        rows.append((name, f"{title}, {item.where}", item.claim, how))
    return _markdown(rows)


def _markdown(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)
