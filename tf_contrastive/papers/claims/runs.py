"""Runs a claim's units, each of its commands in a process of its own.

What a user would type is what is run: a unit's numbers can be had by hand. Runs
are found by what they are, so that claims share those they have in common, and
a claim that was stopped goes on where it was.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, errors
from tf_contrastive.checkpoints import preemption
from tf_contrastive.papers.claims import definitions, measures, verdicts

RESULT_FILE = "result.json"
# Under the workdir: the runs of all claims.
RUNS = "runs"
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Command:
    """One command line of a unit."""

    name: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        words = ("python", "-m", "tf_contrastive", self.name, *self.flags)
        return " ".join(words)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where things are."""

    workdir: str
    data_dir: str = ""
    configs: str = "configs"

    def told(self, command: Command) -> str:
        """A command line as others would type it, without this machine."""
        flags = []
        for flag in command.flags:
            name, _, value = flag.partition("=")
            if name in ("--workdir", "--output_dir"):
                flag = f"{name}=reproduction/{self.within(value)}"
            elif name == "--data_dir":
                flag = f"{name}=DATA"
            flags.append(flag)
        return str(Command(command.name, tuple(flags)))

    def within(self, path: str) -> str:
        """A path below the workdir, from there."""
        return path.removeprefix(self.workdir).lstrip("/")


@dataclasses.dataclass(frozen=True)
class Planned:
    """A unit that is to be run."""

    case: str
    arm: str
    seed: int
    settings: definitions.Settings
    commands: tuple[Command, ...]
    unit: measures.Unit


def plan(
    recipe: definitions.Recipe,
    place: Place,
    seeds: int,
    chosen: dict[str, list[str]] | None = None,
) -> Iterator[Planned]:
    """Yields the units, all of a seed before the next.

    Args:
      recipe: of a claim.
      place: of everything.
      seeds: how many, from 0.
      chosen: "CASE/ARM" -> flags that a selection gave it.
    """
    for seed in range(seeds):
        for case, arm in recipe.units():
            settings = recipe.settings(case, arm)
            if "pretrain" in settings:
                extra = (chosen or {}).get(f"{case}/{arm}", [])
                settings["pretrain"] = settings["pretrain"] + extra
            yield planned(case, arm, seed, settings, place)


def planned(
    case: str, arm: str, seed: int, settings: definitions.Settings, place: Place
) -> Planned:
    """One unit: its command lines, and where they write."""
    workdir = evaluation = ""
    commands = []
    data = [f"--data_dir={place.data_dir}"] if place.data_dir else []
    if "pretrain" in settings:
        flags = _placed(settings["pretrain"], place)
        name = slug(case, arm, f"seed{seed}")
        mark = definitions.fingerprint([settings["pretrain"], seed])
        workdir = os.path.join(place.workdir, RUNS, f"{name}-{mark}")
        flags += [f"--seed={seed}", *data, f"--workdir={workdir}"]
        commands.append(Command("pretrain", tuple(flags)))
    if "evaluate" in settings:
        flags = _placed(settings["evaluate"], place)
        mark = definitions.fingerprint(settings["evaluate"])
        evaluation = os.path.join(workdir, f"evaluation-{mark}")
        flags += [*data, f"--workdir={workdir}", f"--output_dir={evaluation}"]
        commands.append(Command("evaluate", tuple(flags)))
    unit = measures.Unit(workdir, evaluation, settings, seed)
    return Planned(case, arm, seed, settings, tuple(commands), unit)


def _placed(flags: list[str], place: Place) -> list[str]:
    return [flag.replace("{configs}", place.configs) for flag in flags]


def slug(*words: str) -> str:
    """Words as a part of a file's name."""
    text = "-".join(word for word in words if word).lower()
    return re.sub("[^a-z0-9]+", "-", text).strip("-")


