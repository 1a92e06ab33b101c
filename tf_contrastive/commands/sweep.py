"""`sweep`: runs a grid of flags of `pretrain`, evaluates, and compares."""

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tf_contrastive import flags
from tf_contrastive.base import errors, files, processes, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config import fields, own
from tf_contrastive.config.checks import plain_path, shell_words
from tf_contrastive.config.fields import (
    Command,
    Option,
    Terminal,
    group,
    option,
)

# In a run's folder, and in the sweep's.
RECORD = "sweep_run.json"
TABLE, TABLE_CSV = "sweep.json", "sweep.csv"
# SLURM's arrays have at most 1,001 tasks, unless they are configured.
_MAX_RUNS = 1000
_PREFIX = "evaluate_"
# What `evaluate` gets unless it is given.
_EVALUATE = ("--protocols=knn", "--nountrained")
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
        " --loss=supcon,ntxent --seed=0,1. Commas separate values; but a value"
        " with commas that the flag takes is one, and semicolons separate"
        " several. What may be both is refused. A flagfile has one value for"
        " each flag",
        check=shell_words,
    )
    workdir: str = option(
        "",
        "folder of the runs and of their table; the same folder resumes, and"
        " takes further grids",
        required=True,
        check=plain_path,
    )
    evaluate: bool = option(
        True,
        "score every run by `evaluate`, whose flags have the prefix"
        f" {_PREFIX} here, such as --{_PREFIX}protocols=knn,linear; without"
        f" any: {' '.join(_EVALUATE)}",
    )
    metric: str = option(
        "",
        "result that sorts the table, such as knn/k=5/top1 or val_loss; empty:"
        " the last top1 of evaluate, else the first that pretrain has of"
        f" {', '.join(_PREFERRED)} and loss",
    )
    minimize: bool | None = option(
        None, "the smallest is best; auto: if the metric is a loss"
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
    COMMON: ClassVar = (
        "pretrain",
        "workdir",
        "evaluate",
        "metric",
        "minimize",
        "print",
        "run",
        "verbosity",
    )

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
    pretrain, evaluate = _split(shlex.split(grid.pretrain))
    axes, declared = _axes(pretrain)
    count = math.prod(map(len, axes.values()))
    if count > _MAX_RUNS:
        raise UserError(
            f"the grid has {count:,} runs: must be at most {_MAX_RUNS:,}"
        )
    commands: dict[str, list[str]] = {}
    options: dict[str, dict[str, str]] = {}
    if grid.evaluate:
        commands["evaluate"] = evaluate
        options["evaluate"] = _check(Evaluate, evaluate, "evaluate")
        if "output_dir" in options["evaluate"]:
            raise UserError(
                f"--{_PREFIX}output_dir: results go to the folder of each run:"
                " leave it out"
            )
    shared = _without(pretrain, [declared[name] for name in axes])
    runs: dict[str, Run] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        title = ", ".join(
            f"{n}={text}" for n, text in values.items() if len(axes[n]) > 1
        )
        words = [
            *shared,
            *(_word(declared[n], text) for n, text in values.items()),
        ]
        differing = _check(PretrainCommand, words, title)
        decisive = {
            name: text
            for name, text in differing.items()
            # Options of the user's own parts are not declared.
            if name not in declared or declared[name].identity or name in axes
        }
        digest = hashlib.sha256(
            json.dumps(decisive, sort_keys=True).encode()
        ).hexdigest()[:8]
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


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags of `pretrain`, and those of `evaluate`."""
    pretrain: list[str] = []
    evaluate: list[str] = []
    for word in words:
        match = re.fullmatch(rf"--?(no)?{_PREFIX}(.*)", word, re.DOTALL)
        if match:
            evaluate.append(f"--{match[1] or ''}{match[2]}")
        else:
            pretrain.append(word)
    if not pretrain:
        raise UserError(
            "the grid has no flags of pretrain: give some, such as"
            " --dataset=digits --learning_rate=0.1,0.3"
        )
    given = {name for word in evaluate for name in flags.named(word)}
    usual = [w for w in _EVALUATE if given.isdisjoint(flags.named(w))]
    return pretrain, [*usual, *evaluate]


def _axes(
    words: Sequence[str],
) -> tuple[dict[str, list[str]], dict[str, Option]]:
    """Returns option -> values, of the options with several, in their order.

    And the declarations of all options, with those of the user's own parts.
    """
    declared = flags.declared(PretrainCommand)
    # A flagfile may be somebody else's, whose parts are not to be allowed: it
    # is left to `pretrain`.
    typed = [word for word in words if "flagfile" not in flags.named(word)]
    typed = flags.allow_own_modules(typed)
    places = {n: i for i, word in enumerate(typed) for n in flags.named(word)}
    texts = flags.texts(PretrainCommand, typed)
    families = {o.family for o in declared.values() if o.of_component} - {""}
    for name in texts.keys() - declared.keys():
        [family] = [
            family
            for family in families
            if name.startswith(family.removesuffix("options"))
        ]
        own_option = fields.option("", "")
        own_option.type = str
        key = name.removeprefix(family.removesuffix("options"))
        declared[name] = Option(name, "", own_option, "", family, key)
    axes = {
        name: values
        for name in sorted(
            texts,
            key=lambda n: places.get(n, places.get(declared[n].family, 0)),
        )
        if (values := _values(declared[name], texts[name])) != [texts[name]]
    }
    return axes, declared


def _without(words: Sequence[str], swept: Sequence[Option]) -> list[str]:
    """Returns the flags that give nothing to the swept options."""
    names = {option.name for option in swept}
    gone = {(option.family, option.key) for option in swept if option.family}
    kept = []
    for word in words:
        if not names.isdisjoint(flags.named(word)):
            continue
        family, _, text = word.lstrip("-").partition("=")
        if any(family == other for other, _ in gone):
            pairs = []
            for pair in fields.split_pairs(text):
                if (family, pair.partition("=")[0]) not in gone:
                    pairs.append(pair)
            if not pairs:
                continue
            word = f"--{family}={','.join(pairs)}"
        kept.append(word)
    return kept


def _values(option: Option, text: str) -> list[str]:
    """Returns the values of an option in a text; see `Sweep`.

    Raises:
      UserError: if it may be one value or several.
    """
    if ";" in text:
        return text.removesuffix(";").split(";")
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 or not _is_allowed(option, text):
        return parts
    if all(_is_allowed(option, part) for part in parts):
        flag = flags.with_flags(PretrainCommand, arg(option.name, text))
        raise UserError(
            f"{flag} is one value or {len(parts)}: write"
            f" {';'.join(parts)!r} for {len(parts)}, {f'{text};'!r} for one"
        )
    return [text]


def _is_allowed(option: Option, text: str) -> bool:
    if text == fields.AUTO:
        return option.of_component or fields.is_optional(option.field)
    try:
        fields.read_value(option.name, option.field, text)
    except UserError:
        return False
    return True


def _word(option: Option, text: str) -> str:
    """Returns the flag that gives a text to an option."""
    if not option.family:
        return f"--{option.name}={text}"
    return f"--{option.family}={option.key}={text}"


def _check(kind: type[Command], words: list[str], title: str) -> dict[str, str]:
    """Returns the options of a command that are not the defaults, as text.

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
    return {
        option.name: fields.written(option.value)
        for option in fields.options(config)
        if option.value != option.field.default and option.name not in _UNNAMED
    }


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
    _check_metric(grid, [_result(folder)])
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
        | {
            "evaluate": " ".join(
                f"{name}={text}"
                for name, text in options.get("evaluate", {}).items()
            )
        },
        "metrics": metrics,
        "intervals": intervals,
    }


