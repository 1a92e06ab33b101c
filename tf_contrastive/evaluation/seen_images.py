"""Images to score that the encoder, or a classifier, was trained on.

Images that a classifier learns from are refused, and so are those whose labels
the encoder was trained on. Those that it has seen without labels are a warning,
since papers on self-supervised learning pretrain on them, too.
"""

from collections.abc import Iterable

from tf_contrastive import datasets
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import PROTOCOLS


def check(
    train: datasets.Source, test: datasets.Source, protocols: Iterable[str]
) -> None:
    """Refuses a test split with images that protocols learn from."""
    if any(PROTOCOLS[name].learns for name in protocols):
        names = "train_split", "test_split"
        if warning := datasets.check_disjoint(train, test, *names):
            terminal.warning(warning)


def of_encoder(
    run: Pretrain,
    trained: datasets.Source,
    test: datasets.Source,
    protocols: Iterable[str],
    *,
    are_held_out: bool,
) -> str:
    """Says which images to score the encoder was trained on, if any.

    Args:
      run: of the encoder.
      trained: the images that it was trained on.
      test: to score.
      protocols: that score them.
      are_held_out: whether there were no others to score, so that they were
        held out of the run's images after it.

    Raises:
      UserError: if the encoder was trained on their labels, which protocols
        compare with its features, and there are others.
    """
    labelled = run.loss.needs_labels
    seen = datasets.find_seen(trained, test, labelled)
    scored = test.info.has_labels and any(
        PROTOCOLS[name].needs_labels for name in protocols
    )
    if seen.are_known and scored and not are_held_out:
        ours, theirs = trained.info.split, test.info.split
        covers = seen.number == trained.info.num_examples
        _, others = datasets.apart(ours, theirs, covers)
        how = "without them"
        if others and trained.info.name == test.info.name:
            how = f"with {errors.arg('split', others)}"
        raise errors.UserError(
            f"{test.info.name}: {errors.arg('test_split', theirs)}:"
            f" {seen.text}: set another {errors.arg('test_split')}, or repeat"
            f" pretrain {how}"
        )
    return seen.text