def run(
    claim: definitions.Claim,
    scale: str,
    place: Place,
    seeds: int,
    say: Say,
) -> dict[str, Any]:
    """Runs what is left of a claim, and judges it.

    Args:
      claim: what is claimed.
      scale: of `claims.SCALES`.
      place: of everything; the result goes to `<workdir>/<claim>/result.json`
        after every unit.
      seeds: how many; 0: the recipe's.
      say: is told what is run.

    Returns:
      The result: "claim", "scale", "recipe" (fingerprint), "seeds", "chosen",
      "units" (case, arm, seed, values, commands, minutes), "relations" (each
      with its cases' judgements) and "verdict".

    Raises:
      UserError: if a command fails, or a result of another recipe stands
        there.
    """
    recipe = claim.recipe(scale)
    count = seeds or recipe.seeds
    _check(claim, recipe, place)
    result = _begin(claim, scale, recipe, place)
    if recipe.select and not result["chosen"]:
        result["chosen"] = _select(recipe, place, say)
        _write(result, place)
    done = {(u["case"], u["arm"], u["seed"]) for u in result["units"]}
    for unit in plan(recipe, place, count, result["chosen"]):
        if (unit.case, unit.arm, unit.seed) in done:
            continue
        place_name = " ".join(filter(None, (unit.case, unit.arm)))
        say(f"{claim.name}: {place_name}, seed {unit.seed}")
        started = time.monotonic()
        values = _execute(unit, recipe, say)
        result["units"].append(
            {
                "case": unit.case,
                "arm": unit.arm,
                "seed": unit.seed,
                "values": values,
                "commands": [place.told(c) for c in unit.commands],
                "evaluation": place.within(unit.unit.evaluation),
                "minutes": round((time.monotonic() - started) / 60, 2),
            }
        )
        _judge(result, recipe, count)
        _write(result, place)
    _judge(result, recipe, count)
    _write(result, place)
    return result


def _check(
    claim: definitions.Claim, recipe: definitions.Recipe, place: Place
) -> None:
    """Raises `UserError` for a place that lacks what commands will need."""
    if place.data_dir and not tf.io.gfile.isdir(place.data_dir):
        raise errors.UserError(
            f"--data_dir={place.data_dir}: there is no such folder: give that"
            " of prepared TensorFlow Datasets"
        )
    for unit in plan(recipe, place, 1):
        for flag in [flag for c in unit.commands for flag in c.flags]:
            name, _, path = flag.partition("=")
            if name == "--flagfile" and not tf.io.gfile.exists(path):
                raise errors.UserError(
                    f"--configs_dir={place.configs}: there is no {path}: give"
                    " the folder of this package's flagfiles"
                )
    # Last, so that no mistake leaves a folder behind.
    with _told(path_of(claim.name, place.workdir)) as path:
        tf.io.gfile.makedirs(os.path.dirname(path))


def path_of(name: str, workdir: str) -> str:
    """Where a claim's result is."""
    return os.path.join(workdir, name, RESULT_FILE)


def read(name: str, workdir: str) -> dict[str, Any] | None:
    """A claim's result, or None.

    Raises:
      UserError: if what stands there is none.
    """
    path = path_of(name, workdir)
    if not tf.io.gfile.exists(path):
        return None
    return checkpoints.read_json(path)


def _begin(
    claim: definitions.Claim,
    scale: str,
    recipe: definitions.Recipe,
    place: Place,
) -> dict[str, Any]:
    """The result so far, or a new one."""
    mark = definitions.fingerprint([scale, _decisive(recipe)])
    found = read(claim.name, place.workdir)
    if found and found["recipe"] != mark:
        raise errors.UserError(
            f"{path_of(claim.name, place.workdir)} is of another recipe or"
            " --scale: give another --workdir, or move it away"
        )
    return found or {
        "claim": claim.name,
        "scale": scale,
        "recipe": mark,
        "version": metadata.version("tf_contrastive"),
        "cpus": os.cpu_count(),
        "chosen": {},
        "units": [],
    }


def _decisive(recipe: definitions.Recipe) -> dict[str, Any]:
    """What of a recipe decides its result: no words, and no number of seeds."""
    told = ("note", "tried", "minutes", "seeds", "printed", "pictures")
    fields = dataclasses.asdict(recipe)
    return {name: v for name, v in fields.items() if name not in told}


