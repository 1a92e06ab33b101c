"""`doctor`: checks a run before it starts."""

import os

from tf_contrastive import checkpoints, doctor, flags, terminal
from tf_contrastive.commands import extensions
from tf_contrastive.config.pretrain import Doctor


def run(options: Doctor) -> int:
    """Prints the report and, with a workdir, writes it to `doctor.json`."""
    extensions.add_papers()
    report = doctor.inspect(options)
    warnings = {
        name: flags.with_flags(Doctor, text)
        for name, text in report.warnings.items()
    }
    width = max(len(name) for part in report.sections.values() for name in part)
    for heading, part in report.sections.items():
        print(heading)
        for name, value in part.items():
            if value is None:
                value = "-"
            elif isinstance(value, int | float):
                value = f"{value:,}"
            print(f"  {name:{width}}  {value}")
        print()
    print(f"warnings: {len(warnings)}")
    for name, text in warnings.items():
        print(f"  {name}: {text}")
    if options.runtime.workdir:
        path = os.path.join(options.runtime.workdir, "doctor.json")
        contents = {**report.sections, "warnings": warnings}
        checkpoints.write_json(
            path, contents, "use a `workdir` that can be written, or none"
        )
        terminal.info(f"written: {path}")
    return 0
