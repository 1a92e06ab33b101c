"""The options of `reproduce`."""

import dataclasses

from tf_contrastive.config.fields import option, validate_fields
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.errors import UserError


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """Which of the papers' claims `reproduce` looks at, and how."""

    claim: str = option(
        "", "claim, or table or figure, to run, by its id, such as SI-T1"
    )
    scale: str = option(
        "cpu",
        "cpu: a small recipe, minutes on two cores; paper: the paper's own, for"
        " a TPU or GPU host",
        choices=("cpu", "paper"),
    )
    list: bool = option(
        False, "print every table and figure, with its recipes and its status"
    )
    report: bool = option(
        False, "write RESULTS.md and its pictures, from the results there are"
    )
    dry_run: bool = option(False, "print the commands of a claim; run nothing")
    seeds: int = option(
        0,
        "runs of every arm; 0: as many as the claim says. Of fewer than five no"
        " test can reach p = 0.05",
        minimum=0,
    )
    workdir: str = option("", "folder of runs and results; the same resumes")
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    claims: str = option("", "JSON file of other claims; empty: the package's")
    configs_dir: str = option("configs", "folder of the flagfiles")
    report_dir: str = option("docs", "folder that RESULTS.md is written into")


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """All options of `reproduce`."""

    reproduction: Reproduction = dataclasses.field(default_factory=Reproduction)
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        r = self.reproduction
        if sum((bool(r.claim), r.list, r.report)) != 1:
            raise UserError(
                "give one of `list`, claim=ID (such as SI-T1), and `report`"
            )
        if not r.workdir and not r.list and not r.dry_run:
            raise UserError(
                "`workdir` is missing: give a folder, such as"
                " workdir=reproduction; the same folder resumes"
            )