def _execute(
    planned_unit: Planned, recipe: definitions.Recipe, say: Say
) -> dict[str, float | None]:
    for command in planned_unit.commands:
        _call(command, say)
    return measures.values(recipe.values, planned_unit.unit)


def _call(command: Command, say: Say) -> None:
    """Runs a command line, whose own output goes to stderr."""
    say(f"  {command}")
    words = [sys.executable, "-m", "tf_contrastive", command.name]
    try:
        status = subprocess.run(
            [*words, *command.flags], stdout=sys.stderr, check=False
        ).returncode
    except KeyboardInterrupt:
        status = errors.EXIT_RESUME
    kept = "all before it is kept, and the same `reproduce` goes on from there"
    if status == errors.EXIT_RESUME:
        raise preemption.InterruptedRunError(
            f"a command was told to end: {command}; {kept}"
        )
    if status:
        raise errors.UserError(
            f"a command failed ({status}): {command}; {kept}"
        )


def _select(
    recipe: definitions.Recipe, place: Place, say: Say
) -> dict[str, list[str]]:
    """Chooses each arm's settings, on a cut of train, as the papers do.

    The seed is of no unit that is tested.
    """
    chosen = {}
    selection = recipe.select
    grid = [
        [f"--{name}={value}" for name, value in setting]
        for setting in itertools.product(
            *([(n, v) for v in values] for n, values in selection.grid.items())
        )
    ]
    values = {selection.value: recipe.values[selection.value]}
    for case, arm in recipe.units():
        scored = []
        for flags in grid:
            settings = recipe.settings(case, arm)
            settings["pretrain"] = [
                *settings["pretrain"],
                *selection.pretrain,
                *flags,
            ]
            settings["evaluate"] = selection.evaluate
            unit = planned(
                case, arm, definitions.SELECTION_SEED, settings, place
            )
            say(f"selection: {case} {arm} {' '.join(flags)}")
            for command in unit.commands:
                _call(command, say)
            found = measures.values(values, unit.unit)[selection.value]
            scored.append(found)
        best = max(range(len(grid)), key=scored.__getitem__)
        chosen[f"{case}/{arm}"] = grid[best]
    return chosen


def _judge(
    result: dict[str, Any], recipe: definitions.Recipe, seeds: int
) -> None:
    """Puts the relations' judgements, and the verdict, into a result."""
    table = {
        (u["case"], u["arm"], u["seed"]): u["values"] for u in result["units"]
    }

    def read_side(side: definitions.Side, case: str) -> list[float | None]:
        if side.number is not None:
            return [side.number] * seeds
        return [
            table.get((side.case or case, side.arm, seed), {}).get(side.value)
            for seed in range(seeds)
        ]

    judged = []
    for relation in recipe.relations:
        for case in relation.cases:
            left = read_side(relation.left, case)
            right = read_side(relation.right, case)
            row = {"relation": str(relation), "case": case}
            if None in left or None in right:
                judged.append({**row, "verdict": verdicts.INCOMPLETE})
                continue
            judged.append(
                row
                | verdicts.judge(left, right, relation.bound, relation.at_least)
            )
    result["seeds"] = seeds
    result["relations"] = judged
    result["verdict"] = verdicts.combine([row["verdict"] for row in judged])
    if not judged:
        result["verdict"] = "no relation"


def _write(result: dict[str, Any], place: Place) -> None:
    with _told(path_of(result["claim"], place.workdir)) as path:
        tf.io.gfile.makedirs(os.path.dirname(path))
        checkpoints.write_text(path, json.dumps(result, indent=1) + "\n")


@contextlib.contextmanager
def _told(path: str) -> Iterator[str]:
    """Says in one line what keeps `path` from being written."""
    try:
        yield path
    except (OSError, tf.errors.OpError) as error:
        advice = "give a --workdir that you may write to"
        raise errors.cannot_write(path, error, advice) from error
