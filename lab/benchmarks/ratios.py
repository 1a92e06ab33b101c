"""One table for several benchmarks, and for two machines or commits.

Ratios of times in one process depend less on the machine than times do.
"""

from collections.abc import Mapping
from typing import Any

from lab.benchmarks import measure
from tf_contrastive.base import errors, files

# Of what `benchmark` writes.
_FORM = {
    "benchmark": str,
    "ratios": dict,
    "environment": {"versions": dict, "platform": str, "cpus": int},
}


def joined(reports: Mapping[str, measure.Report]) -> measure.Report:
    """Returns one report, with a table of all ratios."""
    ratios = {
        f"{name}: {case}": ratio
        for name, report in reports.items()
        for case, ratio in report.ratios.items()
    }
    rows = [
        {"benchmark": name, **row}
        for name, report in reports.items()
        for row in report.rows
    ]
    cases = [{"case": case, "ratio": ratio} for case, ratio in ratios.items()]
    columns = {"compared with ours": "{case}", "times ours": "{ratio:.2f}"}
    return measure.Report(rows, [measure.table(columns, cases)], ratios)


def side_by_side(first: str, second: str) -> str:
    """Formats the ratios of two files, and in what their machines differ.

    Raises:
      UserError: for other files, or if they have no comparison in common.
    """
    paths = first, second
    a, b = (files.read_json(path, form=_FORM) for path in paths)
    rows = [
        {"case": case, "a": x, "b": y, "quotient": y / x}
        for case, x in _ratios(a).items()
        if (y := _ratios(b).get(case))
    ]
    if not rows:
        raise errors.UserError(
            f"{first} and {second} have no comparison in common: use files of"
            " the same benchmark with the same options"
        )
    columns = {
        "times ours": "{case}",
        "first": "{a:.2f}",
        "second": "{b:.2f}",
        "second / first": "{quotient:.2f}",
    }
    machines = [
        f"first:  {first} ({_machine(a, b)})",
        f"second: {second} ({_machine(b, a)})",
    ]
    return "\n".join([*machines, "", measure.table(columns, rows)])


def _ratios(content: dict[str, Any]) -> dict[str, float]:
    name = content["benchmark"]
    prefix = "" if name == "all" else f"{name}: "
    return {f"{prefix}{k}": ratio for k, ratio in content["ratios"].items()}


def _machine(content: dict[str, Any], other: dict[str, Any]) -> str:
    """Describes a machine, with the versions that the other has not."""
    about, others = content["environment"], other["environment"]["versions"]
    versions = [
        f"{package} {version}"
        for package, version in about["versions"].items()
        if version != others.get(package)
    ]
    cpus = f"{about['cpus']} CPUs"
    return ", ".join([about["platform"], cpus, *versions])
