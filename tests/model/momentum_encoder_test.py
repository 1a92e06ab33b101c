"""Momentum contrast: the slow copy, the queue, and what replicas make of it."""

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf

from tf_contrastive import heads, losses
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.model.momentum_encoder import KeyBranch

_BATCH, _SIDE, _CLASSES, _P = 8, 8, 3, 4
_MOMENTUM, _QUEUE = 0.75, 20
_T = 0.2


def _data(steps=3):
    rng = np.random.default_rng(0)
    views = rng.uniform(size=[steps * _BATCH, 2, _SIDE, _SIDE, 3])
    labels = rng.integers(_CLASSES, size=[steps * _BATCH])
    return views.astype(np.float32), labels.astype(np.int32)


def _batches(steps=3):
    return tf.data.Dataset.from_tensor_slices(_data(steps)).batch(
        _BATCH, drop_remainder=True
    )


def _model(loss="moco", **options):
    tf.keras.utils.set_random_seed(0)
    model = ContrastiveModel(
        small.convolutions(_SIDE, norm=BatchNormalization),
        heads.build("mlp", output=_P),
        losses.build(loss, temperature=_T),
        heads.LinearProbe(_CLASSES, "glorot_uniform"),
        **{"momentum": _MOMENTUM, "queue_size": _QUEUE, **options},
    )
    model.compile(
        tf.keras.optimizers.SGD(0.5, momentum=0.9, jit_compile=False),
        tf.keras.optimizers.SGD(0.1, jit_compile=False),
    )
    return model


def _trainable(branch):
    """Trainable variables of a query or a key branch."""
    return (
        branch.encoder.trainable_variables
        + branch.projection_head.trainable_variables
    )


def _numpy(variables):
    return [v.numpy() for v in variables]


def _assert_equal(values, reference, **tolerance):
    for mine, theirs in zip(values, reference, strict=True):
        np.testing.assert_allclose(mine, theirs, **tolerance)


def test_keys_are_of_the_average_of_the_query_weights():
    """Those of the first step are the query branch's, which starts equal."""
    twin, model = _model(), _model()
    first = next(iter(_batches()))[0]
    keys = twin.encoder(first[:, 1], training=True)
    keys = twin.projection_head(keys, training=True)
    query, key = _trainable(model), _trainable(model.key_branch)
    expected = _numpy(query)
    _assert_equal(_numpy(key), expected)  # The same weights at the start.
    for step, batch in enumerate(_batches()):
        model.train_on_batch(*batch)
        expected = [
            _MOMENTUM * k + (1 - _MOMENTUM) * q
            for k, q in zip(expected, _numpy(query), strict=True)
        ]
        _assert_equal(_numpy(key), expected, rtol=1e-5, atol=1e-7)
        if step == 0:
            statistics = model.key_branch.encoder.non_trainable_variables
            of_twin = _numpy(twin.encoder.non_trainable_variables)
            _assert_equal(_numpy(statistics), of_twin, rtol=1e-4, atol=1e-6)
            queue = model.key_branch.queue[:_BATCH]
            unit = tf.math.l2_normalize(keys, -1)
            np.testing.assert_allclose(queue, unit, atol=1e-5)


@pytest.mark.slow
def test_evaluation_reads_both_branches_and_changes_nothing():
    model = _model()
    model.fit(_batches(), verbose=0)
    before = _numpy(model.weights)
    views, labels = _data(1)
    results = model.evaluate(_batches(1), return_dict=True, verbose=0)
    features = model(views[:, 0])
    queries = model.projection_head(features)
    keys = model.key_branch(views[:, 1])
    q, k = (tf.math.l2_normalize(x, -1) for x in (queries, keys))
    positive = tf.reduce_sum(q * k, -1, keepdims=True)
    negatives = tf.matmul(q, model.key_branch.queue, transpose_b=True)
    shares = tf.nn.softmax(tf.concat([positive, negatives], 1) / _T)
    loss = np.mean(-np.log(shares[:, 0]))
    assert results["loss"] == pytest.approx(loss, rel=1e-5)
    crossings = tf.keras.losses.sparse_categorical_crossentropy(
        labels, model.probe(features), from_logits=True
    )
    assert results["probe_loss"] == pytest.approx(
        float(tf.reduce_mean(crossings)), rel=1e-5
    )
    # The task: the query's nearest among all queries and keys is its key.
    both = tf.concat([q, k], 0)
    near = tf.matmul(both, both, transpose_b=True) - 9 * tf.eye(2 * _BATCH)
    hits = (np.argmax(near, 1) - np.arange(2 * _BATCH)) % (2 * _BATCH) == _BATCH
    assert results["contrastive_accuracy"] == pytest.approx(np.mean(hits))
    _assert_equal(_numpy(model.weights), before, rtol=0)


