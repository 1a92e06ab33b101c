"""Embeddings of augmented test images, which several protocols share."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tf_contrastive import classifiers, losses
from tf_contrastive.base import errors
from tf_contrastive.config.loss import NTXent
from tf_contrastive.evaluation.context import EvaluationContext


class ViewEmbeddings(NamedTuple):
    """Embeddings of two views of each of n test images."""

    h: np.ndarray  # float32 [n, 2, D]
    z: np.ndarray | None  # float32 [n, 2, P]; None without a projection head.
    labels: np.ndarray  # int32 [n], -1 where there are none.


def embed_views(
    context: EvaluationContext, examples: int, seed: int
) -> ViewEmbeddings:
    """Embeds two views of test images, by the run's own augmentation; cached.

    If there are more than `examples` images, random ones are taken, by the
    seed.
    """
    test = context.data.test

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rows = sample(test.info.num_examples, examples, seed)
        start = 0
        for views, labels in context.views(test):
            is_chosen = np.isin(np.arange(len(labels)) + start, rows)
            start += len(labels)
            if is_chosen.any():
                views = np.asarray(views)[is_chosen]
                labels = np.asarray(labels)[is_chosen]
                yield views.reshape([-1, *views.shape[2:]]), labels.repeat(2)

    def embed() -> ViewEmbeddings:
        h, labels = context.subject.embed(batches())
        classifiers.check_embeddings("embeddings of views", h)
        z = None
        if context.subject.projection is not None:
            z = context.project(h).reshape([len(h) // 2, 2, -1])
        return ViewEmbeddings(h.reshape([len(h) // 2, 2, -1]), z, labels[::2])

    return context.cached(("views", examples, seed), embed)


def sample(count: int, size: int, seed: int) -> np.ndarray:
    """Returns at most `size` random rows out of `count`, increasing."""
    rows = np.random.RandomState(seed % 2**32).permutation(count)[:size]
    return np.sort(rows)


def check_views(
    projections: np.ndarray, images: int, views: int = 2
) -> np.ndarray:
    """Returns projections as float32 [n, V, P], of at least these sizes."""
    z = np.asarray(projections)
    if z.ndim != 3 or not z.size or z.shape[1] < views or len(z) < images:
        raise errors.UserError(
            f"projections have shape {list(z.shape)}: pass [images, views,"
            f" features] with at least {images} image(s), {views} view(s) and 1"
            " feature"
        )
    flat = classifiers.check_embeddings("projections", z.reshape(len(z), -1))
    return flat.reshape(z.shape)


def normalize_views(z: np.ndarray) -> np.ndarray:
    """Returns `z` [n, V, P], l2-normalized."""
    return classifiers.normalize(z.reshape(-1, z.shape[-1])).reshape(z.shape)


def loss_similarity(context: EvaluationContext) -> tuple[float, bool]:
    """Returns the loss's temperature, and whether the loss l2-normalizes.

    The temperature is the default if the loss has none or there is no run.
    """
    temperature, normalize = None, True
    if context.subject.run is not None:
        declared = context.subject.run.loss
        loss = losses.build(declared.label, **declared.arguments())
        temperature, normalize = loss.temperature, loss.normalize
    return temperature or NTXent.temperature, normalize