def _check_metric(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> None:
    known = dict.fromkeys(name for row in rows for name in row["metrics"])
    if grid.metric and known and grid.metric not in known:
        raise errors.unknown(arg("metric"), grid.metric, known)


def _metric(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name of the result that sorts the runs."""
    known = dict.fromkeys(name for row in rows for name in row["metrics"])
    scored = [name for name in known if name.endswith("/top1")]
    found = [name for name in _PREFERRED if name in known]
    return grid.metric or [*scored[-1:], *found, "loss"][0]


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
    _check_metric(grid, rows)
    metric = _metric(grid, rows)
    smallest = grid.minimize
    if smallest is None:
        smallest = metric in _LOSSES
    sign = 1 if smallest else -1

    def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = row["metrics"].get(metric)
        is_number = value is not None and math.isfinite(value)
        return not is_number, sign * value if is_number else 0.0

    rows.sort(key=rank)
    differing = _differing(rows)
    others = dict.fromkeys(n for row in rows for n in row["metrics"])
    shown = [metric]
    shown += [n for n in others if n.endswith("top1") and n != metric][-4:]
    _print_table(rows, differing, shown)
    report = {"metric": metric, "smallest_is_best": smallest, "runs": rows}
    files.write_json(os.path.join(grid.workdir, TABLE), report)
    text = io.StringIO()
    writer = csv.writer(text)
    ends = ("minutes", "status", "reason")
    # As flags: the loss is an option and a result.
    flagged = [f"--{name}" for name in differing]
    writer.writerow(["name", *flagged, *others, *ends])
    for row in rows:
        values = [row["metrics"].get(name, "") for name in others]
        options = [row["options"][name] for name in differing]
        writer.writerow(
            [row["name"], *options, *values, *(row[name] for name in ends)]
        )
    files.write(os.path.join(grid.workdir, TABLE_CSV), text.getvalue())
    return 0


def _differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the options that differ between runs; sets them in all."""
    usual = fields.values(PretrainCommand())
    names = dict.fromkeys(name for row in rows for name in row["options"])
    differing = []
    for name in names:
        default = fields.written(usual.get(name, ""))
        for row in rows:
            row["options"].setdefault(name, default)
        if len({row["options"][name] for row in rows}) > 1:
            differing.append(name)
    return differing


def _print_table(
    rows: Sequence[Mapping[str, Any]],
    differing: Sequence[str],
    metrics: Sequence[str],
) -> None:
    metric = metrics[0]
    flagged = [f"--{name}" for name in differing]
    table = [[*flagged, metric, "95 %", *metrics[1:], "minutes", "status"]]
    for row in rows:
        values = [_number(row["metrics"].get(name)) for name in metrics]
        interval = row["intervals"].get(metric)
        values.insert(1, "..".join(map(_number, interval)) if interval else "-")
        options = [row["options"][name] or "-" for name in differing]
        ends = [f"{row['minutes']:.1f}", row["status"]]
        table.append([*options, *values, *ends])
    last = len(table[0]) - 1
    print(terminal.format_table(table, texts=(*range(len(differing)), last)))
    for row in rows:
        if row["reason"]:
            print(f"{row['status']}: {row['name']}: {row['reason']}")
    if rows[0]["metrics"].get(metric) is None:
        return
    print(f"best by {metric}: {rows[0]['name']}")
    if "/" in metric and len(rows) > 1:
        print(
            "It is the best on the images by which it was chosen: score it on"
            " others before you report it."
        )
    groups = {n: o.group for n, o in flags.declared(PretrainCommand).items()}
    scale = [
        name
        for name in differing
        if groups.get(name) in ("loss", "views") or name == "batch_size"
    ]
    if metric in _LOSSES and scale:
        terminal.warning(
            f"{metric} does not compare runs that differ in {', '.join(scale)}:"
            f" set {arg('metric')} to another result"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
