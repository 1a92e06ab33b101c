"""`benchmark`: speed and memory next to alternatives, checked to be equal."""

import dataclasses
import importlib
from typing import Any, ClassVar

from lab.benchmarks import options
from lab.benchmarks.options import BENCHMARKS, Common
from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import fields
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.fields import group, option


@dataclasses.dataclass(frozen=True)
class Benchmarking:
    """What `benchmark` measures."""

    benchmark: str = option(
        "",
        f"benchmark to run, one of {', '.join(BENCHMARKS)}; may be the word"
        " after the command",
        choices=BENCHMARKS,
    )
    output: str = option(
        "", "JSON file to write; empty: benchmark_<benchmark>.json"
    )


@dataclasses.dataclass(frozen=True)
class Benchmark(Command):
    """Compare speed and memory with other packages: benchmark loss."""

    benchmarking: Benchmarking = group(Benchmarking())
    common: Common = group(Common())
    step: options.Step = group(options.Step())
    loss: options.Loss = group(options.Loss())
    input: options.Input = group(options.Input())
    evaluation: options.Evaluation = group(options.Evaluation())
    peer: options.Peer = group(options.Peer())
    terminal: Terminal = group(Terminal())

    COMMON: ClassVar = (
        "benchmark",
        "repeats",
        "memory",
        "output",
        "verbosity",
    )

    @property
    def name(self) -> str:
        """The benchmark to run."""
        return self.benchmarking.benchmark

    def _check(self) -> None:
        if not self.name:
            raise UserError(
                f"{arg('benchmark')} is missing: set one of"
                f" {', '.join(BENCHMARKS)}, as in: benchmark loss"
            )
        for name in BENCHMARKS:
            group = getattr(self, name)
            if name == self.name:
                group.check()
            else:
                self._check_unset(group)

    def _check_unset(self, group: Any) -> None:
        """Raises `UserError` for an option of a benchmark that is not run."""
        for given in fields.options(group):
            if given.value != given.field.default:
                raise UserError(
                    f"{arg(given.name, given.value)} is an option of"
                    f" {arg('benchmark', group.name)}, not of"
                    f" {arg('benchmark', self.name)}: omit it"
                )


def run(given: Benchmark) -> int:
    """Prints a table and writes a JSON file.

    The file holds `benchmark`, `options` (flags), `environment` (`versions`,
    `platform`, `cpus`, `accelerators`), `passed`, and `results`: for each case
    and implementation, the fields of the case and the measurements.

    Returns:
      0, or 1 if an implementation differs from ours or runs out of memory.
    """
    chosen = getattr(given, given.name)
    with terminal.without_start_lines():
        from lab.benchmarks import measure

    output = given.benchmarking.output or f"benchmark_{given.name}.json"
    advice = f"set {arg('output')} to a file that can be written"
    files.check_writable(output, advice)
    module = importlib.import_module(f"lab.benchmarks.{given.name}")
    report = module.run(given.common, chosen)
    print(report.text)
    content = {
        "benchmark": given.name,
        "options": fields.values(given),
        "environment": measure.environment(),
        "passed": report.passed,
        "results": report.rows,
    }
    files.write_json(output, content, advice)
    terminal.info(f"written: {output}")
    return 0 if report.passed else 1
