"""Images of the test split that a run learns from."""

from collections.abc import Iterator
from typing import NamedTuple

from tf_contrastive import datasets, train
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import without_slice


class Problem(NamedTuple):
    """What is wrong with the images to score."""

    option: str  # That chooses them; "unscored": they cannot be scored.
    text: str
    ends: bool  # The run scores them itself, and must not start.


def check(run: train.PreparedRun) -> None:
    """Checks that the images to score are others than those to learn from.

    Raises:
      UserError: for a test split of the linear stage, or a slice of the split
        to train on, that has training images. `evaluate` scores others later:
        they are warned of.
    """
    if not _refuses(run) and (run.source.digests is None or not run.is_chief):
        return
    for problem in find(run):
        if problem.ends:
            raise errors.UserError(problem.text)
        # `evaluate` reports what it cannot score.
        if problem.option != "unscored":
            terminal.warning(problem.text)


def find(run: train.PreparedRun) -> Iterator[Problem]:
    """Yields what is wrong with the images to score after a run."""
    options, data = run.options, run.options.data
    # The run's own lacks what validation cuts off.
    learned = train.open_split(options, data.split)
    try:
        test = run.test or train.open_split(options, data.test_split)
        if learned.info.has_labels and test.info.has_labels:
            datasets.check_scorable(learned.info, test.info)
    except errors.UserError as error:
        if learned.info.has_labels:
            yield Problem("unscored", error.marked, _refuses(run))
        return
    try:
        if warning := datasets.check_disjoint(learned, test):
            yield Problem("test_split", warning.marked, False)
    except errors.UserError as error:
        yield Problem("test_split", error.marked, _refuses(run))


def _refuses(run: train.PreparedRun) -> bool:
    """Whether a test split that has training images is an error of the run."""
    data = run.options.data
    of_one = without_slice(data.split) == without_slice(data.test_split)
    return of_one or run.test is not None
