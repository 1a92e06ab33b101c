"""Whether an encoder was trained on the images that it is scored on."""

import dataclasses
from collections.abc import Callable, Iterator

from tf_contrastive import checkpoints, datasets, exporting
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import inherited
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.config.pretrain import Pretrain

# A run that made an encoder, and the images that it was trained on.
Training = tuple[Pretrain, datasets.Source]


def trainings(
    options: Scoring,
    run: checkpoints.Run | None,
    open_source: Callable[..., datasets.Source],
) -> Iterator[Training]:
    """Yields the runs that made an encoder, with their images if here.

    `open_source` takes (name, split, data_dir, reading).
    """
    evaluation, data_dir = options.evaluation, options.evaluation.data_dir
    if run:
        makers = [*exporting.makers(run.config)]
        data_dir = data_dir or run.config.data.data_dir
    else:
        makers = [*exporting.makers_of_export(evaluation.saved_model)]
    for maker in makers:
        is_own = evaluation.dataset in ("", maker.data.dataset)
        reading = maker.reading
        if is_own:
            reading = dataclasses.replace(
                inherited(options.reading, reading),
                test_fraction=reading.test_fraction,
            )
        try:
            source = open_source(
                maker.data.dataset,
                maker.data.split,
                data_dir if is_own else maker.data.data_dir,
                reading,
            )
        except errors.UserError as error:
            terminal.info(
                "the images to score are not compared with those that the"
                f" encoder was trained on: {error}"
            )
        else:
            yield maker, source
    if not makers:
        terminal.info(
            f"{evaluation.saved_model} does not say what it was trained on: the"
            " images to score are not compared with those"
        )


def check(
    run: Pretrain, trained: datasets.Source, test: datasets.Source, refuse: bool
) -> str:
    """Says which images to score the encoder was trained on, or "".

    Images that it has seen without labels are never refused, since papers on
    self-supervised learning pretrain on them, too.

    Args:
      run: of the encoder.
      trained: the images that it was trained on.
      test: to score.
      refuse: whether its features are compared with their labels, and there
        are other images to score.

    Raises:
      UserError: if it was trained on their labels, and `refuse`.
    """
    seen = datasets.find_seen(trained, test, run.loss.needs_labels)
    if seen.are_known and refuse:
        theirs = errors.arg("test_split", test.info.split)
        raise errors.UserError(
            f"{test.info.name}: {theirs}: {seen.text}: set another"
            f" {errors.arg('test_split')}, or repeat pretrain without them"
        )
    return seen.text
