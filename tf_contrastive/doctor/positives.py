"""Expected number of positives and negatives of an anchor in a batch."""

import dataclasses

import numpy as np
from scipy import stats

from tf_contrastive.config.pretrain import Pretrain


@dataclasses.dataclass(frozen=True)
class Expected:
    """Means over the anchors of a batch."""

    positives: float
    # Candidates that are neither positives nor the anchor.
    negatives: float
    # Images among the positives, except the anchor's own.
    other_images: float = 0.0
    # Fraction of the anchors.
    without_positives: float = 0.0
    # Labels that were counted; 0 where the loss uses none.
    labels: int = 0


def expect(
    run: Pretrain, counts: np.ndarray | None, num_examples: int
) -> Expected | None:
    """Predicts what the loss finds in a batch of the run's sampler.

    Args:
      run: a resolved config.
      counts: examples of each class, in the data or a part of it; None without
        labels.
      num_examples: examples of all classes together.
    """
    batch, views = run.schedule.batch_size, run.views.views
    loss = run.loss
    if loss.takes_logits:
        return None
    # The fraction of the anchors that are candidates, too.
    itself = views / (views + run.views.small_views)
    if not loss.needs_labels or counts is None:
        negatives = views * (batch - 1)
        if loss.takes_keys:
            negatives = run.batch.queue_size
        elif loss.compares_two_views:
            negatives = batch - 1
        return Expected(views - itself, negatives)
    if run.data.balances_classes:
        others, without = _balanced(len(counts), batch)
    else:
        others, without = _shuffled(
            counts / counts.sum(),
            counts * (num_examples / counts.sum()),
            num_examples,
            batch,
        )
    positives = views * others + views - itself
    if loss.has_one_positive:
        # One positive: the next image of the class, in the same view.
        positives = 1 - without
    else:
        without *= itself if views == 1 else 0.0
    if cap := getattr(loss, "positives_cap", None):
        positives = min(positives, float(cap))
    return Expected(
        positives=positives,
        negatives=views * (batch - 1 - others),
        other_images=others,
        without_positives=without,
        labels=int(counts.sum()),
    )


def _shuffled(
    fractions: np.ndarray, sizes: np.ndarray, examples: int, batch: int
) -> tuple[float, float]:
    """(Other images of an anchor's class, fraction of anchors without any).

    In batches drawn without replacement; `fractions` are the probabilities of
    the classes, `sizes` their examples out of `examples`.
    """
    others = (batch - 1) * float(
        (fractions * np.maximum(sizes - 1, 0)).sum() / max(examples - 1, 1)
    )
    marked = np.maximum(np.round(sizes) - 1, 0)
    none = stats.hypergeom.pmf(0, examples - 1, marked, batch - 1)
    return others, float(fractions @ none)


def _balanced(classes: int, batch: int) -> tuple[float, float]:
    """The same expectation if classes take turns."""
    each, more = divmod(batch, classes)
    fewer = classes - more
    others = (fewer * each * (each - 1) + more * (each + 1) * each) / batch
    alone = {0: more, 1: fewer}.get(each, 0)
    return others, alone / batch
