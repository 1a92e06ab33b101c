"""`doctor`: what can be known of a run, and may go wrong, before it starts."""

import dataclasses
import json
import os
import sys
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, doctor, errors, flags, terminal
from tf_contrastive.commands import extensions
from tf_contrastive.config.pretrain import Doctor

RESULT_FILE = "doctor.json"


def run(options: Doctor) -> int:
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
    extensions.add_papers()
    report = doctor.inspect(options)
    report = dataclasses.replace(
        report,
        warnings={
            name: flags.with_flags(Doctor, text)
            for name, text in report.warnings.items()
        },
    )
    print(table(report))
    if options.runtime.workdir:
        _write(os.path.join(options.runtime.workdir, RESULT_FILE), report)
    if report.abandoned:
        # TensorFlow cannot be told to stop a step; the end of a process can.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def table(report: doctor.Report) -> str:
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


def _write(path: str, report: doctor.Report) -> None:
    found = {**report.sections, "warnings": report.warnings}
    try:
        checkpoints.write_text(path, json.dumps(found, indent=2) + "\n")
    except (OSError, tf.errors.OpError) as error:
        raise errors.cannot_write(
            path, error, "give a --workdir that you may write, or none"
        ) from error
    terminal.info(f"written: {path}")
