"""`benchmark`: speed and memory side by side with others, checked equal."""

import json
import os
import shlex
from typing import Any

from tf_contrastive import errors, flags, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import check_divisible


def run(options: Benchmark) -> int:
    """Prints tables and writes a JSON file.

    The file holds `benchmark`, `options` (of the flags), `environment`
    (`versions`, `platform`, `cpus`, `accelerators`), `passed`, and `results`:
    of each case and implementation the fields of the case and of
    `measure.Result`.

    Args:
      options: validated.

    Returns:
      0, or 1 if an implementation failed: it differs from ours, or ran out of
      memory.

    Raises:
      UserError: for run flags that pretrain would refuse, or a file that
        cannot be written.
    """
    chosen = options.benchmarking
    if chosen.benchmark == "step":
        _check_step(options)
    # Here, so that a mistake in flags need not wait for TensorFlow.
    import tensorflow as tf

    from tf_contrastive.benchmarks import BENCHMARKS, measure
    from tf_contrastive.commands import extensions

    extensions.add_papers()

    output = chosen.output or f"benchmark_{chosen.benchmark}.json"
    folder = os.path.dirname(output) or "."
    if not tf.io.gfile.isdir(folder):
        raise errors.UserError(
            f"--output={output}: there is no folder {folder}: create it, or"
            " give a file in a folder that exists"
        )
    if tf.io.gfile.isdir(output):
        raise errors.UserError(
            f"--output={output} is a folder: give a file in it"
        )
    report = BENCHMARKS[chosen.benchmark](options, terminal.info)
    print("\n\n".join(report.tables))
    _write(
        output,
        {
            "benchmark": chosen.benchmark,
            "options": {
                field.name: value for _, field, value in fields.fields(options)
            },
            "environment": measure.environment(),
            "passed": report.passed,
            "results": report.results,
        },
    )
    return 0 if report.passed else 1


def _check_step(options: Benchmark) -> None:
    """Raises `UserError` for a run that pretrain would refuse."""
    words = shlex.split(options.step.run_flags)
    wanted = flags.read(Pretrain, "\n".join(words), "none")
    wanted.validate()
    for count in fields.read_counts(options.step.replicas):
        check_divisible(wanted.schedule.batch_size, count)


def _write(path: str, report: dict[str, Any]) -> None:
    import tensorflow as tf

    from tf_contrastive import checkpoints

    try:
        checkpoints.write_text(path, json.dumps(report, indent=2) + "\n")
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise errors.UserError(
            f"cannot write {path} ({reason}): the table above is complete; give"
            " an --output that you may write to keep it"
        ) from error
    terminal.info(f"written: {path}")
