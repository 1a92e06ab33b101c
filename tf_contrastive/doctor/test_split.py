"""Images of the test split that a run learns from, or has learned from."""

import itertools
from collections.abc import Iterator

from tf_contrastive import datasets, exporting, train
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.data import without_slice
from tf_contrastive.config.pretrain import Pretrain


def check(run: train.PreparedRun) -> None:
    """Checks that the images to score are others than those to learn from.

    Raises:
      UserError: for a test split of the linear stage, or a slice of the split
        to train on, that has training images. `evaluate` scores others later:
        they are warned of.
    """
    options, data = run.options, run.options.data
    refused = refuses(run)
    if not refused and (run.source.digests is None or not run.is_chief):
        return
    # The run's own lacks what validation cuts off.
    learned = train.open_split(options, data.split)
    test = run.test
    try:
        if test is None:
            test = train.open_split(options, data.test_split)
    except errors.UserError:
        if refused:
            raise
        return  # `evaluate` reports it.
    try:
        check_disjoint(learned, test)
    except errors.UserError as error:
        if refused:
            raise
        terminal.warning(f"{error.marked}; `evaluate` refuses them")
    for path, seen in seen_before(options, test):
        text = f"{errors.arg('init_from', path)}: {seen.text}"
        if run.test is not None and seen.are_known:
            raise errors.UserError(
                f"{text}: set another {errors.arg('test_split')}, or start from"
                " another encoder"
            )
        terminal.warning(text)


def refuses(run: train.PreparedRun) -> bool:
    """Whether a test split that has training images is an error of the run."""
    data = run.options.data
    of_one = without_slice(data.split) == without_slice(data.test_split)
    return of_one or run.test is not None


def check_disjoint(learned: datasets.Source, test: datasets.Source) -> None:
    """Refuses a test split with training images; warns of a few copies."""
    if warning := datasets.check_disjoint(learned, test):
        terminal.warning(warning)


def seen_before(
    run: Pretrain, test: datasets.Source
) -> Iterator[tuple[str, datasets.Seen]]:
    """Yields (its path, what it has seen of `test`) of runs to start from."""
    path = run.setup.init_from
    for before in itertools.islice(exporting.makers(run), 1, None):
        if before.data.dataset == run.data.dataset:
            # The folder may be elsewhere now.
            before = fields.replace(before, data_dir=run.data.data_dir)
        try:
            learned = train.open_split(before, before.data.split)
        except errors.UserError as error:
            terminal.info(
                f"{path}: its images are not compared: {error.marked}"
            )
        else:
            labelled = before.loss.needs_labels
            seen = datasets.find_seen(learned, test, labelled)
            if seen.text:
                yield path, seen
        path = before.setup.init_from
