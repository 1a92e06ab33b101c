"""`doctor`: what can be known of a run, and may go wrong, before it starts."""

import json
import os
import sys
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, config, preflight, terminal

RESULT_FILE = "doctor.json"


def run(options: config.Doctor) -> int:
    """Prints what was found, and writes it to `doctor.json` in the workdir.

    The file holds the sections that are printed, and `warnings`.

    Args:
      options: validated; without a workdir nothing is written.

    Returns:
      0, with warnings or without.

    Raises:
      UserError: for what pretrain would refuse, or a file that cannot be
        written.
    """
    report = preflight.inspect(options)
    print(table(report))
    if options.runtime.workdir:
        _write(os.path.join(options.runtime.workdir, RESULT_FILE), report)
    if report.abandoned:
        # TensorFlow cannot be told to stop a step; the end of a process can.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def table(report: preflight.Report) -> str:
    """Lays a report out for people."""
    names = [name for part in report.sections.values() for name in part]
    width = max(map(len, names))
    lines = []
    for heading, part in report.sections.items():
        lines += ["", heading]
        lines += [f"  {k:{width}}  {_shown(v)}" for k, v in part.items()]
    lines += ["", f"warnings: {len(report.warnings)}"]
    lines += [f"  {name}: {text}" for name, text in report.warnings.items()]
    return "\n".join(lines[1:])


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _write(path: str, report: preflight.Report) -> None:
    found = {**report.sections, "warnings": report.warnings}
    try:
        checkpoints.write_text(path, json.dumps(found, indent=2) + "\n")
    except (OSError, tf.errors.OpError) as error:
        raise config.cannot_write(
            path, error, "give a --workdir that you may write, or none"
        ) from error
    terminal.tell(f"written: {path}")
