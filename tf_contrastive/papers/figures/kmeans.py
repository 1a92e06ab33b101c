"""Which regions of an image inner layers of an encoder group together.

The protocol `kmeans`: Chen et al. 2021 (Intriguing Properties), section 3.2 and
figures 3 and 4. Local features of inner layers, l2-normalised, are clustered by
K-means, each image by itself, and laid over it; beside them, patches of pixels
as they are.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, datasets, errors, views
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import projected
from tf_contrastive.papers.figures import plots

_FIELDS = RepresentationProtocols
# Block groups 2, 3 and 4 of a residual network.
LAYERS = 3
# 14 x 14 pixels of 448 x 448.
_PATCHES = 32
_RESTARTS = 4
# What only moves or pads a map makes no features.
_NO_FEATURES = (
    "Const",
    "Identity",
    "Pad",
    "PadV2",
    "Placeholder",
    "Reshape",
    "Transpose",
)


class LocalFeatures(NamedTuple):
    """Inner layers of an encoder, from fine to coarse.

    Attributes:
      names: of the layers.
      side: of the images that `make` takes, in pixels.
      make: images float32 [n, side, side, K] -> a map float32 [n, h, w, F] of
        each layer.
    """

    names: tuple[str, ...]
    side: int
    make: Callable[[tf.Tensor], Sequence[tf.Tensor]]


def local_features(
    encoder: Callable, side: int, channels: int = 3, scale: int = 1
) -> LocalFeatures:
    """Finds the last layer at each resolution of an encoder.

    Args:
      encoder: images float32 [n, S, S, K] -> [n, D], with `training=`: a
        functional Keras model, or a loaded export. It stays as it is.
      side: S, of the encoder.
      channels: K.
      scale: times the encoder's side at which to run it; what is no functional
        Keras model of convolutions runs at its own.

    Returns:
      The `LAYERS` coarsest ones of more than one place.

    Raises:
      UserError: if the encoder has no such layer.
    """
    made = None
    if isinstance(encoder, tf.keras.Model) and encoder.inputs:
        made = _of_keras(encoder, side * scale, channels)
        made = made or _of_keras(encoder, side, channels)
    made = made or _of_graph(encoder, side, channels)
    if made is None:
        raise errors.UserError(
            f"no inner layer of {getattr(encoder, 'name', 'the encoder')} holds"
            " a map [height, width, features]: kmeans needs a convolutional"
            " encoder"
        )
    return made


def _coarsest(maps: list[tuple[str, Any]]) -> dict[str, Any]:
    """The last map of each resolution, of the coarsest, from fine to coarse.

    Args:
      maps: (name, symbolic tensor), in the order in which they are made.
    """
    last: dict[tuple[int, int], tuple[str, Any]] = {}
    for name, tensor in maps:
        shape = tensor.shape
        if shape.rank == 4 and shape[1] and shape[2] and shape[1] > 1:
            last[shape[1], shape[2]] = (name, tensor)
    sizes = sorted(last, reverse=True)[-LAYERS:]
    return dict(last[size] for size in sizes)


def _of_keras(encoder, side, channels) -> LocalFeatures | None:
    """By the layers of a functional model; None if there are no maps."""
    padding = (tf.keras.layers.ZeroPadding2D, tf.keras.layers.InputLayer)
    try:
        images = tf.keras.Input([side, side, channels])
        model = tf.keras.models.clone_model(encoder, input_tensors=images)
        model.set_weights(encoder.get_weights())
    except (TypeError, ValueError):
        return None  # Its weights are of one image size, or it is no graph.
    if any(isinstance(layer, tf.keras.Model) for layer in model.layers):
        return None  # What a model calls keeps its layers to itself.
    maps = _coarsest(
        [
            (layer.name, layer.output)
            for layer in model.layers
            if not isinstance(layer, padding) and hasattr(layer.output, "shape")
        ]
    )
    # The images themselves, standardised, are no features.
    maps = {
        name: output
        for name, output in maps.items()
        if output.shape[1] < side or output.shape[-1] > channels
    }
    if not maps:
        return None
    inner = tf.keras.Model(model.inputs, list(maps.values()))
    call = tf.function(lambda x: inner(x, training=False))

    def make(images):
        found = call(images)
        return found if len(maps) > 1 else [found]

    return LocalFeatures(tuple(maps), side, make)


def _of_graph(encoder, side, channels) -> LocalFeatures | None:
    """By the operations of its graph, of whatever can be called."""
    from tensorflow.python.framework import convert_to_constants

    spec = tf.TensorSpec([None, side, side, channels], tf.float32)
    traced = tf.function(lambda x: encoder(x, training=False))
    # Calls of functions are written out, so that inner tensors can be had.
    flat = convert_to_constants.convert_variables_to_constants_v2(
        traced.get_concrete_function(spec)
    )
    operations = [
        o
        for o in flat.graph.get_operations()
        if o.outputs
        and o.type not in _NO_FEATURES
        and o.outputs[0].dtype == tf.float32
    ]
    rectified = [o for o in operations if o.type.startswith("Relu")]
    maps = _coarsest([(o.name, o.outputs[0]) for o in rectified or operations])
    if not maps:
        return None
    inner = flat.prune(flat.inputs[:1], list(maps.values()))
    # model/stage2_block1_relu/Relu: the layer's name stands before the last.
    names = tuple(f"x/{name}".split("/")[-2] for name in maps)
    if len(set(names)) < len(names):
        names = tuple(name.replace("/", "_") for name in maps)
    return LocalFeatures(names, side, lambda images: inner(tf.constant(images)))


def patches(image: np.ndarray, count: int = _PATCHES) -> np.ndarray:
    """Cuts an image into squares: the pixels as local features.

    Args:
      image: float32 [S, S, K].
      count: squares in a row, about; at least one pixel each.

    Returns:
      float32 [S // p, S // p, p * p * K], p = max(S // count, 1).
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
    """Groups the places of a map by K-means on their features.

    Args:
      features: float [h, w, F].
      clusters: how many, at most as many as places.
      seed: of the starts.
      normalize: l2-normalise the features first; without, for pixels: gray
        ones differ in nothing but their length.

    Returns:
      (cluster int [h, w], numbered in the order in which they appear; share of
      the features' variance between clusters, 0 to 1).

    Raises:
      UserError: for NaN, another shape, or clusters < 1.
    """
    import threadpoolctl
    from sklearn import cluster, exceptions

    shape = np.shape(features)
    if len(shape) != 3:
        raise errors.UserError(
            f"features have shape {list(shape)}: give [height, width,"
            " features] of one image"
        )
    if clusters < 1:
        raise errors.UserError(f"clusters={clusters}: give at least 1")
    rows = np.asarray(features).reshape(-1, shape[-1])
    rows = classifiers.check_embeddings("features", rows)
    if normalize:
        rows = classifiers.normalize(rows)
    means = cluster.KMeans(
        min(clusters, len(rows)),
        n_init=_RESTARTS,
        random_state=seed % 2**32,
    )
    # Many threads would wait for one another longer than so few rows take.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        # Of a map of few distinct features: clusters stay empty.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        found = means.fit_predict(rows)
    _, first, index = np.unique(found, return_index=True, return_inverse=True)
    names = np.empty(len(first), np.int64)
    names[np.argsort(first)] = np.arange(len(first))
    total = ((rows - rows.mean(axis=0)) ** 2).sum(dtype=np.float64)
    between = 1 - means.inertia_ / total if total > 0 else 1.0
    return names[index].reshape(shape[:2]), float(between)


def measure(
    subject: Any,
    *,
    kmeans_images: int = _FIELDS.kmeans_images,
    kmeans_clusters: Sequence[int] = fields.read_counts(
        _FIELDS.kmeans_clusters
    ),
    kmeans_scale: int = _FIELDS.kmeans_scale,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `kmeans`; it needs no labels.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      kmeans_images: random test images.
      kmeans_clusters: numbers of clusters.
      kmeans_scale: see `local_features`.
      seed: which images, and of the clusters.

    Returns:
      A measurement: metrics "explained_<layer>_<k>" (share of the variance
      between clusters, mean over images) of each layer and of "pixels"; a plot
      of overlays of each image.
    """
    inner = local_features(
        subject.encoder, subject.side, subject.channels, kmeans_scale
    )
    if inner.side != kmeans_scale * subject.side:
        subject.say(
            f"kmeans: the encoder takes its own {inner.side} pixels only"
        )
    images = _images(subject, inner.side, kmeans_images, seed)
    maps = {
        name: np.asarray(made, np.float32)
        for name, made in zip(inner.names, inner.make(images), strict=True)
    }
    maps["pixels"] = np.stack([patches(image[..., :3]) for image in images])
    explained: dict[str, list[float]] = {}
    figures, arrays = {}, {}
    for number, image in enumerate(images):
        overlays = {}
        for name, features in maps.items():
            for count in kmeans_clusters:
                found, between = local_clusters(
                    features[number], count, seed, normalize=name != "pixels"
                )
                overlays.setdefault(name, {})[count] = found
                key = f"explained_{name}_{count}"
                explained.setdefault(key, []).append(between)
                arrays[f"clusters_{number}_{name}_{count}"] = found
        figures[f"kmeans_{number}"] = plots.overlays(image[..., :3], overlays)
    return {
        "metrics": {k: float(np.mean(v)) for k, v in explained.items()},
        "plots": figures,
        "arrays": arrays,
    }


def _images(subject: Any, side: int, count: int, seed: int) -> np.ndarray:
    """Random test images float32 [n, side, side, K]."""
    rows = projected.sample(subject.test.info.num_examples, count, seed)
    batches = datasets.evaluation_batches(
        subject.test,
        views.evaluation(side),
        batch_size=subject.options.evaluation.embedding_batch_size,
        extra_channels=subject.channels - 3,
    )
    return np.concatenate([p for p, _ in projected.chosen(batches, rows)])


def needs(subject: Any) -> str | None:
    """What keeps `kmeans` from being measured, in one line, or None."""
    if not subject.test.info.num_examples:
        return f"{subject.test.info.name} has no images"
    return None
