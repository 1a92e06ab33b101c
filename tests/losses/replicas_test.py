"""Every loss over the global batch: 1 = 2 = 8 replicas, and XLA = plain."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import distribution, losses
from tf_contrastive.config.loss import LOSSES, REDUCTIONS
from tf_contrastive.losses import contrastive_metrics

_RNG = np.random.default_rng(5)
_BATCH, _IN, _OUT = 16, 6, 4
# Two large views, and three small ones, which few tests take.
_INPUTS = _RNG.normal(size=[_BATCH, 5, _IN]).astype(np.float32)
_WEIGHTS = _RNG.normal(size=[_IN, _OUT]).astype(np.float32)
_KEYS = _RNG.normal(size=[_BATCH, 2, _OUT]).astype(np.float32)
_QUEUE = _RNG.normal(size=[20, _OUT]).astype(np.float32)
# Replica 0 of 8 sees one class alone, others two, or singletons: the numbers
# of positives, and of anchors that have any, differ from replica to replica.
_LABELS = np.array([0, 0, 0, 1, 1, 2, 3, 4, 5, 0, 6, 6, 7, 8, 2, 2], np.int32)
_SEED = (3, 4)

_OPTIONS = {
    "supcon": [
        {},
        {"contrast": "one_view"},
        {"positives_cap": 2},
        {"denominator": "one_positive"},
        {"overlap": "jaccard"},
        {"unlabelled": "own_views", "unlabelled_negatives": False},
    ],
    "sincere": [{}, {"unlabelled": "own_views", "unlabelled_negatives": False}],
    "ntxent": [
        {},
        {"negatives": "other_view"},
        {"normalize": False},
        {"denominator": "only_negatives"},
        {"tau_plus": 0.05, "beta": 1.0},
    ],
    "nt_logistic": [{}, {"negatives": "all_views", "mining": "semi_hard"}],
}
_CASES = [
    (name, options) for name in LOSSES for options in _OPTIONS.get(name, [{}])
]


def _labels(loss):
    """One class per logit for cross entropy, which has no other."""
    if loss.allows_unlabelled:
        return np.where(np.arange(_BATCH) % 3, _LABELS, -1).astype(np.int32)
    if getattr(loss, "overlap", "any") == "jaccard":
        classes = np.stack([_LABELS, _LABELS[::-1]])  # One or two of an image.
        return np.eye(9, dtype=np.int32)[classes].max(axis=0)
    return _LABELS % _OUT if loss.takes_logits else _LABELS


def _call(loss, name, z, labels, keys):
    if name == "moco":
        return loss(z, keys=keys, queue=tf.constant(_QUEUE))
    small = {"small_views": z.shape[1] - 2} if z.shape[1] > 2 else {}
    return loss(z, labels, seed=tf.constant(_SEED), **small)


def _alone(loss, name, views=2, jit_compile=False):
    """Value and gradient of one replica, as it goes or compiled by XLA."""
    variable = tf.Variable(_WEIGHTS)

    def both():
        with tf.GradientTape() as tape:
            z = tf.einsum("bvp,pq->bvq", _INPUTS[:, :views], variable)
            labels, keys = tf.constant(_labels(loss)), tf.constant(_KEYS)
            value = _call(loss, name, z, labels, keys)
        return value, tape.gradient(value, variable)

    if jit_compile:
        both = tf.function(both, jit_compile=True, autograph=False)
    value, gradient = both()
    return value.numpy(), gradient.numpy()


def _shared(strategy, *arrays):
    """Each array's equal shares of the replicas."""
    count = strategy.num_replicas_in_sync
    for x in arrays:
        yield strategy.experimental_distribute_values_from_function(
            lambda c, x=x: tf.constant(
                np.split(x, count)[c.replica_id_in_sync_group]
            )
        )


def _distributed(loss, name, replicas, views=2):
    """Value and gradient for the weights of a linear encoder."""
    strategy = distribution.strategy("mirrored", virtual_devices=replicas)
    with strategy.scope():
        variable = tf.Variable(_WEIGHTS)

    @tf.function(autograph=False)
    def run(x, labels, keys):
        def step(x, labels, keys):
            with tf.GradientTape() as tape:
                z = tf.einsum("bvp,pq->bvq", x, variable)
                value = _call(loss, name, z, labels, keys) / replicas
            gradient = tape.gradient(value, variable)
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [value, gradient])

        return strategy.run(step, args=(x, labels, keys))

    inputs = _INPUTS[:, :views]
    results = run(*_shared(strategy, inputs, _labels(loss), _KEYS))
    value, gradient = [
        strategy.experimental_local_results(x)[0].numpy() for x in results
    ]
    return value, gradient


