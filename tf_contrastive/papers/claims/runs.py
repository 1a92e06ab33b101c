"""Runs a claim's units, each command in a process of its own.

The commands are those that a user would type. A run's folder is named after its
flags: claims share runs, and a claim that was stopped resumes.
"""

import dataclasses
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, errors, terminal
from tf_contrastive.checkpoints import preemption
from tf_contrastive.papers.claims import definitions, measures, verdicts

RESULT_FILE = "result.json"
# Under the workdir: the runs of all claims.
RUNS = "runs"
# Fields of a recipe that do not change its result.
_TEXTS = ("note", "tried", "minutes", "seeds", "printed", "plots")


@dataclasses.dataclass(frozen=True)
class Folders:
    """Where runs, data and flagfiles are."""

    workdir: str
    data_dir: str = ""
    configs_dir: str = "configs"

    def relative(self, path: str) -> str:
        """Returns a path below the workdir, relative to it."""
        return path.removeprefix(self.workdir).lstrip("/")

    def portable(self, words: Sequence[str]) -> str:
        """Returns a command line without the folders of this machine."""
        portable = []
        for word in words:
            name, _, value = word.partition("=")
            if name in ("--workdir", "--output_dir"):
                word = f"{name}=reproduction/{self.relative(value)}"
            elif name == "--data_dir":
                word = f"{name}=DATA"
            portable.append(word)
        return command_line(portable)


def command_line(words: Sequence[str]) -> str:
    """Returns a command as a user would type it."""
    return " ".join(("python -m tf_contrastive", *words))


def slug(*words: str) -> str:
    """Returns words as part of a file name."""
    text = "-".join(word for word in words if word).lower()
    return re.sub("[^a-z0-9]+", "-", text).strip("-")


def path_of(name: str, workdir: str) -> str:
    """Returns the path of a claim's result."""
    return os.path.join(workdir, name, RESULT_FILE)


def read(name: str, workdir: str) -> dict[str, Any] | None:
    """Reads a claim's result; None if there is none."""
    path = path_of(name, workdir)
    return checkpoints.read_json(path) if tf.io.gfile.exists(path) else None


def plan(
    recipe: definitions.Recipe, folders: Folders, seeds: int
) -> Iterator[measures.Unit]:
    """Yields the units, all of one seed before those of the next."""
    data = [f"--data_dir={folders.data_dir}"] if folders.data_dir else []
    for seed, (case, arm) in itertools.product(range(seeds), recipe.units()):
        settings = recipe.settings(case, arm)
        workdir = evaluation = ""
        commands = []
        flags = {
            name: [
                flag.replace("{configs}", folders.configs_dir)
                for flag in settings[name]
            ]
            for name in definitions.COMMANDS
            if name in settings
        }
        if "pretrain" in flags:
            digest = definitions.fingerprint([settings["pretrain"], seed])
            name = f"{slug(case, arm, f'seed{seed}')}-{digest}"
            workdir = os.path.join(folders.workdir, RUNS, name)
            options = [f"--seed={seed}", *data, f"--workdir={workdir}"]
            commands.append(("pretrain", *flags["pretrain"], *options))
        if "evaluate" in flags:
            digest = definitions.fingerprint(settings["evaluate"])
            evaluation = os.path.join(workdir, f"evaluation-{digest}")
            options = [f"--workdir={workdir}", f"--output_dir={evaluation}"]
            commands.append(("evaluate", *flags["evaluate"], *data, *options))
        yield measures.Unit(
            case, arm, seed, settings, tuple(commands), workdir, evaluation
        )


def run(
    claim: definitions.Claim, scale: str, folders: Folders, seeds: int = 0
) -> dict[str, Any]:
    """Runs the missing units of a claim, and judges it.

    The result is written to `<workdir>/<claim>/result.json` after each unit.
    `seeds` is the number of seeds; 0: the recipe's.

    Returns:
      The result: "claim", "scale", "recipe" (fingerprint), "version", "cpus",
      "units" (case, arm, seed, values, commands, evaluation, minutes), "seeds",
      "relations" (see `verdicts.judge_all`) and "verdict".
    """
    recipe = claim.recipe(scale)
    seeds = seeds or recipe.seeds
    _check(recipe, folders)
    path = path_of(claim.name, folders.workdir)
    fields = dataclasses.asdict(recipe)
    decisive = {k: v for k, v in fields.items() if k not in _TEXTS}
    fingerprint = definitions.fingerprint([scale, decisive])
    result = read(claim.name, folders.workdir) or {
        "claim": claim.name,
        "scale": scale,
        "recipe": fingerprint,
        "version": metadata.version("tf_contrastive"),
        "cpus": os.cpu_count(),
        "units": [],
    }
    if result["recipe"] != fingerprint:
        raise errors.UserError(
            f"{path} is of another recipe or `scale`: set another `workdir`, or"
            " move the file away"
        )
    done = {(u["case"], u["arm"], u["seed"]) for u in result["units"]}

    def save() -> None:
        rows = verdicts.judge_all(recipe.relations, result["units"], seeds)
        result["seeds"], result["relations"] = seeds, rows
        result["verdict"] = verdicts.combine([row["verdict"] for row in rows])
        advice = "set `workdir` to a folder that you may write to"
        checkpoints.write_json(path, result, advice)

    save()  # Before anything is run: fails if it cannot be written.
    for unit in plan(recipe, folders, seeds):
        if (unit.case, unit.arm, unit.seed) in done:
            continue
        where = " ".join(filter(None, (unit.case, unit.arm)))
        terminal.info(f"{claim.name}: {where}, seed {unit.seed}")
        start = time.monotonic()
        for words in unit.commands:
            _call(words)
        result["units"].append(
            {
                "case": unit.case,
                "arm": unit.arm,
                "seed": unit.seed,
                "values": measures.values(recipe, unit),
                "commands": [folders.portable(w) for w in unit.commands],
                "evaluation": folders.relative(unit.evaluation),
                "minutes": round((time.monotonic() - start) / 60, 2),
            }
        )
        save()
    return result


def _check(recipe: definitions.Recipe, folders: Folders) -> None:
    """Raises `UserError` if data or flagfiles are missing."""
    if folders.data_dir and not tf.io.gfile.isdir(folders.data_dir):
        raise errors.UserError(
            f"data_dir={folders.data_dir} does not exist: set it to the folder"
            " of prepared TensorFlow Datasets"
        )
    for unit in plan(recipe, folders, 1):
        for word in [word for words in unit.commands for word in words]:
            name, _, path = word.partition("=")
            if name == "--flagfile" and not tf.io.gfile.exists(path):
                raise errors.UserError(
                    f"configs_dir={folders.configs_dir}: {path} does not exist:"
                    " set it to the folder of this package's flagfiles"
                )


def _call(words: Sequence[str]) -> None:
    """Runs a command, whose own output goes to stderr."""
    line = command_line(words)
    terminal.info(f"  {line}")
    try:
        status = subprocess.run(
            [sys.executable, "-m", "tf_contrastive", *words],
            stdout=sys.stderr,
            check=False,
        ).returncode
    except KeyboardInterrupt:
        status = errors.EXIT_RESUME
    hint = "results so far are saved; repeat the same `reproduce` to resume"
    if status == errors.EXIT_RESUME:
        raise preemption.InterruptedRunError(
            f"a command was interrupted: {line}; {hint}"
        )
    if status:
        raise errors.UserError(f"a command failed ({status}): {line}; {hint}")