def _branch(queue_size=10, **options):
    head = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    images = tf.keras.Input([3])
    encoder = tf.keras.Model(images, tf.keras.layers.Dense(4)(images))
    head(encoder.output)
    options |= {"momentum": 0.9, "queue_size": queue_size}
    return KeyBranch(encoder, head, **options)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_queue_is_a_ring_in_replica_order(replicas):
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        branch = _branch(normalize=False)
    keys = np.arange(24, dtype=np.float32).reshape([3, 4, 2])
    filled = []
    for batch in keys:
        shares = strategy.experimental_distribute_values_from_function(
            lambda context, batch=batch: tf.constant(
                np.split(batch, replicas)[context.replica_id_in_sync_group]
            )
        )
        strategy.run(tf.function(branch.enqueue), args=(shares,))
        filled.append(int(np.sum(branch.filled())))
    assert filled == [4, 8, 10]
    # Rows 10 and 11 took the place of the oldest, rows 0 and 1.
    rows = keys.reshape([12, 2])
    np.testing.assert_array_equal(
        branch.queue, rows[[10, 11, 2, 3, 4, 5, 6, 7, 8, 9]]
    )


def test_batches_of_unknown_size():
    """As distributed iterators of several workers give them."""
    branch = _branch(queue_size=4)
    enqueue = tf.function(
        branch.enqueue, input_signature=[tf.TensorSpec([None, 2])]
    )
    enqueue(tf.constant([[3.0, 4.0]]))
    enqueue(tf.constant([[0.0, 2.0], [4.0, 3.0]]))
    np.testing.assert_allclose(
        branch.queue, [[0.6, 0.8], [0, 1], [0.8, 0.6], [0, 0]], rtol=1e-6
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="queue_size=4"):
        enqueue(tf.ones([5, 2]))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"momentum": 1.0}, r"momentum=1.0: must be in \[0, 1\)"),
        ({"queue_size": 0}, "queue_size=0: must be at least 1"),
        ({"momentum": None}, "the loss takes keys"),
        ({"loss": "ntxent"}, "makes keys, which the loss does not take"),
        ({"loss": "ntxent", "momentum": None}, "=20 needs a momentum"),
        ({"queue_size": 7}, "queue_size=7 is less than the 8 images"),
        ({"views": 3}, "3 views per image: with a momentum there must be 2"),
    ],
    ids=str,
)
def test_what_cannot_work_is_told(options, told):
    options = dict(options)
    count = options.pop("views", 2)
    views = tf.zeros([_BATCH, count, _SIDE, _SIDE, 3])
    data = tf.data.Dataset.from_tensors(views)
    with pytest.raises(ValueError, match=told):
        _model(**options).fit(data, verbose=0)


class _Block(tf.keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.norm = tf.keras.layers.BatchNormalization()

    def call(self, x):
        return self.norm(x)


def test_layers_within_layers_of_the_key_branch_are_synchronized():
    images = tf.keras.Input((_SIDE, _SIDE, 3))
    with on_replicas.strategy(2).scope():
        x = tf.keras.layers.GlobalAveragePooling2D()(_Block()(images))
        head = heads.build("linear", output=_P)
        encoder = tf.keras.Model(images, x)
        model = ContrastiveModel(
            *(encoder, head, losses.build("moco")),
            momentum=_MOMENTUM,
            queue_size=_QUEUE,
        )
    found = [
        layer.synchronized
        for layer in model.key_branch.encoder.submodules
        if isinstance(layer, tf.keras.layers.BatchNormalization)
    ]
    assert found == [True]
