"""The gradient cache: the big batch's step in the memory of a part of it."""

import numpy as np
import processes
import pytest
import replicas as on_replicas
import small
import tensorflow as tf
from replicas import Recorder

from tf_contrastive import heads, losses
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.model import ContrastiveModel, gradient_cache

_BATCH, _VIEWS, _SIDE, _CLASSES = 16, 2, 8, 4


def _data():
    rng = np.random.default_rng(0)
    views = rng.uniform(size=[_BATCH, _VIEWS, _SIDE, _SIDE, 3])
    labels = rng.integers(_CLASSES, size=[_BATCH])
    return views.astype(np.float32), labels.astype(np.int32)


def _model(chunks, norm=None):
    tf.keras.utils.set_random_seed(0)
    return ContrastiveModel(
        small.convolutions(_SIDE, norm=norm),
        heads.build("mlp", output=16, batch_norm=False),
        losses.build("supcon"),
        heads.LinearProbe(_CLASSES, "glorot_uniform"),
        grad_cache_chunks=chunks,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "norm"),
    [(2, BatchNormalization), (1, tf.keras.layers.BatchNormalization)],
)
def test_batch_statistics_are_those_of_a_chunk(replicas, norm):
    """The oracle passes each ghost batch through the network by hand.

    A ghost batch is a chunk's images of all replicas.
    """
    chunks = 2
    views, labels = _data()
    model = _model(1, norm)
    rows = np.arange(_BATCH).reshape([replicas, chunks, -1])
    with tf.GradientTape() as tape:
        projections, crossings = [None] * _BATCH, 0.0
        for chunk in range(chunks):
            ghost = rows[:, chunk].ravel()
            images = views[ghost].reshape([-1, _SIDE, _SIDE, 3])
            features = model.encoder(images, training=True)
            z = model.projection_head(features, training=True)
            z = tf.reshape(z, [-1, _VIEWS, z.shape[-1]])
            for place, row in enumerate(ghost):
                projections[row] = z[place]
            crossings += tf.keras.losses.sparse_categorical_crossentropy(
                np.repeat(labels[ghost], _VIEWS),
                model.probe(tf.stop_gradient(features)),
                from_logits=True,
            )
        loss = model.contrastive_loss(tf.stack(projections), labels)
        probe_loss = tf.reduce_mean(crossings) / chunks
        total = loss + probe_loss
    variables = model.trainable_variables
    for v, g in zip(variables, tape.gradient(total, variables), strict=True):
        v.assign(g)
    truth = [w.numpy() for w in model.weights]
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        model = _model(chunks, norm)
        model.compile(Recorder(), Recorder())
    examples = tf.data.Dataset.from_tensor_slices(_data())
    batches = on_replicas.share(examples, _BATCH, strategy)
    history = model.fit(batches, steps_per_epoch=1, verbose=0).history
    for name, value in ("loss", loss), ("probe_loss", probe_loss):
        assert history[name] == pytest.approx([float(value)], rel=2e-5), name
    # Moving statistics are among the weights: updated once for each chunk.
    largest = max(np.linalg.norm(w) for w in truth)
    for i, (w, true) in enumerate(zip(model.weights, truth, strict=True)):
        scale = max(np.linalg.norm(true), 1e-4 * largest)
        assert np.linalg.norm(w.numpy() - true) < 2e-5 * scale, i


def test_batches_that_make_no_chunks_are_told():
    model = _model(3)
    model.compile("sgd", "sgd")
    with pytest.raises(ValueError, match="does not divide a replica's batch"):
        model.fit(tf.data.Dataset.from_tensors(_data()), verbose=0)
    with pytest.raises(ValueError, match="at least 1"):
        _model(0)


def test_batches_of_unknown_size():
    """As distributed iterators of several workers give them."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def sums(x):  # Of each chunk.
        whole = gradient_cache.check_divisible(x, 3)
        function = lambda part: tf.reduce_sum(part, keepdims=True)  # noqa: E731
        return gradient_cache.in_chunks(function, whole, 3)

    x = np.arange(12, dtype=np.float32).reshape([6, 2])
    np.testing.assert_array_equal(sums(x)[:, 0], [6, 22, 38])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        sums(x[:5])
    message = str(label_checks.in_one_line(error.value))
    assert message.startswith("grad_cache_chunks=3") and "\n" not in message


_MEASURE = """
import pathlib, re, sys
import tensorflow as tf
from tf_contrastive import heads, losses
from tf_contrastive.model import ContrastiveModel

views = tf.random.uniform([192, 2, 64, 64, 3])
batch = tf.data.Dataset.from_tensors(views).repeat()

def memory(name):
    # Unlike ru_maxrss, not handed on by the process that started this one.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\\s+(\\d+)", status)[1])

for chunks in (8, 1):  # The peak of the process is that of the last so far.
    images = x = tf.keras.Input((64, 64, 3))
    for _ in range(4):
        x = tf.keras.layers.Dense(32, "tanh")(x)  # Of each pixel.
    features = tf.keras.layers.GlobalAveragePooling2D()(x)
    model = ContrastiveModel(
        tf.keras.Model(images, features),
        heads.build("linear", output=16, batch_norm=False),
        losses.build("ntxent"),
        grad_cache_chunks=chunks,
    )
    model.compile(
        tf.keras.optimizers.SGD(0.1, jit_compile=False),
        jit_compile=sys.argv[1] == "jit",
    )
    before = memory("VmRSS")
    model.fit(batch, steps_per_epoch=1, verbose=0)
    print((memory("VmHWM") - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("jit", ["plain", "jit"])
def test_chunks_need_less_memory(jit):
    # 4 activations of 384 images, 64 * 64 * 32 floats: 768 MiB.
    # Else the C library keeps blocks of 25 MiB that were freed.
    own = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = processes.run(processes.python(_MEASURE, jit), variables=own)
    of_chunks, whole = map(int, done.stdout.split())
    assert whole > 400, (of_chunks, whole)
    assert of_chunks < whole / 2, (of_chunks, whole)
