"""How the data of a run were understood, and whether its splits are apart."""

import dataclasses

import numpy as np

from tf_contrastive import datasets, train
from tf_contrastive.base import errors
from tf_contrastive.datasets import description
from tf_contrastive.doctor import test_split


@dataclasses.dataclass(frozen=True)
class Examined:
    """What is found of a run's data.

    Attributes:
      rows: name -> value, of the report.
      classes: of the training split, or a part of it; None without labels.
      warnings: check -> one line on what is wrong and what to do.
    """

    rows: description.Rows
    classes: description.Classes | None
    warnings: dict[str, errors.Message]


def examine(run: train.PreparedRun, seconds: float) -> Examined:
    """Describes a run's training split, and what `evaluate` would score.

    Labels in files are read for about `seconds`.
    """
    source = run.source
    classes = description.count_classes(source, seconds)
    rows = description.describe(source, classes)
    scored, problems = _scored(run)
    rows["test_split"] = scored
    warnings = {name: errors.Message(x) for name, x in problems.items()}
    return Examined(rows, classes, warnings)


def _scored(run: train.PreparedRun) -> tuple[str, dict[str, str]]:
    """Returns a description of the test split, and what is wrong with it."""
    data, info = run.options.data, run.source.info
    try:
        test = run.test or train.open_split(run.options, data.test_split)
        # That of the run may lack what validation cuts off.
        whole = train.open_split(run.options, data.split)
    except errors.AbsentSplitError as error:
        problems = {"test_split": error.marked} if info.has_labels else {}
        return "none", problems
    except errors.UserError as error:
        return "cannot be read", {"test_split": error.marked}
    found = datasets.find_overlap(whole, test)
    same, copies = map(np.count_nonzero, (found.same, found.copies))
    text = (
        f"{data.test_split}: {test.info.num_examples:,} images,"
        f" {same:,} of them in {data.split},"
        f" {f'{copies:,} copies' if found.compared else 'copies not compared'}"
    )
    try:
        if info.has_labels and test.info.has_labels:
            datasets.check_scorable(info, test.info)
        warning = datasets.check_disjoint(whole, test)
    except errors.UserError as error:
        if test_split.refuses(run):
            raise
        return text, {"test_split": error.marked}
    problems = {"test_split": warning.marked} if warning else {}
    for path, seen in test_split.seen_before(run.options, test):
        problem = (
            f"{errors.arg('init_from', path)}: {seen.text}: set another"
            f" {errors.arg('test_split')}, or start from another encoder"
        )
        if run.test is not None and seen.are_known:
            raise errors.UserError(problem)
        problems["init_from"] = problem
    return text, problems
