"""`benchmark`: speed and memory side by side with others, checked equal."""

import json
import os
import sys
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, config
from tf_contrastive.benchmarks import BENCHMARKS, measure


def run(options: config.Benchmark) -> int:
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
      UserError: if the file cannot be written.
    """
    chosen = options.benchmarking
    output = chosen.output or f"benchmark_{chosen.benchmark}.json"
    folder = os.path.dirname(output) or "."
    if not tf.io.gfile.isdir(folder):
        raise config.UserError(
            f"--output={output}: there is no folder {folder}: create it, or"
            " give a file in a folder that exists"
        )
    report = BENCHMARKS[chosen.benchmark](options, _say)
    print("\n\n".join(report.tables))
    _write(
        output,
        {
            "benchmark": chosen.benchmark,
            "options": {
                field.name: value for _, field, value in config.fields(options)
            },
            "environment": measure.environment(),
            "passed": report.passed,
            "results": report.results,
        },
    )
    return 0 if report.passed else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(path: str, report: dict[str, Any]) -> None:
    try:
        checkpoints.write_text(path, json.dumps(report, indent=2) + "\n")
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise config.UserError(
            f"cannot write {path} ({reason}): the table above is complete; give"
            " an --output that you may write to keep it"
        ) from error
    _say(f"written: {path}")
