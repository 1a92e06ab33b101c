"""`sweep`: runs a grid of flags of `pretrain`, evaluates, and compares."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tf_contrastive import flags
from tf_contrastive.base import errors, files, processes, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.commands import pretrain
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config import checks, fields, own
from tf_contrastive.config.command import Command, Group, Terminal
from tf_contrastive.config.fields import Option, group, option

# In a run's folder, and in the sweep's.
RECORD, TABLE = "sweep_run.json", "sweep.json"
_PREFIX = "evaluate_"
# What `evaluate` gets unless it is given.
_EVALUATE = ("--protocols=knn", "--nountrained")
# Ends of results' names. The last result with the last end sorts the table.
_RANKED = ("loss", "val_loss", "probe_accuracy", "top1", "/top1")


class Grid(Group):
    """Which runs there are, and how they are compared."""

    pretrain: str = option(
        "",
        "every flag of pretrain, with one or several values, such as"
        " --loss=supcon,ntxent --seed=0,1. Semicolons separate values; commas"
        " do where the whole text is not one value",
        check=checks.shell_words,
    )
    workdir: str = option(
        "",
        "folder of the runs and of their table; the same command resumes",
        required=True,
        check=checks.plain_path,
    )
    evaluate: bool = option(
        True,
        f"score every run by `evaluate`, by {' '.join(_EVALUATE)} and its other"
        f" flags, which have a prefix here: --{_PREFIX}protocols=knn,linear",
    )
    print: str = option(
        "none",
        "run nothing, and print the commands; or nothing, by check, which opens"
        " the data and builds the networks of all runs",
        choices=("none", "commands", "check"),
    )
    run: int | None = option(
        None,
        "number of the only run to do, from 0, such as of a task in an array of"
        " a cluster; auto: all",
    )


class Sweep(Command):
    """Pretrain and evaluate with every combination of flags' values."""

    OTHERS: ClassVar = "pretrain"

    grid: Grid = group(Grid())
    terminal: Terminal = group(Terminal())


class Run(NamedTuple):
    """A run of the grid.

    Attributes:
      folder: of the run.
      values: of the flags that have several: (flag, value).
      commands: command -> its words.
      options: command -> its options that are not the defaults, as text.
    """

    folder: str
    values: list[list[str]]
    commands: dict[str, list[str]]
    options: dict[str, dict[str, str]]


def _line(words: Sequence[str]) -> str:
    return f"python -m tf_contrastive {shlex.join(words)}"


def run(options: Sweep) -> int:
    """Runs what is missing, and writes a table; returns 1 if a run failed."""
    grid = options.grid
    runs = plan(options)
    chosen = runs if grid.run is None else runs[grid.run : grid.run + 1]
    if not chosen:
        raise UserError(
            f"{arg('run', grid.run)}: the grid has {len(runs)} runs: set"
            f" {arg('run', 0)} to {len(runs) - 1}"
        )
    if grid.print == "commands":
        for planned in chosen:
            print(*map(_line, planned.commands.values()), sep="\n")
        return 0
    if grid.print == "check":
        _check(chosen)
        return 0
    if any(_missing(planned, _record(planned)) for planned in chosen):
        terminal.info("checking the data and networks of the runs ...")
        # In a process of its own, which holds no device while they run.
        words = [
            f"--{o.name}={fields.written(o.value)}"
            for o in fields.options(fields.replace(options, print="check"))
            if o.name != options.OTHERS
        ]
        words += shlex.split(grid.pretrain)
        status, last = processes.run(["sweep", *words])
        if status < 0:  # It could not report an error itself.
            terminal.warning(f"  failed: check: {last} (status {status})")
        if status:
            return status
    failed = False
    for number, planned in enumerate(chosen, 1):
        name = os.path.basename(planned.folder)
        terminal.info(f"run {number} of {len(chosen)}: {name}")
        failed |= not _do(planned)
    if grid.run is None:
        _write_table(grid, runs)
    return int(failed)


# ---- The grid ----------------------------------------------------------------


