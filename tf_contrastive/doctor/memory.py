"""How much memory a replica's step needs, before it is run."""

import dataclasses
import math
from collections.abc import Iterable

import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import similarity

# Matrices as large as a block of similarities that are alive at once, about:
# products, masks, exponentials, gradients.
_BLOCK_MATRICES = 8

# The gradient of a layer holds about so many tensors of its output's size.
_BACKWARD_TENSORS = 3

# Layers whose gradient needs neither their input nor their output.
_NOTHING_KEPT = (
    tf.keras.layers.Add,
    tf.keras.layers.Concatenate,
    tf.keras.layers.Flatten,
    tf.keras.layers.InputLayer,
    tf.keras.layers.Reshape,
    tf.keras.layers.Rescaling,
    tf.keras.layers.ZeroPadding2D,
    tf.keras.layers.GlobalAveragePooling2D,
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a replica.

    Attributes:
      parameters: variables of encoder, heads, and of a momentum's copy.
      optimizer: slots of both optimizers.
      gradients: of all trainable variables.
      views: a batch, as the step gets it.
      activations: what is kept from the forward for the backward pass.
      backward: what the backward pass makes on its way, about.
      loss: gathered embeddings and blocks of their similarities.
      block: anchors and candidates of a block of similarities.
    """

    parameters: int
    optimizer: int
    gradients: int
    views: int
    activations: int
    backward: int
    loss: int
    block: tuple[int, int]

    @property
    def total(self) -> int:
        """The sum of all."""
        return (
            self.parameters
            + self.optimizer
            + self.gradients
            + self.views
            + self.activations
            + self.backward
            + self.loss
        )


def predict(
    model: models.ContrastiveModel, run: Pretrain, replicas: int
) -> Memory:
    """Predicts it from the variables and the shapes of the layers.

    Args:
      model: of `run`, compiled.
      run: a resolved config.
      replicas: that share the batch.
    """
    encoded = encoded_images(run, replicas)
    kept = _per_image(kept_tensors(model.encoder))
    largest = max(_elements(x.shape) for x in kept_tensors(model.encoder))
    block, of_loss = _of_loss(run, replicas)
    optimizers = [model.optimizer]
    if model.probe is not None:
        optimizers.append(model.probe_optimizer)
    variables = [*model.encoder.variables, *model.projection_head.variables]
    if model.probe is not None:
        variables += model.probe.variables
    if model.key_branch is not None:
        variables += model.key_branch.variables
    # The copy of a momentum takes no gradient.
    trainable = model.pretrained_variables
    if model.probe is not None:
        trainable = [*trainable, *model.probe.trainable_variables]
    side = run.views.image_size
    channels = 3 + max(run.data.extra_channels, 0)
    images = run.schedule.batch_size // replicas * run.views.views
    return Memory(
        parameters=size(variables),
        optimizer=sum(size(optimizer.variables) for optimizer in optimizers),
        gradients=size(trainable),
        views=4 * images * side * side * channels,
        activations=encoded * kept,
        backward=encoded * largest * 4 * _BACKWARD_TENSORS,
        loss=of_loss,
        block=block,
    )


def size(variables: Iterable[tf.Variable]) -> int:
    """Bytes of variables."""
    return sum(_elements(v.shape) * v.dtype.size for v in variables)


def encoded_images(run: Pretrain, replicas: int) -> int:
    """Images that are in a replica's encoder at a time, with a gradient."""
    views = 1 if run.loss.loss == "moco" else run.views.views
    images = run.schedule.batch_size // replicas * views
    return images // run.loss.grad_cache_chunks


def kept_tensors(network: tf.keras.Model) -> list:
    """The symbolic tensors that the gradient of a network needs.

    A layer with weights needs what came in, another one what went out, and
    pooling both.
    """
    kept = {}
    for layer in network._flatten_layers(include_self=False):
        if isinstance(layer, (tf.keras.Model, *_NOTHING_KEPT)):
            continue
        tensors = [layer.input if layer.weights else layer.output]
        if isinstance(layer, tf.keras.layers.MaxPooling2D):
            tensors.append(layer.input)
        for tensor in tf.nest.flatten(tensors):
            kept[id(tensor)] = tensor
    return list(kept.values())


def _per_image(tensors: list) -> int:
    return sum(_elements(x.shape) * x.dtype.size for x in tensors)


def _elements(shape: tf.TensorShape) -> int:
    """Numbers of a tensor; of an image's, where the batch is open."""
    return math.prod(length or 1 for length in shape.as_list())


def multiplications(network: tf.keras.Model) -> int:
    """Multiplications of a forward pass of one image."""
    total = 0
    for layer in network._flatten_layers(include_self=False):
        kernel = getattr(layer, "kernel", None)
        if kernel is not None:
            places = layer.output.shape.as_list()[1:-1]
            total += _elements(kernel.shape) * math.prod(places)
    return total


def _of_loss(run: Pretrain, replicas: int) -> tuple[tuple[int, int], int]:
    """(anchors and candidates of a block, bytes)."""
    views = run.views.views
    anchors = run.schedule.batch_size // replicas * views
    candidates = run.schedule.batch_size * views
    if run.loss.loss == "moco":
        anchors //= 2
        candidates = run.schedule.batch_size + run.loss.queue_size
    if run.loss.loss == "cross_entropy":
        return (0, 0), 0
    rows = similarity.rows_per_block(candidates, run.loss.loss_block_size or 0)
    rows = min(rows, anchors)
    width = run.projection.projection_output
    numbers = _BLOCK_MATRICES * rows * candidates + 3 * candidates * width
    return (rows, candidates), 4 * numbers
