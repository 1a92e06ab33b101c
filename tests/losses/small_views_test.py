"""Small views are anchors among the large views, for every loss of anchors."""

import math

import numpy as np
import pytest
import replicas as on_replicas
import tensorflow as tf

from tf_contrastive import losses
from tf_contrastive.losses import contrastive_metrics

_BATCH, _LARGE, _SMALL, _SIZE = 8, 2, 3, 5
_LABELS = np.array([0, 1, 0, 2, 1, 0, 2, 3], np.int32)
_Z = np.random.default_rng(3).normal(size=[_BATCH, _LARGE + _SMALL, _SIZE])


# ---- The definition, anchor by anchor ----------------------------------------


def _lse(values):
    return math.log(sum(math.exp(x) for x in values))


def _mean(values):
    return sum(values) / len(values)


def _softplus(x):
    return math.log1p(math.exp(x))


def _ntxent(a, positives, negatives, t):
    every = _lse([a @ c / t for c in positives + negatives])
    return _mean([every - a @ p / t for p in positives])


def _dcl(a, positives, negatives, t):
    every = _lse([a @ c / t for c in negatives])
    return _mean([every - a @ p / t for p in positives])


def _debiased_hard(a, positives, negatives, t, tau=0.05, beta=1.0):
    n = len(negatives)
    hard = sum(math.exp((1 + beta) * (a @ c) / t) for c in negatives)
    total = n * hard / sum(math.exp(beta * (a @ c) / t) for c in negatives)
    attracted = [math.exp(a @ p / t) for p in positives]
    total = (total - tau * n * _mean(attracted)) / (1 - tau)
    total = max(total, n * math.exp(-1 / t))
    every = math.log(sum(attracted) + total)
    return _mean([every - a @ p / t for p in positives])


def _supcon_in(a, positives, negatives, t):
    every = _lse([a @ c / t for c in positives + negatives])
    return every - math.log(_mean([math.exp(a @ p / t) for p in positives]))


def _sincere(a, positives, negatives, t):
    noise = _lse([a @ c / t for c in negatives])
    return _mean([_softplus(noise - a @ p / t) for p in positives])


def _triplet(a, positives, negatives, t):
    far = max(((a - p) ** 2).sum() for p in positives)
    near = min(((a - n) ** 2).sum() for n in negatives)
    return max(far - near + 0.2, 0.0)


def _margin(a, positives, negatives, t):
    return _mean(
        [max(a @ n - a @ p + 0.4, 0) for p in positives for n in negatives]
    )


def _nt_logistic(a, positives, negatives, t):
    repelled = _mean([_softplus(a @ n / t) for n in negatives])
    return _mean([_softplus(-(a @ p) / t) for p in positives]) + repelled


def _decoupled(a, positives, negatives, t):
    gaps = _mean([((a - p) ** 2).mean() for p in positives])
    return 1000 * (
        gaps + 0.1 * _lse([a @ c / t for c in positives + negatives])
    )


_OF_IMAGE, _OF_CLASS = False, True
# Loss -> formula, temperature, whether positives are of the class, options.
_CASES = {
    "ntxent": (_ntxent, 0.1, _OF_IMAGE, {}),
    "dcl": (_dcl, 0.1, _OF_IMAGE, {"denominator": "only_negatives"}),
    "hard": (_debiased_hard, 0.5, _OF_IMAGE, {"tau_plus": 0.05, "beta": 1.0}),
    "supcon": (_ntxent, 0.1, _OF_CLASS, {}),
    "supcon_in": (_supcon_in, 0.1, _OF_CLASS, {}),
    "sincere": (_sincere, 0.1, _OF_CLASS, {}),
    "triplet": (_triplet, None, _OF_CLASS, {}),
    "margin": (_margin, None, _OF_IMAGE, {"negatives": "all_views"}),
    "nt_logistic": (_nt_logistic, 0.1, _OF_IMAGE, {"negatives": "all_views"}),
    "decoupled_ntxent": (_decoupled, 1.0, _OF_IMAGE, {}),
}
_NAMES = {"dcl": "ntxent", "hard": "ntxent"}


def _expected(formula, temperature, of_class, z):
    """The loss of each anchor, [B, V + S], and their mean."""
    z = z / np.linalg.norm(z, axis=-1, keepdims=True)
    values = np.zeros(z.shape[:2])
    for i, v in np.ndindex(values.shape):
        positives, negatives = [], []
        for j in range(_BATCH):
            for u in range(_LARGE):
                if (j, u) == (i, v):
                    continue
                same = _LABELS[i] == _LABELS[j] if of_class else i == j
                (positives if same else negatives).append(z[j, u])
        values[i, v] = formula(z[i, v], positives, negatives, temperature)
    return values, values.mean()


