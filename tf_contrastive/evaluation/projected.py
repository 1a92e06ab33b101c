"""Embeddings of augmented test images, which several protocols look at."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tf_contrastive import classifiers, errors, losses
from tf_contrastive.losses import metrics

# Made once for all protocols, and dropped with the subject.
_MADE: Any = weakref.WeakKeyDictionary()


class Views(NamedTuple):
    """Two views each of n test images, and what the encoder says of them."""

    h: np.ndarray  # float32 [n, 2, D]
    z: np.ndarray | None  # float32 [n, 2, P]; None without a projection.
    labels: np.ndarray  # int32 [n], -1 where there are none


def embed(subject: Any, examples: int, seed: int) -> Views:
    """Embeds two views of test images, of the run's own augmentation.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      examples: images, at most; of more, random ones.
      seed: which.

    Raises:
      UserError: for NaN.
    """
    made = _MADE.setdefault(subject, {})
    if (examples, seed) not in made:
        rows = sample(subject.test.info.num_examples, examples, seed)
        h, labels = subject.embed(_one_by_one(subject, rows))
        # What cannot be read was never there: whole images remain.
        h = h.reshape([-1, 2, h.shape[-1]])
        finite = np.isfinite(h).all(axis=(1, 2))
        if not finite.all():
            raise errors.UserError(
                f"embeddings of {(~finite).sum()} of {len(h)} test images hold"
                " NaN or infinity: look for a diverged encoder"
            )
        z = None
        if subject.projection is not None:
            z = subject.project(h.reshape([-1, h.shape[-1]]))
            z = z.reshape([*h.shape[:2], -1])
        made[examples, seed] = Views(h, z, labels[::2])
    return made[examples, seed]


def sample(count: int, most: int, seed: int) -> np.ndarray:
    """Returns at most `most` random ones of `count` rows, increasing."""
    rows = np.random.RandomState(seed % 2**32).permutation(count)[:most]
    return np.sort(rows)


def _one_by_one(
    subject: Any, rows: np.ndarray
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yields (views [2b, S, S, K], labels [2b]) of some test images."""
    size = subject.options.evaluation.embedding_batch_size
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for pixels, labels in chosen(subject.views("test", 2), rows):
        pixels = np.reshape(pixels, [-1, *pixels.shape[2:]])
        waiting.append((pixels, np.repeat(labels, 2)))
        if sum(len(part) for _, part in waiting) >= size:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def chosen(
    batches: Iterable[tuple], rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the given rows of batches of (pixels, labels), without the rest.

    Args:
      batches: in the order that rows count.
      rows: int, increasing.
    """
    start = 0
    for pixels, labels in batches:
        end = start + len(labels)
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
        if len(here):
            yield (
                np.asarray(pixels)[here - start],
                np.asarray(labels)[here - start],
            )
        start = end


def _joined(parts):
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def check_views(projections: np.ndarray, least: int) -> np.ndarray:
    """Returns projections [n, V, P] that hold enough, all of them finite.

    Args:
      projections: float [n, V, P], V at least 2.
      least: images.

    Raises:
      UserError: for NaN, or another shape.
    """
    z = np.asarray(projections)
    if z.ndim != 3 or not z.size or z.shape[1] < 2 or len(z) < least:
        raise errors.UserError(
            f"projections have shape {list(z.shape)}: give [images, views,"
            f" features] of at least {least} image(s), 2 views and 1 feature"
        )
    flat = classifiers.check_embeddings("projections", z.reshape(len(z), -1))
    return flat.reshape(z.shape)


def normalized(z: np.ndarray) -> np.ndarray:
    """`z` [n, V, P] at length 1."""
    return classifiers.normalize(z.reshape(-1, z.shape[-1])).reshape(z.shape)


def comparison(subject: Any) -> tuple[float, bool]:
    """How the run's loss compares projections.

    Returns:
      (temperature: that of the loss, or 0.1 where it has none or no run is
      known; whether it l2-normalises).
    """
    temperature, normalize = None, True
    if subject.run is not None:
        loss = losses.build(subject.run.loss.loss, **subject.run.loss.options())
        temperature, normalize = loss.temperature, loss.normalize
    return temperature or metrics.DEFAULT_TEMPERATURE, normalize


def needs(subject: Any) -> str | None:
    """What keeps projections from being made, in one line, or None."""
    if subject.projection is None:
        return (
            f"the {subject.name} encoder comes without its projection head (an"
            " export has none): give the `workdir` of a run"
        )
    if subject.test.info.num_examples < 2:
        return f"{subject.test.info.name} has less than 2 images to compare"
    return None
