"""`benchmark`: speed and memory next to alternatives, checked to be equal."""

import dataclasses
import importlib
from typing import Any, ClassVar

from lab.benchmarks.options import BENCHMARKS, Common
from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import fields
from tf_contrastive.config.fields import Command, Terminal, group, option


def _benchmark_name(value: str) -> str | None:
    allowed = fields.one_of(value, tuple(BENCHMARKS))
    return allowed and f"{allowed}, as in: benchmark loss"


@dataclasses.dataclass(frozen=True)
class Benchmarking:
    """What `benchmark` measures."""

    benchmark: str = option(
        "",
        f"benchmark to run, one of {', '.join(BENCHMARKS)}; may be the word"
        " after the command",
        check=_benchmark_name,
    )
    output: str = option(
        "", "JSON file to write; empty: benchmark_<benchmark>.json"
    )


# With a group of options for each benchmark.
_Groups: Any = dataclasses.make_dataclass(
    "_Groups",
    [
        ("benchmarking", Benchmarking, group(Benchmarking())),
        ("common", Common, group(Common())),
        *((name, kind, group(kind())) for name, kind in BENCHMARKS.items()),
        ("terminal", Terminal, group(Terminal())),
    ],
    frozen=True,
)


class Benchmark(_Groups, Command):
    """Compare speed and memory with other packages: benchmark loss."""

    COMMON: ClassVar = (
        "benchmark",
        "only_ours",
        "repeats",
        "memory",
        "output",
        "verbosity",
    )
    BARE_WORD: ClassVar = "benchmark"

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
            options = getattr(self, name)
            if name == self.name:
                options.check()
            else:
                self._check_unset(options)

    def _check_unset(self, options: Any) -> None:
        """Raises `UserError` for an option of a benchmark that is not run."""
        for given in fields.options(options):
            if given.value != given.field.default:
                raise UserError(
                    f"{arg(given.name, given.value)} is an option of"
                    f" {arg('benchmark', options.name)}, not of"
                    f" {arg('benchmark', self.name)}: omit it"
                )


def run(options: Benchmark) -> int:
    """Prints a table and writes a JSON file.

    The file holds `benchmark`, `options` (flags), `environment` (`versions`,
    `platform`, `cpus`, `accelerators`), `passed`, and `results`: for each case
    and implementation, the fields of the case and the measurements.

    Returns:
      0, or 1 if an implementation differs from ours or runs out of memory.
    """
    chosen = getattr(options, options.name)
    with terminal.without_start_lines():
        from lab.benchmarks import measure

    output = options.benchmarking.output or f"benchmark_{options.name}.json"
    measure.check_output("output", output)
    module = importlib.import_module(f"lab.benchmarks.{options.name}")
    report = module.run(options.common, chosen)
    print(report.text)
    content = {
        "benchmark": options.name,
        "options": fields.values(options),
        "environment": measure.environment(),
        "passed": report.passed,
        "results": report.rows,
    }
    advice = (
        f"the table above is complete; set {arg('output')} to keep it as a file"
    )
    files.write_json(output, content, advice)
    terminal.info(f"written: {output}")
    return 0 if report.passed else 1
