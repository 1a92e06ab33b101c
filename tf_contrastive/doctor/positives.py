"""How many positives and negatives an anchor can expect in a batch."""

import dataclasses
import math
import time

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.config.loss import LOSS_OPTIONS, SUPERVISED_LOSSES
from tf_contrastive.config.pretrain import Pretrain

# Labels read at a time where they stand in files.
_LABELS = 256


@dataclasses.dataclass(frozen=True)
class Expected:
    """Means over the anchors of a batch.

    Attributes:
      positives: |P(i)|.
      negatives: candidates that are neither positives nor the anchor.
      other_images: positives' images, without the anchor's own.
      without: share of the anchors that have no positive.
      lone_classes: classes of a single example.
      labels: examples whose labels were counted; 0 where labels do not matter.
    """

    positives: float
    negatives: float
    other_images: float
    without: float
    lone_classes: int
    labels: int


def count_labels(source: datasets.Source, seconds: float) -> np.ndarray:
    """Counts the examples of each class that has some, int64 [classes].

    Labels in memory are counted all, those in files for so many seconds, from
    the first on.
    """
    if source.arrays is not None:
        labels = source.arrays["label"].numpy()
    else:
        end = time.perf_counter() + seconds
        found = []
        batches = source.records.map(lambda r: r["label"]).batch(_LABELS)
        for batch in batches.as_numpy_iterator():
            found.append(batch)
            if time.perf_counter() > end:
                break
        labels = np.concatenate(found)
    return np.unique(labels, return_counts=True)[1]


def count_label_sets(source: datasets.Source) -> tuple[np.ndarray, np.ndarray]:
    """Counts examples whose labels are several, which are in memory.

    Returns:
      (examples of each set of labels that there is, int64 [sets]; examples
      that share a label with those, themselves among them, int64 [sets]).
    """
    labels = source.arrays["label"].numpy()
    sets, counts = np.unique(labels, axis=0, return_counts=True)
    return counts, ((sets @ sets.T) > 0) @ counts


def expect(
    run: Pretrain,
    counts: np.ndarray | None,
    num_examples: int,
    alike: np.ndarray | None = None,
) -> Expected | None:
    """What the loss finds in a batch of the run's sampler.

    Args:
      run: a config.
      counts: examples of each class, or of each in a part of the data; None
        without labels.
      num_examples: of all classes together.
      alike: where `counts` are of sets of labels, see `count_label_sets`.

    Returns:
      None for cross entropy, which compares nothing.
    """
    batch, views = run.schedule.batch_size, run.views.views
    loss = run.loss.loss
    if loss == "cross_entropy":
        return None
    if loss not in SUPERVISED_LOSSES or counts is None:
        return _of_views(run)
    alike = counts if alike is None else alike
    shares = counts / counts.sum()
    sizes = alike * (num_examples / counts.sum())
    if run.data.sampler == "class_balanced":
        others, without = _balanced(len(counts), batch)
    else:
        others, without = _shuffled(shares, sizes, num_examples, batch)
    positives = views * others + views - 1
    if loss == "npairs":
        # The next image of the class, in the same view, and no more.
        positives = 1 - without
    elif views > 1:
        without = 0.0
    if run.loss.positives_cap:
        positives = min(positives, float(run.loss.positives_cap))
    return Expected(
        positives=positives,
        negatives=views * (batch - 1 - others),
        other_images=others,
        without=without,
        lone_classes=int((alike == 1).sum()),
        labels=int(counts.sum()),
    )


def _of_views(run: Pretrain) -> Expected:
    """Positives are the image's other views."""
    batch, views = run.schedule.batch_size, run.views.views
    options = LOSS_OPTIONS[run.loss.loss] | run.loss.options()
    negatives = views * (batch - 1)
    if run.loss.loss == "moco":
        negatives = run.loss.queue_size
    elif options.get("negatives") == "other_view":
        negatives = batch - 1
    return Expected(views - 1, negatives, 0.0, 0.0, 0, 0)


def _shuffled(
    shares: np.ndarray, sizes: np.ndarray, examples: int, batch: int
) -> tuple[float, float]:
    """(other images of an anchor's class, share of anchors without any).

    A batch is drawn without replacement, and the anchor is any of it: in
    `shares` of the cases one of a class of `sizes` examples.
    """
    others = (batch - 1) * float(
        (shares * np.maximum(sizes - 1, 0)).sum() / max(examples - 1, 1)
    )
    without = sum(
        share * _none_drawn(round(size) - 1, examples - 1, batch - 1)
        for share, size in zip(shares, sizes, strict=True)
    )
    return others, float(without)


def _none_drawn(marked: int, total: int, draws: int) -> float:
    """Chance that of `total`, none of the `marked` ones are among the draws."""
    marked = max(marked, 0)
    if marked + draws > total:
        return 0.0
    log = math.lgamma
    return math.exp(
        log(total - marked + 1)
        - log(total - marked - draws + 1)
        + log(total - draws + 1)
        - log(total + 1)
    )


def _balanced(classes: int, batch: int) -> tuple[float, float]:
    """The same, where classes take turns."""
    each, more = divmod(batch, classes)
    fewer = classes - more
    others = (fewer * each * (each - 1) + more * (each + 1) * each) / batch
    lone = {0: more, 1: fewer}.get(each, 0)
    return others, lone / batch
