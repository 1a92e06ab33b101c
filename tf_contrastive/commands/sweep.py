"""`sweep`: runs a grid of flags of `pretrain`, evaluates, and compares."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tf_contrastive import flags
from tf_contrastive.base import errors, files, processes, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.commands import pretrain
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config import checks, fields, own
from tf_contrastive.config.fields import (
    Command,
    Option,
    Terminal,
    group,
    option,
)

# In a run's folder, and in the sweep's.
RECORD = "sweep_run.json"
TABLE = "sweep.json"
_PREFIX = "evaluate_"
# What `evaluate` gets unless it is given.
_EVALUATE = ("--protocols=knn", "--nountrained")
# Options of a run that say nothing about it.
_UNNAMED = ("workdir", "verbosity")
# Numbers in pretrain.json that are not results.
_COUNTS = ("steps", "seconds")
# Results of pretrain by which runs are sorted, where `evaluate` has none.
_PREFERRED = ("linear_top1", "online_knn_top1", "probe_accuracy", "val_loss")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Which runs there are, and how they are compared."""

    pretrain: str = option(
        "",
        "every flag of pretrain, with several values, such as"
        " --loss=supcon,ntxent --seed=0,1. Semicolons separate values; commas"
        " do where the whole text is not one value. A flagfile has one value"
        " for each flag",
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
        "score every run by `evaluate`, whose flags have the prefix"
        f" {_PREFIX} here, such as --{_PREFIX}protocols=knn,linear; without"
        f" any: {' '.join(_EVALUATE)}",
    )
    metric: str = option(
        "",
        "result that sorts the table, such as knn/k=5/top1 or val_loss, of"
        " which the smallest is best; empty: the last top1 of evaluate, else"
        f" the first that pretrain has of {', '.join(_PREFERRED)} and loss",
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


@dataclasses.dataclass(frozen=True)
class Sweep(Command):
    """Pretrain and evaluate with every combination of flags' values."""

    OTHERS: ClassVar = "pretrain"

    grid: Grid = group(Grid())
    terminal: Terminal = group(Terminal())


class Run(NamedTuple):
    """A run of the grid.

    Attributes:
      folder: of the run.
      values: flags, and their values, of those that have several in the grid.
      words: command -> its flags, without the folder.
      options: command -> its options that are not the defaults, as text.
    """

    folder: str
    values: list[list[str]]
    words: dict[str, list[str]]
    options: dict[str, dict[str, str]]


def run(options: Sweep) -> int:
    """Runs what is missing, and writes a table; returns 1 if a run failed."""
    grid = options.grid
    runs = plan(grid)
    chosen = runs
    if grid.run is not None:
        if grid.run >= len(runs):
            raise UserError(
                f"{arg('run', grid.run)}: the grid has {len(runs)} runs: set"
                f" {arg('run', 0)} to {len(runs) - 1}"
            )
        chosen = [runs[grid.run]]
    if grid.print == "commands":
        for planned in chosen:
            for words in _commands(planned, options):
                print(_line(words))
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
        if status := processes.run(["sweep", *words])[0]:
            return status
    failed = False
    for number, planned in enumerate(chosen, 1):
        name = os.path.basename(planned.folder)
        terminal.info(f"run {number} of {len(chosen)}: {name}")
        failed |= not _do(planned, options)
    if grid.run is None:
        _write_table(grid, runs)
    return int(failed)


# ---- The grid ----------------------------------------------------------------


def plan(grid: Grid) -> list[Run]:
    """Returns the runs of a grid, the last flag's values changing first.

    Raises:
      UserError: for a combination that cannot work, or that occurs twice.
    """
    words, evaluate = _split(shlex.split(grid.pretrain))
    declared = flags.declared(PretrainCommand)
    axes = _axes(words, declared)
    scoring = {}
    if grid.evaluate:
        config = _parsed(Evaluate, evaluate, "evaluate")
        if config.evaluation.output_dir:
            raise UserError(
                f"--{_PREFIX}output_dir: results go to the folder of each run:"
                " leave it out"
            )
        scoring["evaluate"] = _differing(config)
    names = {axis[0].lstrip("-").partition("=")[0] for axis in axes if axis[1:]}
    runs: dict[str, Run] = {}
    for combination in itertools.product(*axes):
        swept = [
            word.lstrip("-")
            for word, axis in zip(combination, axes, strict=True)
            if len(axis) > 1
        ]
        config = _parsed(PretrainCommand, combination, ", ".join(swept))
        options = _differing(config)
        decisive = {
            name: text
            for name, text in options.items()
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
        runs[digest] = Run(
            os.path.join(grid.workdir, f"{title}-{digest}"),
            [word.split("=", 1) for word in swept],
            {"pretrain": [*combination]} | dict.fromkeys(scoring, evaluate),
            {"pretrain": options, **scoring},
        )
    return [*runs.values()]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags of `pretrain`, and those of `evaluate`."""
    pretrain: list[str] = []
    evaluate = [*_EVALUATE]
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
    return pretrain, evaluate


def _axes(
    words: Sequence[str], declared: Mapping[str, Option]
) -> list[list[str]]:
    """Returns the words of each flag, one for each of its values.

    A flag that is repeated has its last values; a family has all.
    """
    axes: dict[str, list[str]] = {}
    for word in words:
        flag, equals, text = word.partition("=")
        name = flag.lstrip("-")
        values = _values(text, declared.get(name))
        axes[name if name in declared else word] = [
            f"{flag}{equals}{value}" for value in values
        ]
    return [*axes.values()]


def _values(text: str, option: Option | None) -> list[str]:
    """Returns the values of a flag in a text; see `Grid`."""
    if ";" in text:
        return text.split(";")
    # Commas separate the options of a family.
    if option is None or "," not in text:
        return [text]
    try:
        fields.read(option.name, option.field, text)
    except UserError:
        return [part.strip() for part in text.split(",")]
    return [text]


def _parsed(kind: type[Command], words: Sequence[str], title: str) -> Any:
    """Returns the valid options of a command in a folder "run".

    Raises:
      UserError: which names the combination of values, its title.
    """
    allowed = flags.allow_own_modules([*words, "--workdir=run"])
    try:
        config = flags.parse(kind, allowed)
        config.validate()
    except UserError as error:
        raise _named(kind, title, error) from error
    return config


def _named(kind: type[Command], title: str, error: UserError) -> UserError:
    """Returns an error with the combination of values that has it."""
    text = flags.with_flags(kind, error.marked)
    return UserError(f"{title}: {text}" if title else text)


def _differing(config: Command) -> dict[str, str]:
    """Returns the options that are not the defaults, as text."""
    return {
        option.name: fields.written(option.value)
        for option in fields.options(config)
        if option.value != option.field.default and option.name not in _UNNAMED
    }


# ---- Runs --------------------------------------------------------------------


def _check(runs: Sequence[Run]) -> None:
    """Opens the data and builds the networks of runs, as their commands will.

    Raises:
      UserError: for what would end one of them before its first step.
    """
    with terminal.without_start_lines():
        from tf_contrastive import checkpoints
        from tf_contrastive.evaluation import protocols, scoring
        from tf_contrastive.evaluation.context import EvaluationContext
        from tf_contrastive.evaluation.subject import Subject

    checked: list[PretrainCommand] = []
    for planned in runs:
        title = ", ".join("=".join(pair) for pair in planned.values)
        config = _parsed(PretrainCommand, planned.words["pretrain"], title)
        # Neither data nor networks depend on the others of these.
        batch = config.schedule.batch_size
        same = dataclasses.replace(
            config, optimizer=None, schedule=batch, runtime=None
        )
        if same in checked:
            continue
        checked.append(same)
        kind: type[Command] = PretrainCommand
        try:
            prepared = pretrain.prepare(config)
            prepared.build()
            if "evaluate" not in planned.words:
                continue
            kind = Evaluate
            scores = _parsed(Evaluate, planned.words["evaluate"], title)
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
        except UserError as error:
            raise _named(kind, title, error) from error


def _record(planned: Run) -> dict[str, Any]:
    """Returns what is known of a run: its status, and what has ended well."""
    path = os.path.join(planned.folder, RECORD)
    missing = {"done": {}, "status": "missing", "reason": ""}
    form = {"done": dict, "status": str, "reason": str}
    return files.read_json(path, missing, form)


def _missing(planned: Run, record: Mapping[str, Any]) -> list[str]:
    """Returns a run's commands that have not ended well with its options."""
    return [
        command
        for command, options in planned.options.items()
        if record["done"].get(command) != options
    ]


def _do(planned: Run, options: Sweep) -> bool:
    """Runs a run's commands that have not ended well; whether all have now.

    Raises:
      InterruptedRunError: if one was interrupted.
    """
    with terminal.without_start_lines():
        from tf_contrastive.checkpoints import FolderLock

    record = _record(planned)

    def save(status: str, reason: str = "") -> None:
        record.update(status=status, reason=reason)
        path = os.path.join(planned.folder, RECORD)
        files.write_json(path, record, f"set another {arg('workdir')}")

    with FolderLock(planned.folder, "sweep"):
        for words in _commands(planned, options):
            command = words[0]
            if command not in _missing(planned, record):
                continue
            save("unfinished")
            terminal.info(f"  {_line(words)}")
            status, last = processes.run(words)
            if status == errors.EXIT_RESUME:
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
    ends = [f"--workdir={planned.folder}"]
    if options.terminal.verbosity != Terminal.verbosity:
        ends.append(f"--verbosity={options.terminal.verbosity}")
    commands = []
    for name, words in planned.words.items():
        # A run's folder names its own parts, and allows none.
        allowed = own.words() if name == "evaluate" else []
        commands.append([name, *words, *allowed, *ends])
    return commands


def _line(words: Sequence[str]) -> str:
    return f"python -m tf_contrastive {shlex.join(words)}"


# ---- The table ---------------------------------------------------------------


def _result(planned: Run) -> dict[str, Any]:
    """Returns the status and the results of a run."""
    with terminal.without_start_lines():
        from tf_contrastive.evaluation import report

    folder, record = planned.folder, _record(planned)
    done = planned.options.keys() - _missing(planned, record)
    metrics = {}
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
    return {
        "name": os.path.basename(folder),
        "status": record["status"],
        "reason": record["reason"],
        "values": planned.values,
        "options": planned.options["pretrain"],
        "metrics": metrics,
    }


def _write_table(grid: Grid, runs: Sequence[Run]) -> None:
    """Prints and writes the results of all runs, the best first."""
    rows = [_result(planned) for planned in runs]
    metrics = dict.fromkeys(name for row in rows for name in row["metrics"])
    scored = [name for name in metrics if name.endswith("/top1")]
    preferred = [name for name in _PREFERRED if name in metrics]
    metric = grid.metric or [*scored[-1:], *preferred, "loss"][0]
    if metrics and metric not in metrics:
        raise errors.unknown(arg("metric"), metric, metrics)
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
    if metric in rows[0]["metrics"]:
        print(f"best by {metric}: {rows[0]['name']}")
    report = {"metric": metric, "runs": rows}
    files.write_json(os.path.join(grid.workdir, TABLE), report)
