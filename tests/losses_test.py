"""NT-Xent and SupCon against golden values, double loops and identities."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import config, distribution, losses

_ANGLES = np.deg2rad([[0, 12], [25, 41], [100, 131], [200, 216]])  # [B, V]
_GOLDEN = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # [B, V, 2]
_LABELS = np.array([0, 0, 1, 1])


def _by_hand(z, labels, temperature, normalize=True):
    """L_out as the paper writes it: loops over anchors and positives."""
    z = np.asarray(z, np.float64)
    batch, views, _ = z.shape
    if normalize:
        norms = np.linalg.norm(z, axis=-1, keepdims=True)
        z = z / np.where(norms > 0, norms, 1)
    values = np.zeros([batch, views])
    for i, v in np.ndindex(batch, views):
        others = [b for b in np.ndindex(batch, views) if b != (i, v)]
        s = {b: z[i, v] @ z[b] / temperature for b in others}
        largest = max(s.values(), default=0)
        log_sum = largest + np.log(
            sum(np.exp(x - largest) for x in s.values()) or 1
        )
        positives = [b for b in others if labels[b[0]] == labels[i]]
        for b in positives:
            values[i, v] += (log_sum - s[b]) / len(positives)
    return values


def _count(labels, views):
    shared = labels[:, None] == labels[None]
    return (shared.sum(1) * views > 1).sum() * views


class TestGoldenValues:
    def test_ntxent(self):
        loss = losses.build("ntxent", temperature=0.5)
        np.testing.assert_allclose(loss(_GOLDEN), 0.8302185926, rtol=1e-5)
        expected = (
            ".9907952194 1.1916816833 .8455201689 .3973254756"
            " 1.1160987955 1.1317009763 .6849992106 .2836272112"
        )
        np.testing.assert_allclose(
            loss.per_anchor(_GOLDEN),
            np.reshape([float(x) for x in expected.split()], [2, 4]).T,
            rtol=1e-5,
        )

    def test_supcon(self):
        loss = losses.build("supcon", temperature=0.5)
        np.testing.assert_allclose(
            loss(_GOLDEN, _LABELS), 1.5255794392, rtol=1e-5
        )
        expected = (
            "1.1876471088 1.2195787100 2.3964227861 1.5558612223"
            " 1.1876357486 1.3271637127 1.5308731500 1.7994530751"
        )
        np.testing.assert_allclose(
            loss.per_anchor(_GOLDEN, _LABELS),
            np.reshape([float(x) for x in expected.split()], [2, 4]).T,
            rtol=1e-5,
        )

    def test_sum_is_the_printed_reduction(self):
        loss = losses.build("supcon", temperature=0.5, reduction="sum")
        np.testing.assert_allclose(
            loss(_GOLDEN, _LABELS), 12.2046355136, rtol=1e-5
        )

    def test_gradient_of_one_anchor(self):
        loss = losses.build("supcon", temperature=0.5, normalize=False)
        z = tf.Variable(_GOLDEN, dtype=tf.float32)
        with tf.GradientTape() as tape:
            # Anchor 0 against fixed candidates: the closed form's setting.
            fixed = tf.stop_gradient(z)
            mine = tf.concat([z[:1, :1], fixed[:1, 1:]], 1)
            value = loss.per_anchor(
                tf.concat([mine, fixed[1:]], 0), tf.constant(_LABELS)
            )[0, 0]
        np.testing.assert_allclose(
            tape.gradient(value, z)[0, 0],
            [-0.1550600550, -0.0432466000],
            rtol=1e-4,
        )


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", ["ntxent", "supcon"])
def test_equals_the_double_loop(name, views, temperature):
    rng = np.random.default_rng(0)
    for batch, size, classes in [(1, 4, 1), (5, 3, 2), (9, 16, 4), (8, 8, 8)]:
        z = rng.normal(size=[batch, views, size]).astype(np.float32)
        labels = rng.integers(0, classes, batch)
        positives = np.arange(batch) if name == "ntxent" else labels
        expected = _by_hand(z, positives, temperature)
        loss = losses.build(name, temperature=temperature)
        np.testing.assert_allclose(
            loss.per_anchor(z, labels), expected, rtol=1e-4, atol=1e-5
        )
        counted = max(_count(positives, views), 1)
        np.testing.assert_allclose(
            loss(z, labels), expected.sum() / counted, rtol=1e-4, atol=1e-5
        )


def test_unique_labels_make_supcon_ntxent():
    z = np.random.default_rng(1).normal(size=[7, 2, 5])
    np.testing.assert_allclose(
        losses.build("supcon")(z, np.arange(7)),
        losses.build("ntxent")(z),
        rtol=1e-6,
    )


def test_multi_hot_positives_share_any_class():
    z = np.random.default_rng(2).normal(size=[5, 2, 5])
    labels = np.array([0, 2, 1, 0, 2])
    loss = losses.build("supcon")
    np.testing.assert_allclose(
        loss(z, np.eye(3)[labels]), loss(z, labels), rtol=1e-6
    )
    # Image 1 shares a class with 0 and with 2, which share none.
    chain = np.array([[1, 0], [1, 1], [0, 1]])
    pairs = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)
    by_row = [_by_hand(z[:3], np.where(row, 0, 1), 0.1) for row in pairs]
    expected = np.stack([by_row[i][i] for i in range(3)])
    np.testing.assert_allclose(
        loss.per_anchor(z[:3], chain), expected, rtol=1e-4
    )


def test_gradient_is_orthogonal_to_projections_and_inverse_to_their_norm():
    z = tf.constant(np.random.default_rng(3).normal(size=[6, 2, 8]), tf.float32)
    loss = losses.build("supcon")
    labels = tf.constant([0, 0, 1, 1, 2, 2])

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x, labels)
        return tape.gradient(value, x)

    g = gradient(z)
    np.testing.assert_allclose(tf.reduce_sum(g * z, -1), 0, atol=1e-6)
    np.testing.assert_allclose(gradient(4 * z), g / 4, rtol=1e-3, atol=1e-6)


_RNG = np.random.default_rng(4)
_HARD = {
    "one class": (_RNG.normal(size=[6, 2, 8]), np.zeros(6, int)),
    "singletons": (_RNG.normal(size=[6, 2, 8]), np.arange(6)),
    "one image": (_RNG.normal(size=[1, 2, 8]), np.zeros(1, int)),
    "one image of one view": (_RNG.normal(size=[1, 1, 8]), np.zeros(1, int)),
    "identical": (np.ones([6, 2, 8]), np.array([0, 0, 1, 1, 2, 2])),
    "zero vectors": (np.zeros([6, 2, 8]), np.array([0, 0, 1, 1, 2, 2])),
    "one zero vector": (
        np.concatenate([np.zeros([1, 2, 8]), _RNG.normal(size=[5, 2, 8])]),
        np.array([0, 0, 1, 1, 2, 2]),
    ),
    "norm 1e3": (
        1e3 * _RNG.normal(size=[6, 2, 8]),
        np.array([0, 0, 1, 1, 2, 2]),
    ),
    "norm 1e-8": (
        1e-8 * _RNG.normal(size=[6, 2, 8]),
        np.array([0, 0, 1, 1, 2, 2]),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.005, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("case", sorted(_HARD))
@pytest.mark.parametrize("name", ["ntxent", "supcon"])
def test_finite_and_right_where_peers_fail(name, case, temperature, dtype):
    z, labels = _HARD[case]
    z = tf.cast(tf.constant(z, tf.float32), dtype)
    loss = losses.build(name, temperature=temperature)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z, labels)
    positives = np.arange(len(labels)) if name == "ntxent" else labels
    rounded = tf.cast(z, tf.float64).numpy()
    expected = _by_hand(rounded, positives, temperature)
    counted = max(_count(positives, z.shape[1]), 1)
    assert value.dtype == tf.float32
    np.testing.assert_allclose(
        value, expected.sum() / counted, rtol=1e-4, atol=1e-4
    )
    gradient = tf.cast(tape.gradient(value, z), tf.float32)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_no_number_is_not_hidden(bad, whole):
    z = np.ones([4, 2, 8], np.float32)
    if whole:
        z[1] = bad
    else:
        z[1, 0, 3] = bad
    assert not np.isfinite(losses.build("ntxent")(z))


def test_unnormalised_huge_projections_are_finite():
    z = tf.constant(1e3 * _RNG.normal(size=[6, 2, 8]), tf.float32)
    loss = losses.build("ntxent", normalize=False, temperature=0.05)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z)
    expected = _by_hand(z.numpy(), np.arange(6), 0.05, normalize=False)
    np.testing.assert_allclose(value, expected.mean(), rtol=1e-4)
    assert np.isfinite(tape.gradient(value, z)).all()


def _distributed(loss, z, labels, weights, replicas):
    """Value and gradient for `weights`, the projections being z . weights."""
    strategy = distribution.strategy("mirrored", virtual_devices=replicas)
    with strategy.scope():
        variable = tf.Variable(weights)
    per = len(z) // replicas

    def value_of(context):
        part = slice(context * per, (context + 1) * per)
        return tf.constant(z[part]), tf.constant(labels[part])

    parts = [value_of(r) for r in range(replicas)]

    def choose(context, k):
        return parts[context.replica_id_in_sync_group][k]

    shares = [
        strategy.experimental_distribute_values_from_function(
            lambda context, k=k: choose(context, k)
        )
        for k in (0, 1)
    ]

    @tf.function
    def run():
        def step(z, labels):
            with tf.GradientTape() as tape:
                projections = tf.einsum("bvp,pq->bvq", z, variable)
                value = loss(projections, labels)
                scaled = value / replicas
            gradient = tape.gradient(scaled, variable)
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [scaled, gradient])

        return strategy.run(step, args=tuple(shares))

    results = [strategy.experimental_local_results(x)[0] for x in run()]
    return [x.numpy() for x in results]


@pytest.mark.parametrize("name", ["ntxent", "supcon"])
def test_replicas_do_not_change_value_or_gradient(name):
    rng = np.random.default_rng(5)
    z = rng.normal(size=[16, 2, 6]).astype(np.float32)
    # Replica 0 of 8 sees one class alone, others mixed and singletons: the
    # counts of positives differ from replica to replica.
    labels = np.array([0, 0, 0, 1, 1, 2, 3, 4, 5, 0, 6, 6, 7, 8, 2, 2])
    weights = rng.normal(size=[6, 4]).astype(np.float32)
    loss = losses.build(name)
    value, gradient = _distributed(loss, z, labels, weights, 1)
    for replicas in (2, 4, 8):
        v, g = _distributed(loss, z, labels, weights, replicas)
        np.testing.assert_allclose(v, value, rtol=1e-6)
        error = np.linalg.norm(g - gradient) / np.linalg.norm(gradient)
        assert error < 1e-5, (replicas, error)


def test_anchors_without_positives_leave_the_global_count():
    rng = np.random.default_rng(6)
    z = rng.normal(size=[8, 1, 6]).astype(np.float32)
    # One view: of replica 1's four images only one has a positive.
    labels = np.array([0, 0, 1, 1, 0, 5, 6, 7])
    weights = rng.normal(size=[6, 4]).astype(np.float32)
    loss = losses.build("supcon")
    value, gradient = _distributed(loss, z, labels, weights, 2)
    expected = _by_hand(z @ weights, labels, 0.1)
    np.testing.assert_allclose(value, expected.sum() / 5, rtol=1e-5)
    one = _distributed(loss, z, labels, weights, 1)[1]
    np.testing.assert_allclose(gradient, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: losses.build("ntxnt"), "did you mean 'ntxent'"),
        (lambda: losses.build("supcon", temprature=1), "'temperature'"),
        (lambda: losses.build("supcon", temperature=0), "must be above 0"),
        (lambda: losses.build("supcon", reduction="avg"), "known: mean, sum"),
        (lambda: losses.build("supcon")(_GOLDEN), "SupCon needs labels"),
        (lambda: losses.build("supcon")(_GOLDEN, [1, 2]), r"labels of shape"),
        (lambda: losses.build("ntxent")(_GOLDEN[0]), r"must be floating \[B"),
    ],
)
def test_bad_input_is_told(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_options_stand_in_the_config():
    assert tuple(losses.LOSSES) == config.LOSSES
    supervised = {n for n, c in losses.LOSSES.items() if c.needs_labels}
    assert supervised == set(config.SUPERVISED_LOSSES)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