def _loss(case):
    name, options = _NAMES.get(case, case), dict(_CASES[case][3])
    if _CASES[case][1]:
        options["temperature"] = _CASES[case][1]
    return losses.build(name, **options)


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("blocks", [None, 7])
def test_every_anchor_is_compared_with_the_large_views(case, blocks):
    loss = _loss(case)
    loss.block_size = blocks
    z = tf.constant(_Z, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        total = loss(z, _LABELS, small_views=_SMALL)
    gradient = tape.gradient(total, z)
    of_anchors = loss.per_anchor(z, _LABELS, small_views=_SMALL)
    values, mean = _expected(*_CASES[case][:3], _Z)
    np.testing.assert_allclose(of_anchors, values, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(total, mean, rtol=1e-5)
    # Along a random direction, by central differences in float64.
    step = np.random.default_rng(4).normal(size=_Z.shape)
    ends = [
        _expected(*_CASES[case][:3], _Z + h * step)[1] for h in (1e-5, -1e-5)
    ]
    slope = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(np.sum(gradient * step), slope, rtol=1e-3)


@pytest.mark.parametrize("cap", [1, 2, 4])
def test_a_cap_keeps_own_views_first(cap):
    loss = losses.build("supcon", positives_cap=cap, temperature=0.5)
    found = loss.per_anchor(_Z, _LABELS, small_views=_SMALL)
    z = _Z / np.linalg.norm(_Z, axis=-1, keepdims=True)
    for i, v in np.ndindex(*_Z.shape[:2]):
        own, others, negatives = [], [], []
        for j, u in np.ndindex(_BATCH, _LARGE):
            if (j, u) != (i, v):
                same = _LABELS[i] == _LABELS[j]
                group = own if i == j else others if same else negatives
                group.append(z[j, u])
        kept = (own + others)[:cap]
        expected = _ntxent(z[i, v], kept, negatives, 0.5)
        np.testing.assert_allclose(found[i, v], expected, rtol=1e-5)


def test_n_pairs_puts_a_small_view_in_the_place_of_a_large_one():
    loss = losses.build("npairs")
    found = loss.per_anchor(_Z, _LABELS, small_views=_SMALL).numpy()
    z = _Z / np.linalg.norm(_Z, axis=-1, keepdims=True)
    for i, v in np.ndindex(*found.shape):
        turns = [(i + k) % _BATCH for k in range(1, _BATCH)]
        partners = [j for j in turns if _LABELS[j] == _LABELS[i]]
        candidates = [
            z[i, v] @ z[j, u]
            for j, u in np.ndindex(_BATCH, _LARGE)
            if (j, u) != (i, v)
        ]
        expected = 0.0
        if partners:
            positive = z[i, v] @ z[partners[0], v % _LARGE]
            expected = _lse(candidates) - positive
        np.testing.assert_allclose(found[i, v], expected, rtol=1e-5)


def test_cross_entropy_classifies_every_view():
    logits = _Z[..., :4]
    found = losses.build("cross_entropy")(logits, _LABELS, small_views=_SMALL)
    expected = np.mean(
        [
            _lse(logits[i, v]) - logits[i, v, _LABELS[i]]
            for i, v in np.ndindex(*logits.shape[:2])
        ]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("case", ["ntxent", "supcon", "triplet"])
@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_replicas_change_neither_value_nor_gradient(case, replicas):
    loss = _loss(case)
    z = tf.constant(_Z, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z, _LABELS, small_views=_SMALL)
    expected = tape.gradient(value, z)
    task = contrastive_metrics.contrastive_task(z, small_views=_SMALL)
    strategy = on_replicas.strategy(replicas)

    def part(x):
        return strategy.experimental_distribute_values_from_function(
            lambda c: tf.constant(
                np.split(np.array(x), replicas)[c.replica_id_in_sync_group]
            )
        )

    @tf.function(autograph=False)
    def run(z, labels):
        def step(z, labels):
            with tf.GradientTape() as tape:
                tape.watch(z)
                value = loss(z, labels, small_views=_SMALL) / replicas
            found = contrastive_metrics.contrastive_task(z, small_views=_SMALL)
            return value, tape.gradient(value, z), found

        return strategy.run(step, args=(z, labels))

    values, gradients, tasks = run(part(z), part(_LABELS))
    local = strategy.experimental_local_results
    np.testing.assert_allclose(np.sum(local(values)), value, rtol=1e-5)
    found = np.concatenate(local(gradients))
    gap = np.linalg.norm(found - expected)
    assert gap < 1e-5 * np.linalg.norm(expected)
    for name, metric in task.items():
        of_one = local(tasks[name])[0]
        np.testing.assert_allclose(of_one, metric, rtol=1e-5, atol=1e-6)
