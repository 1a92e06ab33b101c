"""`doctor`: checks a run before it starts."""

import os
from typing import Any

from tf_contrastive import flags
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config.checks import plain_path
from tf_contrastive.config.compilation import Compilation
from tf_contrastive.config.fields import group, option
from tf_contrastive.config.runtime import Runtime


class CheckedRuntime(Runtime):
    """The options of a run that is only checked."""

    workdir: str = option(
        "",
        "folder of the run, for doctor.json; empty: write nothing",
        check=plain_path,
        identity=False,
    )


class Doctor(PretrainCommand):
    """Check a pretrain command: memory, speed, known problems."""

    runtime: CheckedRuntime = group(CheckedRuntime())
    compilation: Compilation = group(Compilation())


def run(options: Doctor) -> int:
    """Prints the report and, with a workdir, writes it to `doctor.json`."""
    compilation = options.compilation
    contents: dict[str, Any]
    if compilation.compile_for:
        with terminal.without_start_lines():
            # Late: it uses operations that are not in TensorFlow's API.
            from tf_contrastive.doctor import tpu

        contents = sections = tpu.inspect(
            options, compilation.compile_for, compilation.compile_python
        )
    else:
        with terminal.without_start_lines():
            from tf_contrastive.doctor import inspection

        report = inspection.inspect(options)
        sections = report.sections
        warnings = {
            name: flags.with_flags(Doctor, text)
            for name, text in report.warnings.items()
        }
        contents = {**sections, "warnings": warnings}
        print(f"warnings: {len(warnings)}")
        for name, text in warnings.items():
            print(f"  {name}: {text}")
        print()
    terminal.print_sections(sections)
    if workdir := options.runtime.workdir:
        path = os.path.join(workdir, "doctor.json")
        advice = f"use a {errors.arg('workdir')} that can be written, or none"
        files.write_json(path, contents, advice)
        terminal.info(f"written: {path}")
    return 0
