"""`reproduce`: lists, runs, judges and reports the papers' claims."""

import dataclasses
import os

from lab.claims import definitions
from tf_contrastive.base import terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.checks import plain_path
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.fields import group, option


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """Which of the papers' claims `reproduce` runs, and how."""

    claim: str = option("", "id of a claim, table or figure, such as SI-T1")
    scale: str = option(
        "cpu",
        "cpu: a small recipe, minutes on two cores; paper: the paper's recipe,"
        " for a TPU or GPU host",
        choices=definitions.SCALES,
    )
    list: bool = option(
        False, "print every table and figure, with its recipes and its status"
    )
    report: bool = option(
        False, "write RESULTS.md and its plots from the existing results"
    )
    dry_run: bool = option(False, "only print the commands of a claim")
    seeds: int | None = option(
        None,
        "runs of every arm; auto: the claim's own number; with fewer than five"
        " no test can reach p = 0.05",
        minimum=1,
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


def run(options: Reproduce) -> int:
    """Prints a list, a plan, or the tables of a claim that it runs.

    A claim's result is written to `<workdir>/<claim>/result.json`, and the runs
    of all claims to `<workdir>/runs`. Returns 1 if the opposite of a claim that
    was run is seen, or if it is invalid.
    """
    chosen = options.reproduction
    known = definitions.claims(chosen.claims)
    landed = definitions.landed(
        os.path.join(chosen.report_dir, definitions.RESULTS)
    )
    if chosen.list and not chosen.workdir:
        print(definitions.listing(known, landed))
        return 0
    claim = definitions.find(chosen.claim, known) if chosen.claim else None
    recipe = claim.recipe(chosen.scale) if claim else None
    # Here, so that the list and errors need not wait for TensorFlow.
    with terminal.without_start_lines():
        from lab.claims import (
            results_document,
            results_page,
            runs,
            verdicts,
        )

    if claim is None or recipe is None:
        if chosen.list:
            newer = runs.read_all(known, chosen.workdir)
            print(definitions.listing(known, landed | newer))
        else:
            print(
                results_document.write(known, chosen.workdir, chosen.report_dir)
            )
        return 0
    folders = runs.Folders(chosen.workdir, chosen.data_dir, chosen.configs_dir)
    if chosen.dry_run:
        seeds = chosen.seeds or recipe.seeds
        print(results_document.plan(runs.plan(recipe, folders, seeds)))
        return 0
    result = runs.run(claim, chosen.scale, folders, chosen.seeds)
    print(results_page.tables(recipe, result))
    terminal.info(f"written: {os.path.join(chosen.workdir, claim.name)}")
    return int(result["verdict"] in (verdicts.OPPOSITE, verdicts.INVALID))
