"""`benchmark`: speed and memory next to alternatives, checked to be equal."""

import dataclasses
import importlib
from typing import Any, ClassVar

from lab.benchmarks.options import BENCHMARKS, Common
from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import checks, fields
from tf_contrastive.config.fields import Command, Terminal, group, option

_COMPARING = [name for name, kind in BENCHMARKS.items() if kind().in_all()]


def _benchmark_name(value: str) -> str | None:
    allowed = checks.one_of(value, (*BENCHMARKS, "all"))
    return allowed and f"{allowed}, as in: benchmark loss"


def _two_files(value: str) -> str | None:
    if all(value.partition(",")[::2]) and value.count(",") == 1:
        return None
    return f"two files of benchmarks, such as {arg('compare')} a.json b.json"


@dataclasses.dataclass(frozen=True)
class Benchmarking:
    """What `benchmark` measures or shows."""

    benchmark: str = option(
        "",
        f"benchmark to run, one of {', '.join(BENCHMARKS)}; all: those that"
        f" compare ({', '.join(_COMPARING)}), in one table; may be the word"
        " after the command",
        check=_benchmark_name,
    )
    quick: bool = option(
        False, "smaller cases and fewer repeats: ten minutes for all"
    )
    compare: str = option(
        "",
        "A,B or --compare A B: two files of benchmarks, of two machines or"
        " commits, whose ratios to show side by side",
        check=_two_files,
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
        "quick",
        "compare",
        "only_ours",
        "repeats",
        "memory",
        "output",
        "verbosity",
    )
    BARE_WORD: ClassVar = "benchmark"

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the smaller cases of `quick`."""
        values: dict[str, Any] = {}
        if given.get("quick"):
            values |= Common.quick_values
            for kind in BENCHMARKS.values():
                values |= kind.quick_values
        return values

    @property
    def names(self) -> list[str]:
        """The benchmarks to run."""
        chosen = self.benchmarking.benchmark
        if chosen != "all":
            return [chosen]
        return [name for name in BENCHMARKS if getattr(self, name).in_all()]

    def _check(self) -> None:
        chosen = self.benchmarking
        if bool(chosen.benchmark) == bool(chosen.compare):
            raise UserError(
                f"{arg('benchmark', chosen.benchmark)} and"
                f" {arg('compare', chosen.compare)}: set one of them, as in:"
                " benchmark loss"
            )
        for name in BENCHMARKS if chosen.benchmark else ():
            options = getattr(self, name)
            if name in self.names:
                options.check()
            else:
                self._check_unset(options)

    def _check_unset(self, options: Any) -> None:
        """Raises `UserError` for an option of a benchmark that is not run."""
        quick = options.quick_values
        for given in fields.options(options):
            usual = (given.field.default, quick.get(given.name))
            if given.value not in usual:
                raise UserError(
                    f"{arg(given.name, given.value)} is an option of"
                    f" {arg('benchmark', options.name)}, not of"
                    f" {arg('benchmark', self.benchmarking.benchmark)}: omit it"
                )


def run(options: Benchmark) -> int:
    """Prints tables and writes a JSON file, or compares two such files.

    The file holds `benchmark`, `options` (flags), `environment` (`versions`,
    `platform`, `cpus`, `accelerators`), `passed`, `ratios` (the time of each
    alternative divided by ours), and `results`: for each case and
    implementation, the fields of the case and the measurements.

    Returns:
      0, or 1 if an implementation differs from ours or runs out of memory.
    """
    chosen = options.benchmarking
    for name in options.names if chosen.benchmark else ():
        getattr(options, name).check_machine()
    with terminal.without_start_lines():
        from lab.benchmarks import measure, ratios

    if chosen.compare:
        print(ratios.side_by_side(*chosen.compare.split(",")))
        return 0
    output = chosen.output or f"benchmark_{chosen.benchmark}.json"
    measure.check_output("output", output)
    reports = {}
    for name in options.names:
        module = importlib.import_module(f"lab.benchmarks.{name}")
        reports[name] = module.run(options.common, getattr(options, name))
    report = ratios.joined(reports) if len(reports) > 1 else reports[name]
    print("\n\n".join(report.tables))
    content = {
        "benchmark": chosen.benchmark,
        "options": fields.values(options),
        "environment": measure.environment(),
        "passed": report.passed,
        "ratios": report.ratios,
        "results": report.rows,
    }
    advice = (
        f"the table above is complete; set {arg('output')} to keep it as a file"
    )
    files.write_json(output, content, advice)
    terminal.info(f"written: {output}")
    return 0 if report.passed else 1
