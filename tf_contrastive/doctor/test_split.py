"""Images of the test split that a run learns from."""

from tf_contrastive import datasets, train
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import without_slice


def check(run: train.PreparedRun) -> None:
    """Checks that the images to score are others than those to learn from.

    Raises:
      UserError: for a test split of the linear stage, or a slice of the split
        to train on, that has training images. `evaluate` scores others later:
        they are warned of.
    """
    if not _refuses(run) and (run.source.digests is None or not run.is_chief):
        return
    for option, text in find(run).items():
        # `evaluate` reports what it cannot score.
        if option != "unscored":
            terminal.warning(text)


def find(run: train.PreparedRun) -> dict[str, str]:
    """Returns what is wrong with the images to score after a run.

    By the option that chooses them, or "unscored" if they cannot be scored.

    Raises:
      UserError: instead, for a run that `check` refuses.
    """
    options, data = run.options, run.options.data
    # The run's own lacks what validation cuts off.
    learned = train.open_split(options, data.split)
    try:
        test = run.test or train.open_split(options, data.test_split)
        if learned.info.has_labels and test.info.has_labels:
            datasets.check_scorable(learned.info, test.info)
    except errors.UserError as error:
        if not learned.info.has_labels:
            return {}
        if _refuses(run):
            raise
        return {"unscored": error.marked}
    try:
        warning = datasets.check_disjoint(learned, test)
    except errors.UserError as error:
        if _refuses(run):
            raise
        warning = error
    return {"test_split": warning.marked} if warning else {}


def _refuses(run: train.PreparedRun) -> bool:
    """Whether a test split that has training images is an error of the run."""
    data = run.options.data
    of_one = without_slice(data.split) == without_slice(data.test_split)
    return of_one or run.test is not None
