"""The values by which to read the curves of a run."""

import numpy as np

from tf_contrastive.callbacks.progress import NARROW_STD
from tf_contrastive.config.pretrain import Pretrain


def references(
    options: Pretrain, class_sizes: np.ndarray | None
) -> dict[str, float]:
    """Returns metric -> the value by which to read its curve.

    That of the loss and of accuracies is chance; embeddings of less spread may
    have collapsed.
    """
    loss = options.loss
    candidates = options.views.views * options.schedule.batch_size - 1
    levels = {"embedding_std": NARROW_STD}
    if (level := loss.chance_level(candidates)) is not None:
        levels["loss"] = level
        if not loss.needs_labels:
            levels["contrastive_accuracy"] = 1 / candidates
    if options.probe.probe and class_sizes is not None:
        levels["probe_accuracy"] = float(class_sizes.max() / class_sizes.sum())
    return levels
