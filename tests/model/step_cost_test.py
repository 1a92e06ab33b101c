"""What a traced step costs on accelerators: collectives, whole activations."""

import math

import pytest
import small
import tensorflow as tf
from tensorflow.python.distribute import mirrored_run, mirrored_strategy

from tf_contrastive import distribution, encoders, heads, losses, optimizers
from tf_contrastive.distribution import batch_normalization
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel

# These write nothing.
_ALIASES = {"Identity", "IdentityN", "Placeholder", "StopGradient"}


def _two_replicas():
    """A strategy that uses the collectives of GPUs; it can only be traced."""
    distribution.strategy("mirrored", virtual_devices=2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _collectives(graph):
    """Number of collectives of each of two replicas."""
    operations = graph.get_operations()
    return sum(op.type == "CollectiveReduceV2" for op in operations) / 2


def _model(loss="supcon"):
    moco = {"momentum": 0.9, "queue_size": 64} if loss == "moco" else {}
    with small.encoder():
        return ContrastiveModel(
            encoders.build("resnet10", image_shape=(8, 8, 3), width=0.125),
            heads.build("mlp", output=8),
            losses.build(loss),
            heads.LinearProbe(10),
            online_knn_size=64,
            **moco,
        )


_DATA = tf.zeros([4, 2, 8, 8, 3]), tf.zeros([4], tf.int32)


@pytest.mark.slow
def test_collectives_of_a_step_are_two_per_normalization_and_seven():
    strategy = _two_replicas()
    with strategy.scope():
        model = _model()
        model.compile(optimizers.LARS(1.0))
    step = tf.function(lambda: strategy.run(model.train_step, [_DATA]))
    found = _collectives(step.get_concrete_function().graph)
    layers = sum(isinstance(x, BatchNormalization) for x in model.submodules)
    # The projections and their gradient, labels, counted anchors, metrics;
    # online kNN's features and labels.
    assert found <= 2 * layers + 7


@pytest.mark.slow
def test_a_compiled_step_of_several_gpus_has_collectives_only(monkeypatch):
    """Replicas that meet in a compiled function raise an error."""
    for module in (mirrored_run, mirrored_strategy):
        monkeypatch.setattr(module, "_is_gpu_device", lambda _: True)
    strategy = _two_replicas()
    with strategy.scope():
        model = _model("moco")
        optimizer = optimizers.LARS(1.0)
        optimizer.skips_non_finite = True
        model.compile(optimizer, jit_compile=True)
    batches = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensors(_DATA).repeat()
    )
    model.make_train_function()
    assert model.train_tf_function.get_concrete_function(iter(batches))


def test_batch_normalization_on_gpus_writes_outputs_and_gradient_only(
    monkeypatch,
):
    monkeypatch.setattr(batch_normalization, "has_gpus", lambda: True)
    shape = [8, 4, 4, 16]
    strategy = _two_replicas()
    with strategy.scope():
        layer = BatchNormalization(dtype="mixed_bfloat16")
        layer.build(shape)

    def step(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True)
        return tape.gradient(outputs, [x, layer.gamma, layer.beta], upstream)

    @tf.function(autograph=False)
    def run(x, upstream):
        return strategy.run(step, [x, upstream])

    values = tf.TensorSpec(shape, tf.bfloat16)
    graph = run.get_concrete_function(values, values).graph
    written = [
        output.dtype
        for op in graph.get_operations()
        if op.type not in _ALIASES
        for output in op.outputs
        if output.consumers()
        and output.shape.num_elements() == math.prod(shape)
    ]
    # Outputs and gradient on each replica: 4 bytes for each number.
    assert written == [tf.bfloat16] * 4
    assert _collectives(graph) == 2
