"""Predicted memory against what runs need."""

import json

import numpy as np
import processes
import pytest
import small
import tensorflow as tf

from tf_contrastive import encoders, train
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.config import fields
from tf_contrastive.doctor import memory
from tf_contrastive.model import networks

pytestmark = pytest.mark.early


def _saved_bytes(encoder, images, side):
    """Bytes that TensorFlow passes from the forward to the backward pass."""
    forward = tf.function(lambda x: encoder(x, training=True))
    spec = tf.TensorSpec([images, side, side, 3])
    concrete = forward.get_concrete_function(spec)
    _, backward = concrete._delayed_rewrite_functions.forward_backward()
    saved = {}
    for tensor in backward.captured_inputs:
        while tensor.op.type in ("Identity", "IdentityN", "StopGradient"):
            tensor = tensor.op.inputs[tensor.value_index]
        sources = [tensor.op, *(x.op for x in tensor.op.inputs)]
        if any(op.type == "ReadVariableOp" for op in sources[:2]):
            continue
        # Shapes have no static shape; the input images are counted elsewhere.
        if (
            tensor.shape.is_fully_defined()
            and tensor.dtype != tf.resource
            and tensor.op.type != "Placeholder"
        ):
            saved[tensor.op.name, tensor.value_index] = tensor
    return sum(x.shape.num_elements() * x.dtype.size for x in saved.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side", "stem", "precision"),
    [
        ("resnet10", 96, "imagenet", "mixed_bfloat16"),
        ("resnet50", 16, "cifar", "float32"),
        ("vit_ti4", 16, None, "mixed_bfloat16"),
        ("vit_s8", 32, None, "float32"),
    ],
)
def test_predicted_activations_equal_what_the_gradient_saves(
    name, side, stem, precision
):
    with networks.precision(precision):
        kind = {"stem": stem} if stem else {"depth": 2}
        encoder = encoders.build(
            name, width=0.25, image_shape=(side, side, 3), **kind
        )
    tensors = memory.saved_tensors(encoder)
    predicted = 4 * sum(
        int(np.prod(x.shape[1:])) * x.dtype.size for x in tensors
    )
    assert predicted == pytest.approx(_saved_bytes(encoder, 4, side), rel=0.15)


@small.encoder()
def test_variables_are_counted_exactly():
    options = small.DIGITS | {"loss": "moco", "queue_size": 64}
    prepared = train.prepare(fields.replace(Doctor(), **options))
    run = prepared.options
    model, _ = prepared.build()
    predicted = memory.predict(model, run, 2)

    def nbytes(*owners):
        return sum(v.numpy().nbytes for x in owners for v in x.variables)

    networks = (model.encoder, model.projection_head, model.probe)
    assert predicted.parameters == nbytes(*networks, model.key_branch)
    assert predicted.optimizer == nbytes(model.optimizer, model.probe_optimizer)
    trainable = [v for x in networks for v in x.trainable_variables]
    assert predicted.gradients == sum(v.numpy().nbytes for v in trainable)
    # One of the two views of 32 images is encoded with a gradient.
    assert predicted.views == 32 * 2 * 8 * 8 * 3 * 4
    assert memory.similarity_block(run, 2) == (32, 64 + 64)
    chunked = prepared.with_options(grad_cache_chunks=4)
    model, _ = chunked.build()
    chunked = memory.predict(model, chunked.options, 2)
    assert chunked.activations * 4 == predicted.activations


# In a process of its own, because a child's ru_maxrss begins with its parent's.
_PEAK = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "tf_contrastive", *sys.argv[1:]],
               check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_peak_memory_of_a_run_is_predicted_within_a_fifth(tmp_path):
    options = {"width": 0.5, "image_size": 32, "batch_size": 128}
    words = small.words(**options, workdir=tmp_path)
    peaks = {}
    for command in ("doctor", "pretrain"):
        peak = processes.run(processes.python(_PEAK, command, *words))
        peaks[command] = int(peak.stdout) / 2**10
    report = json.loads((tmp_path / "doctor.json").read_text())
    predicted = report["memory"]["process_mib"]
    assert predicted == pytest.approx(peaks["pretrain"], rel=0.2)
    assert report["memory_per_replica"]["total_mib"] > 0.3 * predicted


class _Block(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


def test_layers_within_layers_are_left_to_the_outer_one():
    images = tf.keras.Input((4,))
    network = tf.keras.Model(images, _Block()(images))
    assert [x.shape for x in memory.saved_tensors(network)] == [(None, 4)]


def test_memory_is_that_of_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", str(tmp_path))
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 2**21
    (tmp_path / "memory.max").write_text("2097152\n")
    assert memory.available() == 2**21
