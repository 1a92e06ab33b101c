"""Runs a claim's units, each command in a process of its own.

The commands are those that a user would type. A run's folder is named after its
flags: claims share runs, and a claim that was stopped resumes.
"""

import dataclasses
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import tensorflow as tf

from lab.claims import definitions, measures, selection, verdicts
from tf_contrastive import flags
from tf_contrastive.base import errors, files, processes, terminal
from tf_contrastive.config.command import Command
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.config.pretrain import Pretrain

RESULT_FILE = "result.json"
# Under the workdir: the runs of all claims.
RUNS = "runs"
# Seed of the runs that choose an arm's flags; no judged run has it.
SELECTION_SEED = 1000
# The folder of recorded commands.
_THERE = "reproduction"
# Fields of a recipe that do not change what is run and measured. Reading a
# result tests its relations again.
_TEXTS = (
    *("untested", "note", "tried", "minutes"),
    *("seeds", "printed", "relations", "diagnosis"),
)
# In the error of a command whose training diverged.
_DIVERGED = re.compile("diverge|not finite|NaN|infinit")

_OPTIONS: dict[str, type[Command]] = {
    definitions.PRETRAIN: Pretrain,
    definitions.EVALUATE: Scoring,
}


@dataclasses.dataclass(frozen=True)
class Folders:
    """Where runs, data and flagfiles are."""

    workdir: str
    data_dir: str = ""
    configs_dir: str = "configs"

    def flags(self, given: Sequence[str]) -> list[str]:
        """Returns flags with the folder of the flagfiles."""
        return [flag.replace("{configs}", self.configs_dir) for flag in given]


def command_line(words: Sequence[str]) -> str:
    """Returns a command as a user would type it."""
    return " ".join(("python -m tf_contrastive", *words))


def path_of(name: str, workdir: str) -> str:
    """Returns the path of a claim's result."""
    return os.path.join(workdir, name, RESULT_FILE)


def read(claim: definitions.Claim, workdir: str) -> dict[str, Any] | None:
    """Reads a claim's result and judges it; None if there is none."""
    path = path_of(claim.name, workdir)
    if not tf.io.gfile.exists(path):
        return None
    result = files.read_json(path)
    if result["scale"] in claim.recipes:
        judge(claim.recipe(result["scale"]), result, result["seeds"])
    return result


def read_all(
    known: Mapping[str, definitions.Claim], workdir: str
) -> dict[str, dict[str, Any]]:
    """Reads the results that exist, by the name of the claim."""
    results = {name: read(claim, workdir) for name, claim in known.items()}
    return {name: result for name, result in results.items() if result}


def judge(
    recipe: definitions.Recipe, result: dict[str, Any], seeds: int
) -> None:
    """Sets what follows from a result's units, "seeds" to "verdict"."""
    rows = verdicts.judge_all(recipe.relations, result["units"], seeds)
    parts, verdict = verdicts.judge_claim(rows, recipe.untested)
    result["seeds"], result["relations"] = seeds, rows
    result["parts"], result["verdict"] = parts, verdict