def _error(gradient, expected):
    return np.linalg.norm(gradient - expected) / np.linalg.norm(expected)


def _check_equal(found, expected):
    (value, gradient), (of_value, of_gradient) = found, expected
    np.testing.assert_allclose(value, of_value, rtol=1e-5)
    error = np.linalg.norm(gradient - of_gradient)
    assert error < 1e-5 * np.linalg.norm(of_gradient)


# On 8 replicas one of each kind: pairs, classes, mining, a distribution, a
# queue, logits.
_KINDS = ("ntxent", "supcon", "triplet", "swd_normal", "moco", "cross_entropy")
_SLOW = [(name, {}, 8, 2) for name in _KINDS]
_SLOW += [(name, {}, n, 5) for name in _KINDS[:3] for n in (2, 8)]


@pytest.mark.parametrize(
    ("name", "options", "replicas", "views"),
    [
        *((*case, 2, 2) for case in _CASES),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in _SLOW),
    ],
    ids=str,
)
def test_replicas_change_neither_value_nor_gradient(
    name, options, replicas, views
):
    loss = losses.build(name, **options)
    found = _distributed(loss, name, replicas, views)
    _check_equal(found, _alone(loss, name, views))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_anchors_without_positives_leave_the_global_count(reduction):
    # One view: of the second replica's images only one has a positive.
    labels = np.array([0, 0, 1, 1, 0, 5, 6, 7] * 2, np.int32)
    labels[8:] += 10
    labels[8:13] = [20, 21, 22, 23, 24]
    z = _INPUTS[:, :1] @ _WEIGHTS
    loss = losses.build("supcon", reduction=reduction)
    per_anchor = loss.per_anchor(z, labels).numpy()
    assert (per_anchor > 0).sum() == 5
    expected = per_anchor.sum() / (5 if reduction == "mean" else 1)
    np.testing.assert_allclose(loss(z, labels), expected, rtol=1e-5)

    strategy = distribution.strategy("mirrored", virtual_devices=2)
    shares = tuple(_shared(strategy, z, labels))
    values = strategy.run(tf.function(loss), args=shares)
    mean = np.mean(strategy.experimental_local_results(values))
    np.testing.assert_allclose(mean, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_compiles_to_the_same_numbers(name):
    loss = losses.build(name)
    _check_equal(_alone(loss, name, jit_compile=True), _alone(loss, name))


@pytest.mark.parametrize("small", [0, 3])
def test_metrics_are_of_the_global_batch(small):
    labels = _LABELS
    z = _INPUTS[:, : 2 + small] @ _WEIGHTS
    measure = functools.partial(
        contrastive_metrics.contrastive_task, small_views=small
    )
    expected = measure(z, labels)
    strategy = distribution.strategy("mirrored", virtual_devices=4)
    found = strategy.run(
        tf.function(measure, autograph=False),
        args=tuple(_shared(strategy, z, labels)),
    )
    for name in contrastive_metrics.NAMES:
        for value in strategy.experimental_local_results(found[name]):
            np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def _own_ntxent(z, temperature=0.1):
    """NT-Xent of each view, as somebody writes it who knows one replica."""
    z = tf.math.l2_normalize(z, axis=-1)
    everyone = losses.global_batch(z)
    count, views, size = z.shape
    anchors = tf.reshape(z, [-1, size])
    candidates = tf.reshape(everyone.projections, [-1, size])
    logits = anchors @ tf.transpose(candidates) / temperature
    own = everyone.first * views + tf.range(count * views)
    logits -= 1e9 * tf.one_hot(own, candidates.shape[0])
    losses_ = tf.nn.sparse_softmax_cross_entropy_with_logits(own ^ 1, logits)
    return tf.reshape(losses_, [count, views])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loss_of_your_own_is_that_of_the_global_batch(replicas):
    value, gradient = _alone(losses.build("ntxent"), "ntxent")
    own = losses.FunctionLoss(_own_ntxent)
    found = _distributed(own, "own", replicas)
    np.testing.assert_allclose(found[0], value, rtol=2e-6)
    np.testing.assert_allclose(found[1], gradient, rtol=2e-4, atol=2e-6)
