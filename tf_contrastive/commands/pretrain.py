"""`pretrain`: trains an encoder; prints and writes the results."""

import math
import os
import shlex
from typing import TYPE_CHECKING, Any, ClassVar

from tf_contrastive import flags
from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import fields, own
from tf_contrastive.config.pretrain import Pretrain

if TYPE_CHECKING:
    from tf_contrastive import train

# Options of the encoder with which its weights do not change.
_FREE = (
    *("init_from", "standardize", "zero_init_residual"),
    *("frozen_patches", "drop_path"),
)


class PretrainCommand(Pretrain):
    """Train an encoder; the same command resumes it."""

    COMMON: ClassVar = (
        *("dataset", "data_dir", "augmentation", "image_size", "encoder"),
        *("init_from", "loss", "temperature", "learning_rate", "batch_size"),
        *("epochs", "warmup_epochs", "linear_epochs", "workdir", "strategy"),
        *("precision", "smoke", "verbosity"),
    )

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of the encoder that `init_from` names.

        That is of a run, or published by others.

        Raises:
          UserError: if others are given.
        """
        path = os.path.expanduser(given.get("init_from", ""))
        if not path:
            return {}
        preset = _options_of(path)
        declared = flags.declared(cls)
        for name, value in preset.items():
            other = given.get(name, fields.AUTO)
            if name in _FREE or other == fields.AUTO:
                continue
            if fields.read(name, declared[name].field, other) != value:
                raise UserError(
                    f"{arg(name, other)}:"
                    f" {arg('init_from', path)} has {fields.written(value)}:"
                    f" leave {arg(name)} out, or start from another run"
                )
        return preset


def _options_of(path: str) -> dict[str, Any]:
    """Returns the options of an encoder, if its file or folder has them."""
    config = os.path.join(path, "config.flags")
    if files.exists(config):
        return {
            option.name: option.value
            for option in fields.options(flags.read_file(Pretrain, config))
            if option.group == "encoder" and option.name not in _FREE
        }
    with terminal.without_start_lines():
        from tf_contrastive import exporting

    published = exporting.find_published(path)
    return published.options if published else {}  # Exports do not tell them.


def prepare(options: PretrainCommand) -> "train.PreparedRun":
    """Opens the data of a run, and resolves its options.

    Raises:
      UserError: for options or data that cannot work.
    """
    with terminal.without_start_lines():
        from tf_contrastive import distribution, train
        from tf_contrastive.doctor import smoke, test_split

    with distribution.failures.reported():
        small = smoke.shrink(options) if options.runtime.smoke else options
        prepared = train.prepare(small)
        test_split.check(prepared)
    return prepared


def run(options: PretrainCommand) -> int:
    """Runs the command and returns its exit status."""
    prepared = prepare(options)
    from tf_contrastive import checkpoints, train

    result = train.pretrain(prepared)
    trained = result.run
    path = os.path.join(options.runtime.workdir, train.RESULTS_FILE)
    if trained.is_chief:
        if names := trained.source.info.bad_images:
            heading = f"skipped {len(names)} image(s) that could not be read:"
            terminal.warning("\n  ".join((heading, *names)))
        # Validation may be non-finite where training is not.
        values = result.metrics.items()
        if bad := [name for name, x in values if not math.isfinite(x)]:
            terminal.warning(
                f"{', '.join(bad)} of the last epoch: not a finite number"
            )
        opened = checkpoints.OpenedRun(options.runtime.workdir)
        # Or the process that trained ended before it wrote them.
        if result.start_step < result.step or not files.exists(path):
            files.write_json(path, _rows(result))
    report = None
    if trained.test:
        # Not before the first step: it imports all protocols.
        from tf_contrastive.evaluation import linear_stage

        report = linear_stage.run(
            trained.options, trained.source, trained.test, trained.strategy
        )
    if trained.is_chief:
        opened.check()
        _print_results(result, report, path)
    return 0


def _rows(result: "train.Result") -> dict[str, Any]:
    trained = result.start_step < result.step
    return {
        "loss_function": result.run.options.loss.label,
        "steps": result.step,
        # None: in another process.
        "seconds": round(result.seconds, 1) if trained else None,
        **{name: round(value, 4) for name, value in result.metrics.items()},
    }


def _next(run: "train.PreparedRun") -> list[str]:
    """Returns the command for the encoder of a run, without the workdir."""
    import tensorflow as tf

    from tf_contrastive import train

    command, options = ["evaluate"], run.options
    # The defaults take long on a CPU.
    if not any(map(tf.config.list_logical_devices, ("GPU", "TPU"))):
        command.append("--scale=cpu")
    # Without a test split a part of the images can be scored, if their labels
    # were not learned.
    for fraction in (0.0, 0.2)[: 1 if options.learns_labels else 2]:
        held_out = {"test_fraction": fraction} if fraction else {}
        changed = fields.replace(options, **held_out)
        try:
            test = train.open_split(changed, options.data.test_split)
        except UserError:
            continue
        if run.source.info.has_labels and test.info.has_labels:
            return [*command, *(f"--{k}={v}" for k, v in held_out.items())]
    return ["export"]


def _print_results(
    result: "train.Result", report: dict[str, Any] | None, path: str
) -> None:
    """Prints the results, and adds those of the linear stage to the file."""
    from tf_contrastive.evaluation import report as reports

    workdir = result.run.options.runtime.workdir
    if result.start_step == result.step:
        print(
            f"{workdir} is finished: step {result.step:,} of {result.step:,},"
            " nothing left to train; to train longer, set --epochs and a new"
            " --workdir"
        )
    rows = files.read_json(path)
    if report:
        (scores,) = report["results"]
        rows["linear_top1"] = round(scores["top1"], 4)
        if (top5 := reports.shown_top5(scores)) is not None:
            rows["linear_top5"] = round(top5, 4)
        files.write_json(path, rows)
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")
    if report:
        print()
        print(reports.table(report["results"]))
        print(f"encoder checksum unchanged: {report['checksum'][:12]}")
    command = [*_next(result.run), *own.words()]
    command.append(f"--workdir={shlex.quote(workdir)}")
    print(f"\nnext: python -m tf_contrastive {' '.join(command)}")