def plan(options: Sweep) -> list[Run]:
    """Returns the runs of a grid, the last flag's values changing first."""
    grid, common = options.grid, []
    if options.terminal.verbosity != Terminal.verbosity:
        common = [f"--verbosity={options.terminal.verbosity}"]
    declared = flags.declared(PretrainCommand)
    axes, evaluate = _axes(shlex.split(grid.pretrain), declared)
    scores = _parsed(Evaluate, [*evaluate, "--workdir=run"], "evaluate")
    if scores.evaluation.output_dir:
        raise UserError(
            f"--{_PREFIX}output_dir: results go to the folder of each run:"
            " leave it out"
        )
    scoring = {"evaluate": _differing(scores)} if grid.evaluate else {}
    names = {axis[0].lstrip("-").partition("=")[0] for axis in axes if axis[1:]}
    runs: dict[str, Run] = {}
    for combination in itertools.product(*axes):
        swept = [
            word.lstrip("-")
            for word, axis in zip(combination, axes, strict=True)
            if len(axis) > 1
        ]
        trained = [*combination, "--workdir=run"]
        differing = _differing(
            _parsed(PretrainCommand, trained, ", ".join(swept))
        )
        decisive = {
            name: text
            for name, text in differing.items()
            # Options of the user's own parts are not declared.
            if name not in declared or declared[name].identity or name in names
        }
        text = json.dumps(decisive, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        if digest in runs:
            raise UserError(
                f"{', '.join(swept)}: there is an equal run: give each value"
                " once"
            )
        title = re.sub(r"[^\w.,=+-]", "_", ",".join(swept))[:100] or "run"
        folder = os.path.join(grid.workdir, f"{title}-{digest}")
        ends = [f"--workdir={folder}", *common]
        commands = {"pretrain": ["pretrain", *combination, *ends]}
        if scoring:
            # A run's folder names its own parts, and allows none.
            words = ["evaluate", *evaluate, *own.words(), *ends]
            commands["evaluate"] = words
        runs[digest] = Run(
            folder,
            [word.split("=", 1) for word in swept],
            commands,
            {"pretrain": differing, **scoring},
        )
    return [*runs.values()]


def _axes(
    words: Sequence[str], declared: Mapping[str, Option]
) -> tuple[list[list[str]], list[str]]:
    """Returns the words of each flag of `pretrain`, and those of `evaluate`.

    A flag has a word for each of its values. A flag that is repeated has its
    last values; a family has all.
    """
    axes: dict[str, list[str]] = {}
    evaluate = [*_EVALUATE]
    for word in words:
        if match := re.fullmatch(rf"--?(no)?{_PREFIX}(.*)", word, re.DOTALL):
            evaluate.append(f"--{match[1] or ''}{match[2]}")
            continue
        flag, equals, text = word.partition("=")
        name = flag.lstrip("-")
        values = text.split(";")
        # Commas separate the options of a family, too.
        if name in declared and len(values) == 1:
            try:
                fields.read(name, declared[name].field, text)
            except UserError:
                values = [part.strip() for part in text.split(",")]
        key = name if name in declared else word
        # A flag between the two may set it, too, as a flagfile does.
        axes.pop(key, None)
        axes[key] = [f"{flag}{equals}{value}" for value in values]
    if not axes:
        raise UserError(
            "the grid has no flags of pretrain: give some, such as"
            " --dataset=digits --learning_rate=0.1,0.3"
        )
    return [*axes.values()], evaluate


def _parsed(kind: type[Command], words: Sequence[str], title: str) -> Any:
    """Returns the valid options of a command; see `_named` for its errors."""
    with _named(kind, title):
        config = flags.parse(kind, flags.from_command_line(kind, [*words]))
        config.validate()
    return config


@contextlib.contextmanager
def _named(kind: type[Command], title: str) -> Iterator[None]:
    """Names the combination of values, `title`, that an error is of."""
    try:
        yield
    except UserError as error:
        text = flags.with_flags(kind, error.marked)
        raise UserError(f"{title}: {text}" if title else text) from error


def _differing(config: Command) -> dict[str, str]:
    """Returns the options that are not the defaults, as text."""
    return {
        option.name: fields.written(option.value)
        for option in fields.options(config)
        if option.value != option.field.default
        and option.name not in ("workdir", "verbosity")
    }


# ---- Runs --------------------------------------------------------------------


def _check(runs: Sequence[Run]) -> None:
    """Opens the data and builds the networks of runs, as they will."""
    with terminal.without_start_lines():
        from tf_contrastive import checkpoints
        from tf_contrastive.evaluation import protocols, scoring
        from tf_contrastive.evaluation.context import EvaluationContext
        from tf_contrastive.evaluation.subject import Subject

    checked: list[PretrainCommand] = []
    for planned in runs:
        title = ", ".join("=".join(pair) for pair in planned.values)
        words = planned.commands["pretrain"][1:]
        config = _parsed(PretrainCommand, words, title)
        # Neither data nor networks depend on the others of these.
        batch = config.schedule.batch_size
        same = dataclasses.replace(
            config, optimizer=None, schedule=batch, runtime=None
        )
        if same in checked:
            continue
        checked.append(same)
        with _named(PretrainCommand, title):
            prepared = pretrain.prepare(config)
            prepared.build()
        if "evaluate" not in planned.commands:
            continue
        with _named(Evaluate, title):
            scores = _parsed(Evaluate, planned.commands["evaluate"][1:], "")
            run = checkpoints.Run(
                prepared.options,
                {"num_classes": prepared.source.info.num_classes},
                checkpoint="",
                step=0,
            )
            data = scoring.open_setting(scores, prepared.strategy, run)
            untrained = Subject.of_run(run, trained=False)
            context = EvaluationContext(untrained, data.data, data.options)
            protocols.select(context, scores.evaluation.protocols)


def _record(planned: Run) -> dict[str, Any]:
    """Returns what is known of a run: its status, and what has ended well."""
    path = os.path.join(planned.folder, RECORD)
    missing = {"done": {}, "status": "missing", "reason": ""}
    form = {"done": dict, "status": str, "reason": str}
    return files.read_json(path, missing, form)


def _missing(planned: Run, record: Mapping[str, Any]) -> list[str]:
    """Returns the first command that has not ended well, and those after it."""
    commands = [*planned.commands]
    for number, command in enumerate(commands):
        if record["done"].get(command) != planned.options[command]:
            return commands[number:]
    return []


def _do(planned: Run) -> bool:
    """Runs a run's commands that have not ended well; whether all have now."""
    with terminal.without_start_lines():
        from tf_contrastive.checkpoints import FolderLock

    record = _record(planned)

    def save(status: str, reason: str = "") -> None:
        record.update(status=status, reason=reason)
        path = os.path.join(planned.folder, RECORD)
        files.write_json(path, record, f"set another {arg('workdir')}")

    with FolderLock(planned.folder, "sweep"):
        missing = _missing(planned, record)
        for command in missing:
            record["done"].pop(command, None)
        for command in missing:
            save("unfinished")
            line = _line(planned.commands[command])
            terminal.info(f"  {line}")
            status, last = processes.run(planned.commands[command])
            if status == errors.EXIT_RESUME:
                raise errors.InterruptedRunError(
                    f"interrupted: {line}; repeat the same `sweep` to resume"
                )
            if status:
                last = last.removeprefix("tf_contrastive: ")
                save("failed", f"{command}: {last} (status {status})")
                terminal.warning(f"  failed: {record['reason']}")
                return False
            record["done"][command] = planned.options[command]
            if command == "evaluate":  # A later one may have other options.
                record["scores"] = _scores(planned.folder)
        save("finished")
    return True


# ---- The table ---------------------------------------------------------------


def _result(planned: Run) -> dict[str, Any]:
    """Returns the status and the results of a run."""
    folder, record = planned.folder, _record(planned)
    missing, metrics = _missing(planned, record), {}
    if "pretrain" not in missing:
        rows = files.read_json(os.path.join(folder, "pretrain.json"), {})
        metrics = {
            name: value
            for name, value in rows.items()
            if isinstance(value, int | float)
            and name not in ("steps", "seconds")
        }
    if "evaluate" in planned.commands and "evaluate" not in missing:
        metrics |= record.get("scores") or _scores(folder)
    return {
        "name": os.path.basename(folder),
        "status": record["status"],
        "reason": record["reason"],
        "values": planned.values,
        "options": planned.options["pretrain"],
        "metrics": metrics,
    }


def _scores(folder: str) -> dict[str, float]:
    """Returns the newest results of a run's encoder, by tag."""
    with terminal.without_start_lines():
        from tf_contrastive.evaluation import report

    return {
        tag.removeprefix("trained/"): value
        for row in report.read(folder).get("results", [])
        if row["encoder"] == "trained"
        for tag, value in report.scalars(row).items()
    }


def _write_table(grid: Grid, runs: Sequence[Run]) -> None:
    """Prints and writes the results of all runs, the best first."""
    rows = [_result(planned) for planned in runs]
    metrics = dict.fromkeys(name for row in rows for name in row["metrics"])
    # A network that was trained from scratch says nothing of the run.
    own_names = [n for n in metrics if " scratch/" not in n]
    ranked = (n for end in _RANKED for n in own_names if n.endswith(end))
    metric = ["loss", *ranked][-1]
    sign = 1 if metric.endswith("loss") else -1

    def rank(row: Mapping[str, Any]) -> float:
        value = row["metrics"].get(metric)
        is_number = value is not None and math.isfinite(value)
        return sign * value if is_number else math.inf

    rows.sort(key=rank)
    others = [n for n in metrics if n.endswith("top1") and n != metric]
    shown = [metric, *others[-4:]]
    flagged = [f"--{flag}" for flag, _ in rows[0]["values"]]
    table = [[*flagged, *shown, "status"]]
    for row in rows:
        numbers = [row["metrics"].get(name) for name in shown]
        table.append(
            [
                *(value for _, value in row["values"]),
                *("-" if x is None else f"{x:.4f}" for x in numbers),
                row["status"],
            ]
        )
    texts = (*range(len(flagged)), len(table[0]) - 1)
    print(terminal.format_table(table, texts=texts))
    for row in rows:
        if row["reason"]:
            print(f"{row['status']}: {row['name']}: {row['reason']}")
    report = {"metric": metric, "runs": rows}
    files.write_json(os.path.join(grid.workdir, TABLE), report)
