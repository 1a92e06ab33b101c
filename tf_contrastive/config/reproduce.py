"""The options of `reproduce`."""

import dataclasses

from tf_contrastive.config.fields import (
    Command,
    Terminal,
    group,
    option,
    plain_path,
)
from tf_contrastive.errors import UserError, arg


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """Which of the papers' claims `reproduce` runs, and how."""

    claim: str = option("", "id of a claim, table or figure, such as SI-T1")
    scale: str = option(
        "cpu",
        "cpu: a small recipe, minutes on two cores; paper: the paper's recipe,"
        " for a TPU or GPU host",
        choices=("cpu", "paper"),
    )
    list: bool = option(
        False, "print every table and figure, with its recipes and its status"
    )
    report: bool = option(
        False, "write RESULTS.md and its plots from the existing results"
    )
    dry_run: bool = option(False, "only print the commands of a claim")
    seeds: int = option(
        0,
        "runs of every arm; 0: the claim's own number; with fewer than five no"
        " test can reach p = 0.05",
    )
    workdir: str = option(
        "",
        "folder of runs and results; the same folder resumes",
        check=plain_path,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    claims: str = option("", "JSON file of other claims; empty: the package's")
    configs_dir: str = option("configs", "folder of the flagfiles")
    report_dir: str = option("docs", "folder to write RESULTS.md into")


@dataclasses.dataclass(frozen=True)
class Reproduce(Command):
    """Run and judge the papers' claims; --report writes RESULTS.md."""

    reproduction: Reproduction = group(Reproduction())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        r = self.reproduction
        if sum((bool(r.claim), r.list, r.report)) != 1:
            raise UserError(
                f"set one of {arg('list')}, {arg('claim', 'ID')} (such as"
                f" SI-T1), and {arg('report')}"
            )
        if not r.workdir and not r.list and not r.dry_run:
            raise UserError(
                f"{arg('workdir')} is missing: set a folder, such as"
                f" {arg('workdir', 'reproduction')}; the same folder resumes"
            )
