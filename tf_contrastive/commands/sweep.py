"""`sweep`: runs a grid of flags of `pretrain`, evaluates, and compares."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import time
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
        " --loss=supcon,ntxent --seed=0,1. Semicolons separate values, and"
        " commas do unless the flag itself takes commas; what may be both is"
        " refused. A flagfile has one value for each flag",
        check=checks.shell_words,
    )
    workdir: str = option(
        "",
        "folder of the runs and of their table; the same folder resumes, and"
        " takes further grids",
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
        "result that sorts the table, such as knn/k=5/top1 or val_loss; empty:"
        " the last top1 of evaluate, else the first that pretrain has of"
        f" {', '.join(_PREFERRED)} and loss",
    )
    minimize: bool | None = option(
        None, "the smallest is best; auto: if the metric is a loss"
    )
    print: str = option(
        "none",
        "print, and run nothing: the commands; the table of the runs in the"
        " folder; or nothing, by check, which opens the data and builds the"
        " networks of all runs",
        choices=("none", "commands", "table", "check"),
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
      name: of its folder.
      title: the values that it has of the grid.
      words: command -> its flags, without the folder.
      configs: command -> its options, with another folder.
    """

    name: str
    title: str
    words: dict[str, list[str]]
    configs: dict[str, Command]

    @property
    def options(self) -> dict[str, dict[str, str]]:
        """Command -> options that are not the defaults, as text."""
        return {name: _differing(x) for name, x in self.configs.items()}