def plan(
    recipe: definitions.Recipe,
    folders: Folders,
    seeds: int,
    chosen: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[measures.Unit]:
    """Yields the units, all of one seed before those of the next.

    `chosen` holds the flags of a selection, see `select`.
    """
    for seed, (case, arm) in itertools.product(range(seeds), recipe.units()):
        settings = recipe.settings(case, arm)
        if best := (chosen or {}).get(selection.key(case, arm)):
            settings[definitions.PRETRAIN] += best
        yield _unit(case, arm, seed, settings, folders)


def _unit(
    case: str,
    arm: str,
    seed: int,
    settings: Mapping[str, Any],
    folders: Folders,
) -> measures.Unit:
    """Returns a unit with its commands.

    Runs with the same flags and seed share a folder, whatever their claim, case
    and arm.
    """
    data = [f"--data_dir={folders.data_dir}"] if folders.data_dir else []
    unit = measures.Unit(case, arm, seed, settings, folders.data_dir)
    if definitions.PRETRAIN in settings:
        given = settings[definitions.PRETRAIN]
        kind = unit.baseline or "seed"
        # Options of a baseline are not among the flags.
        own = [settings[kind]] if settings.get(kind) else []
        digest = definitions.fingerprint([given, seed, *own])
        name = f"{kind}{seed}-{digest}"
        workdir = os.path.join(folders.workdir, RUNS, name)
        options = [f"--seed={seed}", *data, f"--workdir={workdir}"]
        unit = unit._replace(
            workdir=workdir, pretrain=[*folders.flags(given), *options]
        )
    evaluations = {}
    for name, given in definitions.evaluations(settings).items():
        digest = definitions.fingerprint(given)
        folder = os.path.join(unit.workdir, f"evaluation-{digest}")
        options = [f"--workdir={unit.workdir}", f"--output_dir={folder}"]
        words = [*folders.flags(given), *data, *options]
        evaluations[name] = measures.Evaluated(words, folder)
    return unit._replace(evaluations=evaluations)


def candidates(
    recipe: definitions.Recipe, folders: Folders
) -> Iterator[tuple[measures.Unit, list[str]]]:
    """Yields the units of a selection, and the flags that each one tries."""
    grids = recipe.select.flags if recipe.select else {}
    for case, arm in recipe.units():
        for given in grids.get(arm, ()):
            yield _candidate(recipe, folders, case, arm, given), given


def _candidate(
    recipe: definitions.Recipe,
    folders: Folders,
    case: str,
    arm: str,
    given: Sequence[str],
) -> measures.Unit:
    """Returns the unit that tries flags, on the cut of the selection."""
    assert recipe.select
    settings = recipe.settings(case, arm)
    settings[definitions.PRETRAIN] += [*given, *recipe.select.pretrain]
    for scoring in definitions.evaluations(settings).values():
        scoring += recipe.select.evaluate
    return _unit(case, arm, SELECTION_SEED, settings, folders)


def run(
    claim: definitions.Claim,
    scale: str,
    folders: Folders,
    seeds: int | None = None,
) -> dict[str, Any]:
    """Runs the missing units of a claim, and judges it.

    The result is written to `<workdir>/<claim>/result.json` after each unit.
    `seeds` is the number of seeds; None: the recipe's.

    Returns:
      The result: "claim", "scale", "recipe" (fingerprint), "version", "cpus",
      "registered" (the relations when it was begun), "selection" (units) and
      "chosen" (case and arm -> flags) if arms are tuned, "units" (case, arm,
      seed, values, gate, commands, evaluation, minutes), "seeds", "relations"
      (see `verdicts.judge_all`), "parts" and "verdict" (`judge_claim`).
    """
    recipe = claim.recipe(scale)
    seeds = seeds or recipe.seeds
    _check(recipe, folders)
    path = path_of(claim.name, folders.workdir)
    fingerprint = recipe_fingerprint(recipe, scale)
    result = read(claim, folders.workdir) or {
        "claim": claim.name,
        "scale": scale,
        "recipe": fingerprint,
        "version": metadata.version("tf_contrastive"),
        "cpus": os.cpu_count(),
        "registered": sorted({r.text for r in recipe.relations}),
        "units": [],
    }
    if result["recipe"] != fingerprint:
        raise errors.UserError(
            f"{path} is of another recipe or {errors.arg('scale')}: set another"
            f" {errors.arg('workdir')}, or move the file away"
        )

    def save() -> None:
        judge(recipe, result, seeds)
        advice = (
            f"set {errors.arg('workdir')} to a folder that you may write to"
        )
        files.write_json(path, result, advice)

    save()  # Before anything is run: fails if it cannot be written.
    chosen = _select(claim.name, recipe, folders, result, save)
    done = {(u["case"], u["arm"], u["seed"]) for u in result["units"]}
    for unit in plan(recipe, folders, seeds, chosen):
        if (unit.case, unit.arm, unit.seed) not in done:
            result["units"].append(_run(claim.name, recipe, unit, folders))
            save()
    return result


def _run(
    claim: str,
    recipe: definitions.Recipe,
    unit: measures.Unit,
    folders: Folders,
) -> dict[str, Any]:
    """Runs a unit's commands; returns its part of the result."""
    where = " ".join(filter(None, (unit.case, unit.arm)))
    terminal.info(f"{claim}: {where}, seed {unit.seed}")
    start = time.monotonic()
    for words in unit.commands:
        _call(words)
    # As on another machine.
    there = dataclasses.replace(
        folders, workdir=_THERE, data_dir=folders.data_dir and "DATA"
    )
    portable = _unit(unit.case, unit.arm, unit.seed, unit.settings, there)
    scoring = portable.evaluations.get("")
    return {
        "case": unit.case,
        "arm": unit.arm,
        "seed": unit.seed,
        "values": measures.values(recipe, unit),
        "gate": measures.gate(unit),
        "commands": [command_line(words) for words in portable.commands],
        "evaluation": scoring.folder.removeprefix(f"{_THERE}/")
        if scoring
        else "",
        "minutes": round((time.monotonic() - start) / 60, 2),
    }


def _select(
    claim: str,
    recipe: definitions.Recipe,
    folders: Folders,
    result: dict[str, Any],
    save: Callable[[], None],
) -> dict[str, list[str]]:
    """Runs the missing candidates; returns the best flags of each unit.

    Grids whose best rate is at an edge are extended. Units that were judged
    with other flags than the best are dropped.
    """
    select = recipe.select
    if select is None:
        return {}
    tried = result.setdefault("selection", [])
    done = [(unit["case"], unit["arm"], unit["flags"]) for unit in tried]

    def attempt(unit: measures.Unit, given: list[str]) -> None:
        try:
            found = _run(claim, recipe, unit, folders)
        except errors.DivergedError as error:  # It loses.
            found = {"case": unit.case, "arm": unit.arm, "failed": str(error)}
            found["values"] = {}
        tried.append(found | {"flags": given})
        save()

    for unit, given in candidates(recipe, folders):
        if (unit.case, unit.arm, given) not in done:
            attempt(unit, given)
    best = selection.best(tried, select.value)
    while further := list(selection.beyond(select, tried, best)):
        for case, arm, given in further:
            attempt(_candidate(recipe, folders, case, arm, given), given)
        best = selection.best(tried, select.value)
    before = result.get("chosen", best)
    result["units"] = [
        unit
        for unit in result["units"]
        if (name := selection.key(unit["case"], unit["arm"])) not in best
        or before.get(name) == best[name]
    ]
    result["chosen"] = best
    save()
    return best


def recipe_fingerprint(recipe: definitions.Recipe, scale: str) -> str:
    """Returns the fingerprint of what a recipe runs and measures."""
    fields = dataclasses.asdict(recipe)
    decisive = {
        k: v for k, v in fields.items() if k not in _TEXTS and v is not None
    }
    return definitions.fingerprint([scale, decisive])


def _check(recipe: definitions.Recipe, folders: Folders) -> None:
    """Raises `UserError` if data, flagfiles or values are missing."""
    if folders.data_dir and not tf.io.gfile.isdir(folders.data_dir):
        raise errors.UserError(
            f"{errors.arg('data_dir', folders.data_dir)} does not exist: set it"
            " to the folder of prepared TensorFlow Datasets"
        )
    tried = [unit for unit, _ in candidates(recipe, folders)]
    for unit in [*tried, *plan(recipe, folders, 1)]:
        for command, *words in unit.commands:
            flags.parse(_OPTIONS[command], words).validate()
        measures.check(recipe, unit)


def _call(words: Sequence[str]) -> None:
    """Runs a command, whose own output goes to stderr."""
    line = command_line(words)
    terminal.info(f"  {line}")
    status, last = processes.run(words)
    hint = "results so far are saved; repeat the same `reproduce` to resume"
    if status == errors.EXIT_RESUME:
        raise errors.InterruptedRunError(
            f"a command was interrupted: {line}; {hint}"
        )
    if status and _DIVERGED.search(last):
        raise errors.DivergedError(f"a training diverged: {line}: {last}")
    if status:
        raise errors.UserError(f"a command failed ({status}): {line}; {hint}")
