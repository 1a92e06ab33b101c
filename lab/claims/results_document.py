"""Results for people: RESULTS.md, and a page for each claim."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from lab.claims import (
    definitions,
    measures,
    results_page,
    runs,
    verdicts,
)
from tf_contrastive.base import errors, files

FOLDER = definitions.RESULTS
# A page in `FOLDER`: tables and figures without a result.
_OTHERS = "not_run.md"

_INTRODUCTION = f"""# Results

The papers' claims, tested with small networks on two CPU cores, in minutes.
Such runs can show the direction of an effect, not the papers' numbers. `python
-m lab reproduce --report` writes these pages from the result files in
`{FOLDER}`. [CIFAR-10](guide/cifar10.md) compares SupCon, SINCERE, SimCLR and
cross entropy at the largest size that was trained here; [other tables and
figures]({FOLDER}/{_OTHERS}) have no result."""
_RULE = f"""Each part of a claim is supported by *relations*: a difference of
two settings, and the smallest effect that counts or the tolerance of a tie
(both are this project's), tested over five seeds at p <= 0.05. Other
measurements decide nothing; they are listed above if they are contradicted.

- **{verdicts.SHOWN}**: all relations hold. **{verdicts.PARTLY}**: the relations
  of the named parts hold.
- **{verdicts.OPPOSITE}**: no part is shown, and a relation is significantly the
  other way, or a tie beyond its tolerance.
- **{verdicts.NOT_SHOWN}**: neither. A difference may have the right direction,
  below its bound.
- **{verdicts.NOT_TESTED}**: no relation supports the claim.
- **{verdicts.INVALID}**: a compared network did not train, whatever the
  relations say."""


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


def write(
    known: Mapping[str, definitions.Claim], workdir: str, folder: str
) -> str:
    """Writes RESULTS.md in a folder, and in its `results` the rest.

    The rest is a page, the result as it is judged now, and the plots of each
    claim. Results from an earlier report stay unless the workdir has newer
    ones, so that a report can cover the runs of several machines.

    Returns:
      The path of RESULTS.md.
    """
    path = os.path.join(folder, "RESULTS.md")
    saved = os.path.join(folder, FOLDER)
    advice = "set `report_dir` to a folder that you may write to"
    with errors.write_errors(path, advice):
        tf.io.gfile.makedirs(saved)
        results = {}
        for name, claim in known.items():
            newer = runs.read(claim, workdir)
            result = newer or runs.read(claim, saved)
            if not result or result["scale"] not in claim.recipes:
                continue
            results[name] = result
            plots = os.path.join(saved, name)
            tf.io.gfile.makedirs(plots)
            files.write_json(runs.path_of(name, saved), result, advice)
            if plot := results_page.plot(claim, result):
                files.write(os.path.join(plots, results_page.PLOT_FILE), plot)
            text = results_page.page(claim, result, plots)
            files.write(os.path.join(saved, f"{name}.md"), text, advice)
        others = os.path.join(saved, _OTHERS)
        files.write(others, _not_run(known, results), advice)
        files.write(path, _summary(known, results), advice)
    return path


def _summary(
    known: Mapping[str, definitions.Claim],
    results: Mapping[str, dict[str, Any]],
) -> str:
    rows: results_page.Table = [
        ("id", "the paper's claim", "verdict", "measured", "minutes")
    ]
    for name, result in results.items():
        recipe = known[name].recipe(result["scale"])
        link = f"[{name}]({FOLDER}/{name}.md)"
        if result["scale"] != "cpu":
            link += f" ({result['scale']})"
        verdict = f"**{result['verdict']}**"
        if result["verdict"] == verdicts.PARTLY:
            shown = (verdicts.SHOWN, verdicts.PARTLY)
            parts = [k for k, v in result["parts"].items() if v in shown and k]
            verdict += f": {', '.join(parts)}" if parts else ""
        rows.append(
            (
                link,
                known[name].claim,
                verdict,
                _measured(recipe, result),
                f"{results_page.minutes(result):.0f}",
            )
        )
    parts = [_INTRODUCTION, results_page.markdown(rows), _RULE]
    if open_ := [n for n, r in results.items() if results_page.edges(r)]:
        parts.append(
            f"The best learning rates of {', '.join(open_)} are at an edge of"
            " their grid."
        )
    return "\n\n".join(parts) + "\n"


def _measured(recipe: definitions.Recipe, result: dict[str, Any]) -> str:
    """Returns the difference that decided, and every one that is contradicted.

    Of each part, and of the relations that support none; of an invalid claim,
    what did not train.
    """
    if result["verdict"] == verdicts.INVALID:
        losses = results_page.untrained(result).items()
        return "; ".join(f"{name} not trained: {text}" for name, text in losses)
    rows = result["relations"]
    parts = {
        part: results_page.deciding(supporting)
        for part in result["parts"]
        if (supporting := results_page.supporting(result, part))
    }
    shown = [
        (part, row)
        for part, row in parts.items()
        if row["verdict"] == verdicts.CONTRADICTED
    ]
    if not shown and parts:
        decided = results_page.deciding(list(parts.values()))
        shown = [(decided["part"], decided)]
    shown += [
        (f"also {results_page.compared(row)}", row)
        for row in rows
        if "also" in row and row["verdict"] == verdicts.CONTRADICTED
    ]
    return "; ".join(
        f"{name}: " * bool(name) + results_page.difference(recipe, row)
        for name, row in shown
    )


def _not_run(
    known: Mapping[str, definitions.Claim], results: Mapping[str, Any]
) -> str:
    rows: results_page.Table = [("id", "item", "claim", "how")]
    for name, item in definitions.items().items():
        claim = definitions.claim_of(name, known)
        if claim and claim.name in results:
            continue
        how = item.note
        if claim:
            scales = ", ".join(f"`--scale={s}`" for s in claim.recipes)
            how = f"`--claim={claim.name}` at {scales}"
        rows.append((name, f"{item.authors}, {item.where}", item.claim, how))
    return f"# Not run here\n\n{results_page.markdown(rows)}\n"
