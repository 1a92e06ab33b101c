"""Expected positives of an anchor in a batch."""

import numpy as np

from tf_contrastive.config.pretrain import Pretrain


def per_anchor(
    run: Pretrain, counts: np.ndarray | None, num_examples: int
) -> float | None:
    """Predicts how many positives the loss finds in a batch of the sampler.

    Returns None for a loss without pairs, and where classes are not known.

    Args:
      run: a resolved config.
      counts: examples of each class, in the data or a part of it; None without
        labels.
      num_examples: examples of all classes together.
    """
    batch, views, loss = run.schedule.batch_size, run.views.views, run.loss
    if loss.takes_logits:
        return None
    # The fraction of the anchors that are candidates, too.
    itself = views / (views + run.views.small_views)
    if not loss.needs_labels:
        return views - itself
    if counts is None:
        return None
    if run.data.balances_classes:  # Classes take turns.
        each, more = divmod(batch, len(counts))
        fewer = len(counts) - more
        others = (fewer * each * (each - 1) + more * (each + 1) * each) / batch
    else:  # Drawn without replacement.
        sizes = counts / counts.sum() * num_examples
        same = (sizes * np.maximum(sizes - 1, 0)).sum() / num_examples
        others = (batch - 1) * float(same) / max(num_examples - 1, 1)
    if loss.has_one_positive:  # The next image of the class, in the same view.
        return min(others, 1.0)
    positives = views * others + views - itself
    return min(positives, getattr(loss, "positives_cap", None) or positives)
