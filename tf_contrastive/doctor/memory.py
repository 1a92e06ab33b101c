"""Memory that a replica's training step needs, predicted from shapes."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterable
from typing import Any

import psutil
import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.encoders import vit
from tf_contrastive.losses import similarity

# Where a container finds the limit of its memory.
CGROUP = "/sys/fs/cgroup"
# Matrices of a similarity block's size that are alive at once, about: products,
# masks, exponentials, gradients.
_BLOCK_MATRICES = 8
# Tensors of its output's size that the gradient of a layer holds, about.
_BACKWARD_TENSORS = 3
# Layers whose gradient needs neither their input nor their output.
_layers = tf.keras.layers
_STATELESS_GRADIENT = (
    _layers.Add,
    _layers.Concatenate,
    _layers.Flatten,
    _layers.InputLayer,
    _layers.Reshape,
    _layers.Rescaling,
    _layers.ZeroPadding2D,
    _layers.GlobalAveragePooling1D,
    _layers.GlobalAveragePooling2D,
    vit.StochasticDepth,
    vit.Tokens,
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a replica."""

    parameters: int
    optimizer: int
    gradients: int
    # The batch that the step receives.
    views: int
    # Tensors kept from the forward for the backward pass.
    activations: int
    # Temporary tensors of the backward pass, about.
    backward: int
    # Gathered embeddings and a block of their similarities.
    loss: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(dataclasses.astuple(self))

    @property
    def of_batch(self) -> int:
        """What grows with the batch."""
        return self.views + self.activations + self.backward + self.loss


def predict(
    model: models.ContrastiveModel, run: Pretrain, replicas: int
) -> Memory:
    """Predicts the memory of a resolved run from its compiled model."""
    parts = model.checkpointed().values()
    networks = [x for x in parts if isinstance(x, _layers.Layer)]
    optimizers = [x for x in parts if x not in networks]
    images = run.schedule.batch_size // replicas
    views = run.views.views
    # Large views, and small ones by their pixels.
    side, pixels = run.views.side, run.views.pixels
    encoded = model.images_at_once(images, views)
    kept = encoded * pixels / (views * side**2)
    tensors = saved_tensors(model.encoder)
    channels = run.channels
    rows, candidates = similarity_block(run, replicas)
    features = tf.keras.Input(model.encoder.output_shape[1:])
    width = model.projection_head(features).shape[-1]
    numbers = _BLOCK_MATRICES * rows * candidates + 3 * candidates * width
    return Memory(
        parameters=_bytes(v for x in networks for v in x.variables),
        optimizer=_bytes(v for x in optimizers for v in x.variables),
        gradients=_bytes(v for x in networks for v in x.trainable_variables),
        views=4 * images * pixels * channels,
        activations=round(kept * _bytes(tensors)),
        backward=encoded
        * max(_elements(x.shape) for x in tensors)
        * (4 * _BACKWARD_TENSORS),
        loss=4 * numbers,
    )


def similarity_block(run: Pretrain, replicas: int) -> tuple[int, int]:
    """Returns (anchors, candidates) that a replica compares at a time."""
    batch, views = run.schedule.batch_size, run.views.views
    loss = run.loss
    if loss.takes_logits:
        return 0, 0
    anchors = batch // replicas * (views + run.views.small_views)
    candidates = batch * views
    if loss.takes_keys:
        anchors, candidates = anchors // 2, batch + run.batch.queue_size
    rows = similarity.rows_per_block(
        candidates, getattr(loss, "block_size", None)
    )
    return min(int(rows), anchors), candidates


def saved_tensors(network: tf.keras.Model) -> list[tf.Tensor]:
    """Symbolic tensors that the gradient of a network needs.

    A layer with weights needs its input, another one its output, and pooling
    both. See `_further` for those of transformers.
    """
    tensors: dict[Any, Any] = {}
    for layer in network.submodules:
        # Layers within one have no place in the network's graph.
        if not getattr(layer, "inbound_nodes", None) or isinstance(
            layer, (tf.keras.Model, *_STATELESS_GRADIENT)
        ):
            continue
        needed = [layer.input if layer.weights else layer.output]
        if isinstance(layer, tf.keras.layers.MaxPooling2D):
            needed.append(layer.input)
        tensors.update({id(x): x for x in tf.nest.flatten(needed)})
        further = enumerate(_further(layer))
        tensors.update({(layer.name, number): x for number, x in further})
    return list(tensors.values())


def _further(layer: tf.keras.layers.Layer) -> list[tf.TensorSpec]:
    """Further tensors that the gradients of a transformer's layers need."""
    if isinstance(layer, _layers.LayerNormalization):
        # In float32: the scale of each number, and its input if it is rounded.
        spec = tf.TensorSpec(layer.input.shape, tf.float32)
        return [spec] * (2 if layer.input.dtype != tf.float32 else 1)
    if isinstance(layer, vit.Attention):
        count, tokens, _ = layer.input.shape
        shape, dtype = [count, layer.heads, tokens, tokens], layer.input.dtype
        weights = [tf.TensorSpec(shape, kind) for kind in {dtype, tf.float32}]
        return [tf.TensorSpec(layer.input.shape, dtype), *weights]
    if getattr(layer, "activation", None) is tf.keras.activations.gelu:
        # TensorFlow's has a gradient by each of its operations.
        return [tf.TensorSpec(layer.input.shape, layer.input.dtype)] * 4
    return []


def peak_resident() -> int:
    """Bytes that this process has had in memory at its peak."""
    # ru_maxrss would include the process that started this one.
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def available() -> int | None:
    """Bytes of each GPU, or of a run on CPUs; None if unknown."""
    if tf.config.list_logical_devices("TPU"):
        return None
    if tf.config.list_logical_devices("GPU"):
        from tensorflow.python.client import device_lib

        return min(
            device.memory_limit
            for device in device_lib.list_local_devices()
            if device.device_type == "GPU"
        )
    # This process will have ended.
    own = psutil.Process().memory_info().rss
    sizes = [psutil.virtual_memory().available + own]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        # The first one may be "max".
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(pathlib.Path(CGROUP, name).read_text()))
    return min(sizes)


def _bytes(tensors: Iterable[tf.Tensor | tf.Variable]) -> int:
    return sum(_elements(x.shape) * x.dtype.size for x in tensors)


def _elements(shape: tf.TensorShape) -> int:
    """Number of elements; per image where the batch size is open."""
    return math.prod(length or 1 for length in shape.as_list())
