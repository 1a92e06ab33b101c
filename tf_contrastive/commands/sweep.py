"""`sweep`: runs a grid of flags of `pretrain`, evaluates, and compares."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, NamedTuple

from tf_contrastive import flags
from tf_contrastive.base import errors, files, processes, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config import fields, own
from tf_contrastive.config.checks import plain_path, shell_words
from tf_contrastive.config.fields import Command, Terminal, group, option

# In a run's folder, and in the sweep's.
RECORD, TABLE = "sweep_run.json", "sweep.json"
# Options of a run that say nothing about it.
_UNNAMED = ("workdir", "verbosity")
# Numbers in pretrain.json that are not results.
_COUNTS = ("steps", "seconds")
# Results by which runs are sorted, the best first, where `evaluate` has none.
_LOSSES = ("loss", "val_loss")
_PREFERRED = ("linear_top1", "online_knn_top1", "probe_accuracy", "val_loss")
_FORM = {"done": dict, "minutes": (int, float)}


@dataclasses.dataclass(frozen=True)
class Grid:
    """Which runs there are, and how they are compared."""

    pretrain: str = option(
        "",
        "every flag of pretrain, with several values, such as"
        " --loss=supcon,ntxent --seed=0,1. Commas separate values; semicolons"
        " separate values that have commas, and end a single one",
        check=shell_words,
    )
    workdir: str = option(
        "",
        "folder of the runs and of their table; the same folder resumes, and"
        " takes further grids",
        required=True,
        check=plain_path,
    )
    evaluate: str = option(
        "--protocols=knn --nountrained",
        "flags of evaluate, which scores every run; empty: only train",
        check=shell_words,
    )
    metric: str = option(
        "",
        "result that sorts the table, such as knn/k=5/top1 or val_loss; empty:"
        " the last top1 of evaluate, else the first that pretrain has of"
        f" {', '.join(_PREFERRED)} and loss",
    )
    minimize: bool = option(
        False, "the smallest is best, as it always is for loss and val_loss"
    )
    print: str = option(
        "none",
        "print, and run nothing: the commands; slurm: a script for sbatch, with"
        " a task for each run; or the table of the runs in the folder",
        choices=("none", "commands", "slurm", "table"),
    )
    run: int | None = option(
        None, "number of the only run to do, from 0; auto: all"
    )


@dataclasses.dataclass(frozen=True)
class Sweep(Command):
    """Pretrain and evaluate with every combination of flags' values."""

    OTHERS: ClassVar = "pretrain"

    grid: Grid = group(Grid())
    terminal: Terminal = group(Terminal())


class Run(NamedTuple):
    """A run of the grid.

    Attributes:
      name: of its folder.
      title: the values that it has of the grid.
      commands: command -> words, without the folder.
      options: command -> options that are not the defaults, as text.
    """

    name: str
    title: str
    commands: dict[str, list[str]]
    options: dict[str, dict[str, str]]


def run(options: Sweep) -> int:
    """Runs what is missing, and writes a table; returns 1 if a run failed."""
    grid = options.grid
    if grid.print == "table":
        return _write_table(grid)
    runs = plan(grid)
    if grid.run is not None and grid.run >= len(runs):
        raise UserError(
            f"{arg('run', grid.run)}: the grid has {len(runs)} runs: set"
            f" {arg('run', 0)} to {len(runs) - 1}"
        )
    if grid.print == "commands":
        for planned in runs:
            for words in _commands(planned, options):
                print(_line(words))
        return 0
    if grid.print == "slurm":
        print(_slurm(options, len(runs)))
        return 0
    chosen = runs if grid.run is None else [runs[grid.run]]
    failed = False
    for number, planned in enumerate(chosen, 1):
        terminal.info(
            f"run {number} of {len(chosen)}: {planned.title or planned.name}"
        )
        failed |= not _do(planned, options)
    if grid.run is None:
        _write_table(grid)
    return int(failed)


# ---- The grid ----------------------------------------------------------------


def plan(grid: Grid) -> list[Run]:
    """Returns the runs of a grid, the last flag's values changing first.

    Raises:
      UserError: for a combination that cannot work, or that occurs twice.
    """
    commands: dict[str, list[str]] = {}
    options: dict[str, dict[str, str]] = {}
    if evaluate := shlex.split(grid.evaluate):
        commands["evaluate"] = evaluate
        options["evaluate"] = _check(Evaluate, evaluate, "evaluate")[0]
    declared = flags.declared(PretrainCommand).values()
    families = {option.family for option in declared}
    runs: dict[str, Run] = {}
    axes = [_choices(word, families) for word in shlex.split(grid.pretrain)]
    for choice in itertools.product(*axes):
        words = [word for word, _ in choice]
        title = ", ".join(value for _, swept in choice for value in swept)
        differing, digest = _check(PretrainCommand, words, title)
        if digest in runs:
            raise UserError(
                f"{runs[digest].title} and {title} are the same run: give each"
                " value once"
            )
        name = re.sub(r"[^\w.,=+-]", "_", title.replace(", ", ","))[:100]
        # An earlier grid may have named it after other flags.
        known = files.entries(grid.workdir, rf".*-{digest}")
        runs[digest] = Run(
            os.path.basename(known[0])
            if known
            else f"{name or 'run'}-{digest}",
            title,
            {"pretrain": words, **commands},
            {"pretrain": differing, **options},
        )
    return list(runs.values())