def run(options: Sweep) -> int:
    """Runs what is missing, and writes a table; returns 1 if a run failed."""
    grid = options.grid
    if grid.print == "table":
        return _write_table(grid)
    runs = plan(grid)
    if grid.run is not None:
        if grid.run >= len(runs):
            raise UserError(
                f"{arg('run', grid.run)}: the grid has {len(runs)} runs: set"
                f" {arg('run', 0)} to {len(runs) - 1}"
            )
        runs = [runs[grid.run]]
    if grid.print == "commands":
        for planned in runs:
            for words in _commands(planned, options):
                print(_line(words))
        return 0
    if grid.print == "check":
        _check_data(runs)
        return 0
    if any(_missing(planned, _record(grid, planned)) for planned in runs):
        terminal.info("checking the data and networks of the runs ...")
        # In a process of its own, which holds no device while they run.
        check = fields.options(fields.replace(options, print="check"))
        words = [
            f"--{o.name}={fields.written(o.value)}"
            for o in check
            if o.name != options.OTHERS
        ]
        words += shlex.split(grid.pretrain)
        if status := processes.run(["sweep", *words])[0]:
            return status
    failed = False
    for number, planned in enumerate(runs, 1):
        terminal.info(
            f"run {number} of {len(runs)}: {planned.title or planned.name}"
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
    words, evaluate = _split(shlex.split(grid.pretrain))
    declared = flags.declared(PretrainCommand)
    axes = _axes(words, declared)
    scoring = {}
    if grid.evaluate:
        scoring["evaluate"] = _parsed(Evaluate, evaluate, "evaluate")
        if scoring["evaluate"].evaluation.output_dir:
            raise UserError(
                f"--{_PREFIX}output_dir: results go to the folder of each run:"
                " leave it out"
            )
    swept = {n for axis in axes if len(axis) > 1 for n in flags.named(axis[0])}
    runs: dict[str, Run] = {}
    for combination in itertools.product(*axes):
        title = ", ".join(
            word.lstrip("-")
            for word, axis in zip(combination, axes, strict=True)
            if len(axis) > 1
        )
        config = _parsed(PretrainCommand, combination, title)
        decisive = {
            name: text
            for name, text in _differing(config).items()
            # Options of the user's own parts are not declared.
            if name not in declared or declared[name].identity or name in swept
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
            {"pretrain": [*combination]} | dict.fromkeys(scoring, evaluate),
            {"pretrain": config, **scoring},
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
        values = _values(name, text, declared.get(name))
        axes[name if name in declared else word] = [
            f"{flag}{equals}{value}" for value in values
        ]
    return [*axes.values()]


def _values(name: str, text: str, option: Option | None) -> list[str]:
    """Returns the values of a flag in a text; see `Grid`.

    Raises:
      UserError: if it may be one value or several.
    """
    # A flagfile may be somebody else's: it is left to `pretrain`.
    if name in ("flagfile", own.ARGUMENT):
        return [text]
    if ";" in text:
        return text.removesuffix(";").split(";")
    parts = [part.strip() for part in text.split(",")]
    # The options of a family are separated by commas.
    if option is None or len(parts) == 1:
        return [text]
    if not _is_allowed(option, text):
        return parts
    if all(_is_allowed(option, part) for part in parts):
        raise UserError(
            f"--{name}={text} is one value or {len(parts)}: write"
            f" {';'.join(parts)!r} for {len(parts)}, {f'{text};'!r} for one"
        )
    return [text]


def _is_allowed(option: Option, text: str) -> bool:
    if text == fields.AUTO:
        return option.of_component or fields.is_optional(option.field)
    try:
        fields.read(option.name, option.field, text)
    except UserError:
        return False
    return True


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


def _check_data(runs: Sequence[Run]) -> None:
    """Opens the data and builds the networks of runs, as their commands will.

    Raises:
      UserError: for what would end one of them before its first step.
    """
    with terminal.without_start_lines():
        from tf_contrastive import checkpoints
        from tf_contrastive.evaluation import protocols, scoring
        from tf_contrastive.evaluation.context import EvaluationContext
        from tf_contrastive.evaluation.subject import Subject

    opened: list[PretrainCommand] = []
    for planned in runs:
        config: Any = planned.configs["pretrain"]
        scores: Any = planned.configs.get("evaluate")
        # Neither data nor networks depend on the others of these.
        batch = config.schedule.batch_size
        same = dataclasses.replace(
            config, optimizer=None, schedule=batch, runtime=None
        )
        if same in opened:
            continue
        opened.append(same)
        kind: type[Command] = PretrainCommand
        try:
            prepared = pretrain.prepare(config)
            prepared.build()
            if scores is None:
                continue
            kind = Evaluate
            run = checkpoints.Run(
                prepared.options,
                {"num_classes": prepared.source.info.num_classes},
                checkpoint="",
                step=0,
            )
            data = scoring.open_setting(scores, prepared.strategy, run)
            untrained = Subject.of_run(run, trained=False)
            context = EvaluationContext(untrained, data.data, data.options)
            names = scores.evaluation.protocols
            protocols.select(context, names)
        except UserError as error:
            raise _named(kind, planned.title, error) from error


def _record(grid: Grid, planned: Run) -> dict[str, Any]:
    path = os.path.join(grid.workdir, planned.name, RECORD)
    return files.read_json(path, {"done": {}, "minutes": 0.0}, _FORM)


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

    grid = options.grid
    folder = os.path.join(grid.workdir, planned.name)
    record = _record(grid, planned)
    record["options"] = planned.options

    def save(status: str, reason: str = "") -> None:
        record.update(status=status, reason=reason)
        path = os.path.join(folder, RECORD)
        files.write_json(path, record, f"set another {arg('workdir')}")

    with FolderLock(folder, "sweep"):
        for words in _commands(planned, options):
            command = words[0]
            if command not in _missing(planned, record):
                continue
            save("unfinished")
            terminal.info(f"  {_line(words)}")
            start = time.monotonic()
            status, last = processes.run(words)
            record["minutes"] += (time.monotonic() - start) / 60
            if status == errors.EXIT_RESUME:
                save("unfinished")
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
    for name, words in planned.words.items():
        # A run's folder names its own parts, and allows none.
        allowed = own.words() if name == "evaluate" else []
        commands.append([name, *words, *allowed, *ends])
    return commands


def _line(words: Sequence[str]) -> str:
    return f"python -m tf_contrastive {shlex.join(words)}"


# ---- The table ---------------------------------------------------------------


def _result(folder: str) -> dict[str, Any]:
    """Returns the record of a run, with its results."""
    with terminal.without_start_lines():
        from tf_contrastive.evaluation import report

    record = files.read_json(os.path.join(folder, RECORD), form=_FORM)
    options = record["options"]
    done = [c for c in options if record["done"].get(c) == options[c]]
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
    }


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
    metrics = dict.fromkeys(name for row in rows for name in row["metrics"])
    scored = [name for name in metrics if name.endswith("/top1")]
    preferred = [name for name in _PREFERRED if name in metrics]
    metric = grid.metric or [*scored[-1:], *preferred, "loss"][0]
    if metrics and metric not in metrics:
        raise errors.unknown(arg("metric"), metric, metrics)
    smallest = grid.minimize
    if smallest is None:
        smallest = metric in _LOSSES
    sign = 1 if smallest else -1

    def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = row["metrics"].get(metric)
        is_number = value is not None and math.isfinite(value)
        return not is_number, sign * value if is_number else 0.0

    rows.sort(key=rank)
    differing = _compared(rows)
    others = [n for n in metrics if n.endswith("top1") and n != metric]
    _print_table(rows, differing, [metric, *others[-4:]])
    report = {"metric": metric, "smallest_is_best": smallest, "runs": rows}
    files.write_json(os.path.join(grid.workdir, TABLE), report)
    return 0


def _compared(rows: Sequence[dict[str, Any]]) -> list[str]:
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
    table = [[*flagged, *metrics, "minutes", "status"]]
    for row in rows:
        values = [row["metrics"].get(name) for name in metrics]
        table.append(
            [
                *(row["options"][name] or "-" for name in differing),
                *("-" if x is None else f"{x:.4f}" for x in values),
                f"{row['minutes']:.1f}",
                row["status"],
            ]
        )
    last = len(table[0]) - 1
    print(terminal.format_table(table, texts=(*range(len(differing)), last)))
    for row in rows:
        if row["reason"]:
            print(f"{row['status']}: {row['name']}: {row['reason']}")
    if rows[0]["metrics"].get(metric) is not None:
        print(f"best by {metric}: {rows[0]['name']}")
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
