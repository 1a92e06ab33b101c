"""The protocol `kmeans`: which regions of an image inner layers group.

Chen et al. 2021 (Intriguing Properties), section 3.2, figures 3 and 4: local
features of inner layers, and patches of pixels, are clustered for each image.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers
from tf_contrastive.base import errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import figures, view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

# Number of layers: block groups 2, 3 and 4 of a residual network.
LAYERS = 3
# Patches in a row: 14 x 14 pixels each, of 448 x 448.
_PATCHES = 32
_RESTARTS = 4
# Random test images, the numbers of clusters in each, and the side of images as
# a multiple of the encoder's.
IMAGES, CLUSTERS, SCALE = 4, (2, 4, 8, 16), 2


class LocalFeatures(NamedTuple):
    """Inner layers of an encoder, from fine to coarse."""

    names: tuple[str, ...]
    side: int  # Of the images in pixels.
    # Images float32 [n, side, side, K] -> of each layer, float32 [n, h, w, F].
    make: Callable[[tf.Tensor], Sequence[tf.Tensor]]


def local_features(
    encoder: Any, side: int, channels: int = 3, scale: int = 1
) -> LocalFeatures | None:
    """Finds the last layer at each of the `LAYERS` coarsest resolutions.

    The encoder maps images [n, side, side, channels]; they have `scale` times
    this side if it takes others than its own. None unless it is a functional
    Keras model with a layer of more than one place.
    """
    if not isinstance(encoder, tf.keras.Model) or not encoder.inputs:
        return None
    larger = _of_side(encoder, side * scale, channels)
    return larger or _of_side(encoder, side, channels)


def _of_side(
    encoder: tf.keras.Model, side: int, channels: int
) -> LocalFeatures | None:
    """Finds the layers for images of a side; None if it has no maps."""
    padding = (tf.keras.layers.ZeroPadding2D, tf.keras.layers.InputLayer)
    try:
        images = tf.keras.Input([side, side, channels])
        model = tf.keras.models.clone_model(encoder, input_tensors=images)
        model.set_weights(encoder.get_weights())
    except (TypeError, ValueError):
        return None  # Not functional, or its weights have one image size.
    if any(isinstance(layer, tf.keras.Model) for layer in model.layers):
        return None  # Layers of inner models are not accessible.
    outputs = [
        (layer.name, layer.output)
        for layer in model.layers
        if not isinstance(layer, padding) and hasattr(layer.output, "shape")
    ]
    last: dict[tuple[int, int], tuple[str, Any]] = {}
    for name, output in outputs:
        shape = output.shape
        if shape.rank == 4 and shape[1] and shape[2] and shape[1] > 1:
            last[shape[1], shape[2]] = name, output
    coarsest = [last[size] for size in sorted(last, reverse=True)[-LAYERS:]]
    # Standardised images are not features.
    maps = {
        name: output
        for name, output in coarsest
        if output.shape[1] < side or output.shape[-1] > channels
    }
    if not maps:
        return None
    inner = tf.keras.Model(model.inputs, list(maps.values()))
    call = tf.function(lambda x: tf.nest.flatten(inner(x, training=False)))
    return LocalFeatures(tuple(maps), side, call)


def patches(image: np.ndarray, count: int = _PATCHES) -> np.ndarray:
    """Cuts an image [S, S, K] into patches [S // p, S // p, p * p * K].

    p = max(S // count, 1): about `count` patches in a row.
    """
    side = max(image.shape[0] // count, 1)
    rows = image.shape[0] // side
    cut = image[: rows * side, : rows * side]
    cut = cut.reshape([rows, side, rows, side, -1]).swapaxes(1, 2)
    return cut.reshape([rows, rows, -1])


def local_clusters(
    features: np.ndarray,
    clusters: int,
    seed: int = Evaluation.seed,
    *,
    normalize: bool = True,
) -> tuple[np.ndarray, float]:
    """Groups the places of a map [h, w, F] by K-means on their features.

    At most as many `clusters` as places are used. `normalize` l2-normalises;
    gray pixels differ only in length. Returns (cluster int [h, w], numbered by
    first appearance; fraction of the features' variance between clusters).
    """
    import threadpoolctl
    from sklearn import cluster, exceptions

    height, width, size = features.shape
    rows = features.reshape(-1, size)
    rows = classifiers.check_embeddings("features", rows)
    if normalize:
        rows = classifiers.normalize(rows)
    means = cluster.KMeans(
        min(clusters, len(rows)), n_init=_RESTARTS, random_state=seed % 2**32
    )
    # So few rows are faster with one thread.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        # With few distinct features, clusters stay empty.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        assigned = means.fit_predict(rows)
    _, first, index = np.unique(
        assigned, return_index=True, return_inverse=True
    )
    numbers = np.empty(len(first), np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    total = ((rows - rows.mean(axis=0)) ** 2).sum(dtype=np.float64)
    between = 1 - means.inertia_ / total if total > 0 else 1.0
    return numbers[index].reshape(height, width), float(between)


def measure(context: EvaluationContext, *, seed: int) -> Measurement:
    """Clusters local features, and pixels, of random test images.

    Metrics "explained_<layer>_<k>" are the fraction of the variance between k
    clusters, mean over images.
    """
    inner = _inner(context)
    assert inner, lacks_layers(context)
    if inner.side != SCALE * context.subject.image_size:
        context.log(f"kmeans: the encoder only takes {inner.side} pixels")
    test = context.data.test
    rows = view_embeddings.sample(test.info.num_examples, IMAGES, seed)
    batches = context.images(test.select(rows), inner.side)
    images = np.concatenate([x for x, _ in batches])
    maps = {
        name: np.asarray(features, np.float32)
        for name, features in zip(inner.names, inner.make(images), strict=True)
    }
    maps["pixels"] = np.stack([patches(image[..., :3]) for image in images])
    explained: dict[str, list[float]] = {}
    plots, arrays = {}, {}
    for number, image in enumerate(images):
        overlays: dict[str, dict[int, np.ndarray]] = {name: {} for name in maps}
        for name, features in maps.items():
            for count in CLUSTERS:
                clusters, between = local_clusters(
                    features[number], count, seed, normalize=name != "pixels"
                )
                overlays[name][count] = clusters
                key = f"explained_{name}_{count}"
                explained.setdefault(key, []).append(between)
                arrays[f"clusters_{number}_{name}_{count}"] = clusters
        shown = test.info.shown(image).numpy()
        plots[f"kmeans_{number}"] = figures.clusters(shown, overlays)
    return {
        "metrics": {k: float(np.mean(v)) for k, v in explained.items()},
        "plots": plots,
        "arrays": arrays,
    }


def lacks_layers(context: EvaluationContext) -> str | None:
    """Returns why `kmeans` has no inner layers to measure, or None."""
    if _inner(context):
        return None
    return (
        "the encoder has no layers of its own with outputs [height, width,"
        f" features]: set {errors.arg('workdir')} to a run of a convolutional"
        " encoder that has no model as a layer"
    )


def _inner(context: EvaluationContext) -> LocalFeatures | None:
    subject = context.subject
    return local_features(
        subject.encoder, subject.image_size, subject.channels, SCALE
    )