def _choices(word: str, families: Set[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields a flag with each of its values, and those that are swept.

    A flag of a family, such as --loss_options=NAME=VALUE,NAME=VALUE, has
    several values for each of its options.
    """
    name, _, text = word.lstrip("-").partition("=")
    if name == own.ARGUMENT:
        yield word, []
        return
    is_family = name in families
    pairs = fields.split_pairs(text) if is_family else [word.lstrip("-")]
    axes = [_values(pair) for pair in pairs]
    for values in itertools.product(*axes):
        swept = [v for v, axis in zip(values, axes, strict=True) if axis[1:]]
        joined = ",".join(values)
        yield f"--{name}={joined}" if is_family else f"--{joined}", swept


def _values(pair: str) -> list[str]:
    """Returns NAME=VALUE for each value in NAME=VALUE,VALUE."""
    name, equals, text = pair.partition("=")
    separator = ";" if ";" in text else ","
    values = text.removesuffix(";").split(separator)
    return [f"{name}{equals}{value.strip()}" for value in values]


def _check(
    kind: type[Command], words: list[str], title: str
) -> tuple[dict[str, str], str]:
    """Returns the options that are not the defaults, as text, and a digest.

    Commands have the same digest if they compute the same.

    Raises:
      UserError: which names the combination of values, its title.
    """
    words = flags.allow_own_modules([*words, "--workdir=run"])
    try:
        config = flags.parse(kind, words)
        config.validate()
    except UserError as error:
        text = flags.with_flags(kind, error.marked)
        raise UserError(f"{title}: {text}" if title else text) from error
    differing, decisive = {}, {}
    for o in fields.options(config):
        if o.value == o.field.default or o.name in _UNNAMED:
            continue
        differing[o.name] = fields.written(o.value)
        if o.identity:
            decisive[o.name] = differing[o.name]
    text = json.dumps(decisive, sort_keys=True)
    return differing, hashlib.sha256(text.encode()).hexdigest()[:8]


# ---- Runs --------------------------------------------------------------------


def _do(planned: Run, options: Sweep) -> bool:
    """Runs a run's commands that have not ended well; whether all have now.

    Raises:
      InterruptedRunError: if one was interrupted.
    """
    with terminal.without_start_lines():
        from tf_contrastive.checkpoints import FolderLock

    grid = options.grid
    folder = os.path.join(grid.workdir, planned.name)
    path = os.path.join(folder, RECORD)
    record = files.read_json(path, {"done": {}, "minutes": 0.0}, _FORM)
    record["options"] = planned.options

    def save(status: str, reason: str = "") -> None:
        record.update(status=status, reason=reason)
        files.write_json(path, record, f"set another {arg('workdir')}")

    with FolderLock(folder, "sweep"):
        for words in _commands(planned, options):
            command = words[0]
            if record["done"].get(command) == planned.options[command]:
                continue
            save("unfinished")
            terminal.info(f"  {_line(words)}")
            start = time.monotonic()
            status, last = processes.run(words)
            record["minutes"] += (time.monotonic() - start) / 60
            if status == errors.EXIT_RESUME:
                save("unfinished", "interrupted")
                raise errors.InterruptedRunError(
                    f"interrupted: {_line(words)}; repeat the same `sweep` to"
                    " resume"
                )
            if status:
                last = last.removeprefix("tf_contrastive: ")
                save("failed", f"{command}: {last} (status {status})")
                terminal.warning(f"  failed: {record['reason']}")
                return False
            if command == "pretrain":
                record["done"] = {}  # The encoder may have changed.
            record["done"][command] = planned.options[command]
        save("finished")
    return True


def _commands(planned: Run, options: Sweep) -> list[list[str]]:
    """Returns the words of a run's commands."""
    ends = [f"--workdir={os.path.join(options.grid.workdir, planned.name)}"]
    if options.terminal.verbosity != Terminal.verbosity:
        ends.append(f"--verbosity={options.terminal.verbosity}")
    commands = []
    for name, words in planned.commands.items():
        # A run's folder names its own parts, and allows none.
        allowed = own.words() if name == "evaluate" else []
        commands.append([name, *words, *allowed, *ends])
    return commands


def _line(words: Sequence[str]) -> str:
    return f"python -m tf_contrastive {shlex.join(words)}"


def _slurm(options: Sweep, count: int) -> str:
    """Returns a script for sbatch, with a task for each run."""
    settings = [
        f"--{o.name}={fields.written(o.value)}"
        for o in fields.options(options)
        if o.name not in ("pretrain", "print", "run")
        and o.value != o.field.default
    ]
    words = ["sweep", *settings]
    table = shlex.join([*words, "--print=table"])
    task = shlex.join([*words, *shlex.split(options.grid.pretrain)])
    python = f"{shlex.quote(sys.executable)} -m tf_contrastive"
    return f"""#!/usr/bin/env bash
# {count} run(s). Submit it with the resources of one run, such as
#   sbatch --gpus=1 --cpus-per-task=8 --time=12:00:00 FILE
# Submit it again to resume what has failed or was stopped. The table:
#   {python} {table}
#SBATCH --job-name=sweep
#SBATCH --array=0-{count - 1}
#SBATCH --output=slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -euo pipefail
cd {shlex.quote(os.getcwd())}
attempt=slurm-${{SLURM_CLUSTER_NAME:-}}-${{SLURM_JOB_ID:-}}
export TF_CONTRASTIVE_ATTEMPT=$attempt/${{SLURM_RESTART_COUNT:-0}}
# shellcheck disable=SC2016
exec {python} {task} --run="$SLURM_ARRAY_TASK_ID\""""


# ---- The table ---------------------------------------------------------------


def _result(folder: str) -> dict[str, Any]:
    """Returns the record of a run, with its results."""
    with terminal.without_start_lines():
        from tf_contrastive.evaluation import report

    record = files.read_json(os.path.join(folder, RECORD), form=_FORM)
    options = record["options"]
    done = [c for c in options if record["done"].get(c) == options[c]]
    metrics, intervals = {}, {}
    if "pretrain" in done:
        rows = files.read_json(os.path.join(folder, "pretrain.json"), {})
        metrics = {
            name: value
            for name, value in rows.items()
            if isinstance(value, int | float) and name not in _COUNTS
        }
    if "evaluate" in done:
        for row in report.read(folder).get("results", []):
            if row["encoder"] == "trained":
                for tag, value in report.scalars(row).items():
                    metrics[tag.removeprefix("trained/")] = value
                name = "/".join(filter(None, (row["protocol"], row["variant"])))
                intervals[f"{name}/top1"] = row["top1_interval"]
    return {
        "name": os.path.basename(folder),
        "status": record["status"],
        "reason": record["reason"],
        "minutes": round(record["minutes"], 2),
        # Runs that were scored in other ways do not compare.
        "options": options["pretrain"]
        | {f"evaluate {n}": x for n, x in options.get("evaluate", {}).items()},
        "metrics": metrics,
        "intervals": intervals,
    }


def _metric(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name of the result that sorts the runs."""
    known = dict.fromkeys(name for row in rows for name in row["metrics"])
    if grid.metric and known and grid.metric not in known:
        raise errors.unknown(arg("metric"), grid.metric, known)
    scored = [name for name in known if name.endswith("/top1")]
    usual = [name for name in _PREFERRED if name in known]
    return grid.metric or [*scored[-1:], *usual, "loss"][0]


def _write_table(grid: Grid) -> int:
    """Prints and writes the results of all runs in the folder."""
    rows = [
        _result(os.path.dirname(path))
        for folder in files.entries(grid.workdir, r".*-[0-9a-f]{8}")
        for path in files.entries(folder, re.escape(RECORD))
    ]
    if not rows:
        raise UserError(
            f"{arg('workdir', grid.workdir)} has no runs of a sweep: use the"
            " folder of one"
        )
    metric = _metric(grid, rows)
    smallest = grid.minimize or metric in _LOSSES
    sign = 1 if smallest else -1

    def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = row["metrics"].get(metric)
        is_number = value is not None and math.isfinite(value)
        return not is_number, sign * value if is_number else 0.0

    rows.sort(key=rank)
    _print_table(rows, metric)
    report = {"metric": metric, "smallest_is_best": smallest, "runs": rows}
    files.write_json(os.path.join(grid.workdir, TABLE), report)
    return 0


def _print_table(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Prints the options that differ, the metric, and other accuracies."""
    options = _differing(rows)
    others = dict.fromkeys(
        name
        for row in rows
        for name in row["metrics"]
        if name.endswith("top1") and name != metric
    )
    metrics = [metric, *list(others)[-4:]]
    flagged = [f"--{name}" for name in options]
    table = [[*flagged, metric, "95 %", *metrics[1:], "minutes", "status"]]
    for row in rows:
        values = [_number(row["metrics"].get(name)) for name in metrics]
        interval = row["intervals"].get(metric)
        values.insert(1, "..".join(map(_number, interval)) if interval else "-")
        ends = [f"{row['minutes']:.1f}", row["status"]]
        given = [row["options"][name] or "-" for name in options]
        table.append([*given, *values, *ends])
    last = len(table[0]) - 1
    print(terminal.format_table(table, texts=(*range(len(options)), last)))
    for row in rows:
        if row["reason"]:
            print(f"{row['status']}: {row['name']}: {row['reason']}")


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the options that differ between runs; sets them in all."""
    usual = fields.values(PretrainCommand())
    names = dict.fromkeys(name for row in rows for name in row["options"])
    for name in names:
        default = fields.written(usual.get(name, ""))
        for row in rows:
            row["options"].setdefault(name, default)
    return [n for n in names if len({row["options"][n] for row in rows}) > 1]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
