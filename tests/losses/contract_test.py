"""Every loss: value and gradient of the oracle, for any batch and in graphs."""

import loss_oracles as oracles
import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import losses
from tf_contrastive.losses import generalized

_TEMPERATURES = (0.05, 0.1, 0.5, 1.0)
# Losses of similarities that no temperature divides.
_NO_TEMPERATURE = ("triplet", "margin", "cross_entropy")
_NO_ANCHORS = ("align_uniform",)

_JACCARD = {"overlap": "jaccard"}
_OWN = {"unlabelled": "own_views", "unlabelled_negatives": False}
# What is compared: each loss with its defaults, then with each option.
_CASES = [
    ("ntxent", {}),
    ("ntxent", {"negatives": "other_view"}),
    ("ntxent", {"normalize": False}),
    ("ntxent", {"denominator": "one_positive"}),
    ("ntxent", {"denominator": "only_negatives"}),
    ("ntxent", {"denominator": "only_negatives", "negatives": "other_view"}),
    ("ntxent", {"denominator": "only_negatives", "normalize": False}),
    ("ntxent", {"tau_plus": 0.1}),
    ("ntxent", {"tau_plus": 0.02, "denominator": "one_positive"}),
    ("ntxent", {"tau_plus": 0.01, "denominator": "only_negatives"}),
    ("ntxent", {"tau_plus": 0.1, "negatives": "other_view"}),
    ("ntxent", {"beta": 1.0}),
    ("ntxent", {"beta": 0.3, "normalize": False}),
    ("ntxent", {"beta": 2.0, "denominator": "one_positive"}),
    ("ntxent", {"beta": 1.0, "tau_plus": 0.1, "negatives": "other_view"}),
    ("supcon", {}),
    ("supcon", {"scale_by_temperature": True}),
    ("supcon", {"normalize": False}),
    ("supcon", {"contrast": "one_view", "denominator": "one_positive"}),
    ("supcon_in", {}),
    ("supcon_in", {"contrast": "one_view"}),
    ("supcon_in", {"contrast": "one_view", "positives_cap": 2}),
    ("sincere", {}),
    ("sincere", {"normalize": False}),
    ("eps_supinfonce", {}),
    ("eps_supinfonce", {"epsilon": 0.5, "epsilon_in": "cosine"}),
    *(
        (name, {"unlabelled": "own_views", **options})
        for name in ("supcon", "supcon_in", "sincere", "eps_supinfonce")
        for options in ({}, {"unlabelled_negatives": False}, _JACCARD)
    ),
    ("supcon", {**_OWN, "denominator": "one_positive", "positives_cap": 2}),
    (
        "supcon",
        {**_OWN, "denominator": "only_negatives", "contrast": "one_view"},
    ),
    ("supcon", {**_JACCARD, "contrast": "one_view"}),
    ("sincere", _JACCARD),
    ("supcon", {**_JACCARD, "positives_cap": 2, "denominator": "one_positive"}),
    ("supcon_in", {**_JACCARD, "denominator": "only_negatives"}),
    ("npairs", {}),
    ("npairs", {"normalize": False}),
    ("triplet", {}),
    ("triplet", {"margin": 0.0}),
    ("triplet", {"margin": 3.0, "normalize": False}),
    ("margin", {}),
    ("margin", {"margin": 1.6, "negative_reduction": "sum"}),
    ("margin", {"mining": "semi_hard"}),
    ("margin", {"negatives": "all_views", "mining": "semi_hard"}),
    ("margin", {"negatives": "all_views", "normalize": False}),
    ("nt_logistic", {}),
    ("nt_logistic", {"mining": "semi_hard"}),
    ("nt_logistic", {"negatives": "all_views"}),
    ("nt_logistic", {"negatives": "all_views", "negative_reduction": "sum"}),
    ("decoupled_ntxent", {}),
    ("decoupled_ntxent", {"weight": 2.0}),
    ("decoupled_ntxent", {"normalize": False}),
    ("decoupled_ntxent", {"alignment": "similarity", "normalize": False}),
    ("align_uniform", {}),
    ("align_uniform", {"weight": 0.3, "include_self": False}),
    ("align_uniform", {"normalize": False, "scale": 3.0}),
    ("cross_entropy", {}),
    ("cross_entropy", {"label_smoothing": 0.1}),
]
_DEFAULTS = [case for case in _CASES if not case[1]]
_CAPPED = [
    (
        name,
        {
            "denominator": denominator,
            "positives_cap": cap,
            "keep_dropped_positives": kept,
        },
    )
    for name in ("supcon", "supcon_in")
    for denominator in ("all", "one_positive", "only_negatives")
    for cap in (None, 1, 2, 4)
    for kept in ((False, True) if cap else (False,))
]


def _name(case):
    name, options = case
    return "-".join([name, *(f"{k}={v}" for k, v in options.items())])


def _compares_two_views(name, options):
    default = "other_view" if name in ("margin", "nt_logistic") else None
    return options.get("negatives", default) == "other_view"


def _each_views(cases):
    """Cases with 1, 2 and 3 views, where the loss takes them."""
    each = []
    for name, options in cases:
        for views in (2,) if _compares_two_views(name, options) else (1, 2, 3):
            label = f"{_name((name, options))}-{views}"
            each.append(pytest.param((name, options), views, id=label))
    return each


_SMALL_VIEWS = [
    case
    for case in _CASES + _CAPPED
    if case[0] not in _NO_ANCHORS and not _compares_two_views(*case)
]


def _labels(rng, kind, batch, classes=3):
    """Int [B], or multi-hot [B, C] in which each image has one class or two."""
    if kind == "classes":
        return rng.integers(0, classes, size=batch)
    if kind == "one class":
        return np.full(batch, 1)
    if kind == "singletons":
        return rng.permutation(batch)
    labels = np.zeros([batch, classes + 2], np.int32)
    for row in labels:
        row[rng.choice(len(row), size=rng.integers(1, 3), replace=False)] = 1
    return labels


def _inputs(rng, name, kind, batch, views, size, options=None):
    """Projections float32 [B, V, P] of different lengths, and labels.

    With the option `unlabelled` each second image has none.
    """
    z = rng.normal(size=[batch, views, size])
    z *= rng.uniform(0.3, 1.5, size=[batch, views, 1]) / np.sqrt(size)
    if name == "cross_entropy" and kind == "multi-hot":
        return z.astype(np.float32), rng.integers(0, 2, size=[batch, size])
    if name == "cross_entropy":
        return z.astype(np.float32), rng.integers(0, size, size=batch)
    labels = _labels(rng, kind, batch)
    if "unlabelled" in (options or {}):
        labels[1::2] = 0 if kind == "multi-hot" else -1
    return z.astype(np.float32), labels


def _with_temperature(name, options, temperature):
    if name in _NO_TEMPERATURE:
        return options
    return {**options, "temperature": temperature}


def _check(name, options, z, labels):
    """The loss and its anchors are those of the oracle."""
    loss = losses.build(name, **options)
    message = f"{name} {options} {z.shape} labels {np.asarray(labels).tolist()}"
    tolerance = {"rtol": 1e-4, "atol": 1e-5, "err_msg": message}
    value = loss(z, labels)
    assert value.dtype == tf.float32 and value.shape == []
    np.testing.assert_allclose(
        value, oracles.value(name, z, labels, **options), **tolerance
    )
    if name in _NO_ANCHORS:
        return
    values, _ = oracles.per_anchor(name, z, labels, **options)
    actual = loss.per_anchor(z, labels)
    assert actual.dtype == tf.float32
    np.testing.assert_allclose(actual, values, **tolerance)


class TestValues:
    @pytest.mark.parametrize(("case", "views"), _each_views(_CASES))
    def test_of_any_batch(self, case, views):
        name, options = case
        number = _CASES.index(case)
        rng = np.random.default_rng(100 * number + views)
        kinds = ["classes", "multi-hot", "singletons", "one class"]
        for turn, batch in enumerate([1, 2, 5, 9]):
            # Sizes, temperatures and kinds of labels take turns.
            size = (2, 16)[(turn + number + views) % 2]
            temperature = _TEMPERATURES[(turn + number // 2 + views) % 4]
            kind = kinds[(turn + number) % 4]
            kind = "multi-hot" if "overlap" in options else kind
            z, labels = _inputs(rng, name, kind, batch, views, size, options)
            given = _with_temperature(name, options, temperature)
            _check(name, given, z, labels)

    @pytest.mark.parametrize("case", _CAPPED, ids=_name)
    def test_of_capped_positives(self, case):
        name, options = case
        rng = np.random.default_rng(0)
        for views, kind in (1, "classes"), (2, "multi-hot"), (3, "classes"):
            z, labels = _inputs(rng, name, kind, 6, views, 4)
            temperature = _TEMPERATURES[views]
            _check(name, {**options, "temperature": temperature}, z, labels)


def _value_and_gradient(loss, z, labels, **arguments):
    """The loss and its gradient."""
    z = tf.convert_to_tensor(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z, labels, **arguments)
    gradient = tape.gradient(
        value, z, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return value.numpy(), tf.cast(gradient, tf.float32).numpy()


def _near(actual, expected, tolerance):
    """Within `tolerance` of the largest entry, and 0 where all are."""
    atol = tolerance * np.max(np.abs(expected)) + 1e-6
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


class TestGradients:
    @pytest.mark.parametrize("case", _CASES + _CAPPED, ids=_name)
    def test_of_the_loss(self, case):
        self._check(*case, views=2)

    @pytest.mark.parametrize("case", _SMALL_VIEWS, ids=_name)
    def test_with_small_views(self, case):
        """Anchors that are compared with the two large views only."""
        self._check(*case, views=2 + 3, small_views=3)

    def _check(self, name, options, views, **more):
        """Value and gradient are the oracle's; `more` goes to the loss."""
        rng = np.random.default_rng(10)
        kind = "multi-hot" if "overlap" in options else "classes"
        z, labels = _inputs(rng, name, kind, 4, views, 3, options)
        options = _with_temperature(name, options, 0.2)

        def oracle(x):
            return oracles.value(name, x, labels, **options, **more)

        loss = losses.build(name, **options)
        value, gradient = _value_and_gradient(loss, z, labels, **more)
        np.testing.assert_allclose(value, oracle(z), rtol=1e-4, atol=1e-5)
        _near(gradient, oracles.gradient(oracle, z), 1e-3)

    @pytest.mark.parametrize("name", ["supcon", "supcon_in", "sincere"])
    def test_overlap_of_one_class_each_is_the_plain_loss(self, name):
        rng = np.random.default_rng(11)
        z, labels = _inputs(rng, name, "classes", 9, 2, 4)
        plain = _value_and_gradient(losses.build(name), z, labels)
        loss = losses.build(name, **_JACCARD)
        for same in labels, np.eye(3, dtype=np.int32)[labels]:
            found = _value_and_gradient(loss, z, same)
            assert found[0] == plain[0] and (found[1] == plain[1]).all()


class TestGraphs:
    @pytest.mark.parametrize("name", [name for name, _ in _DEFAULTS])
    def test_batches_of_unknown_size_in_blocks(self, name):
        rng = np.random.default_rng(40)
        loss = losses.build(name)
        small = 1 if (name, {}) in _SMALL_VIEWS else 0
        more = {"small_views": 1} if small else {}
        blocks = {} if name == "cross_entropy" else {"block_size": 3}
        in_blocks = losses.build(name, **blocks)

        @tf.function(
            autograph=False,
            input_signature=[
                tf.TensorSpec([None, 2 + small, 4], tf.float32),
                tf.TensorSpec([None], tf.int64),
            ],
        )
        def value_and_gradient(z, labels):
            with tf.GradientTape() as tape:
                tape.watch(z)
                value = in_blocks(z, labels, **more)
            return value, tape.gradient(value, z)

        for batch in 4, 7:
            z, labels = _inputs(rng, name, "classes", batch, 2 + small, 4)
            value, gradient = value_and_gradient(z, labels)
            expected = _value_and_gradient(loss, z, labels, **more)
            np.testing.assert_allclose(value, expected[0], rtol=1e-5)
            _near(gradient, expected[1], 1e-5)


class TestMoCo:
    def _keys(self, rng, batch=4, views=2, size=6, queue=7):
        shapes = [(batch, views, size), (batch, views, size), (queue, size)]
        return [rng.normal(size=s).astype(np.float32) for s in shapes]

    @pytest.mark.parametrize(
        ("views", "temperature", "normalize"),
        [(1, 0.05, True), (2, 1.0, True), (2, 0.05, False), (3, 0.05, True)],
    )
    def test_values_and_gradients(self, views, temperature, normalize):
        rng = np.random.default_rng(views)
        queries, keys, queue = self._keys(rng, views=views)
        if not normalize:
            queries *= 0.1
        options = {"temperature": temperature, "normalize": normalize}
        for mask in None, rng.random(7) < 0.5, np.zeros(7, bool):
            given = {"keys": keys, "queue": queue, "queue_mask": mask}

            def oracle(x, given=given):
                return oracles.moco(x, **given, **options)

            values, counted = oracle(queries)
            expected = oracles.gradient(
                lambda x, oracle=oracle: oracles.reduce(*oracle(x)), queries
            )
            for block_size in None, 3:
                loss = losses.build("moco", block_size=block_size, **options)
                near = {"rtol": 1e-4, "atol": 1e-5}
                found = loss.per_anchor(queries, **given)
                np.testing.assert_allclose(found, values, **near)
                found, gradient = _value_and_gradient(
                    loss, queries, None, **given
                )
                mean = oracles.reduce(values, counted)
                np.testing.assert_allclose(found, mean, **near)
                _near(gradient, expected, 1e-3)

    def test_keys_and_queue_get_no_gradient(self):
        given = [*map(tf.constant, self._keys(np.random.default_rng(0)))]
        with tf.GradientTape() as tape:
            tape.watch(given)
            queries, keys, queue = given
            value = losses.build("moco")(queries, keys=keys, queue=queue)
        of_queries, *others = tape.gradient(value, given)
        assert np.max(np.abs(of_queries)) > 1e-3
        assert others == [None, None]


_SWD = {
    "swd_hypersphere": {"normalize": True, "scale": 1000.0},
    "swd_normal": {"normalize": False, "scale": 1.0},
    "swd_hypercube": {"normalize": False, "scale": 1.0},
}


@pytest.fixture
def draws(monkeypatch):
    """What SWD losses compared, newest last: (h, prior, directions)."""
    kept = []
    whole = generalized.sliced_wasserstein

    def keep(h, prior, directions, **options):
        kept.append((h, prior, directions))
        return whole(h, prior, directions, **options)

    monkeypatch.setattr(generalized, "sliced_wasserstein", keep)
    return kept


class TestSlicedWasserstein:
    @pytest.mark.parametrize(("views", "size"), [(1, 2), (2, 16), (3, 1)])
    @pytest.mark.parametrize(
        "options",
        [{}, {"normalization": "paper"}, {"weight": 0.5, "scale": 7.0}],
        ids=str,
    )
    @pytest.mark.parametrize("name", _SWD)
    def test_values_and_gradients(self, draws, name, options, size, views):
        rng = np.random.default_rng(size)
        z = rng.normal(size=[5, views, size]).astype(np.float32)
        loss = losses.build(name, **options)
        seed = tf.constant([1, 2])
        value = loss(z, seed=seed)
        _, prior, directions = (x.numpy() for x in draws[-1])
        assert prior.shape == (5 * views, size)
        np.testing.assert_allclose(
            directions.T @ directions, np.eye(size), atol=1e-5
        )
        options = {**_SWD[name], **options}
        np.testing.assert_allclose(
            value,
            oracles.swd(z, prior, directions, **options),
            rtol=1e-4,
            atol=1e-5,
        )
        if size == 1 and name == "swd_hypersphere":
            return  # Two points, and no gradient: ties.
        if size < 16:
            expected = oracles.gradient(
                lambda x: oracles.swd(x, prior, directions, **options), z
            )
            _, gradient = _value_and_gradient(loss, z, None, seed=seed)
            _near(gradient, expected, 1e-3)

    def test_priors(self, draws):
        z = np.ones([500, 2, 3], np.float32)
        for name in _SWD:
            losses.build(name)(z, seed=tf.constant([3, 4]))
        sphere, normal, cube = (prior.numpy() for _, prior, _ in draws)
        np.testing.assert_allclose(np.linalg.norm(sphere, axis=1), 1, rtol=1e-5)
        for drawn, deviation in (
            (sphere, 3**-0.5),
            (normal, 1.0),
            (cube, 3**-0.5),
        ):
            np.testing.assert_allclose(drawn.mean(0), 0, atol=0.15)
            np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.1)
        assert 0.95 < np.max(np.abs(cube)) <= 1
        assert np.max(np.abs(normal)) > 2


# ---- Inputs on which careless arithmetic fails -------------------------------

# Kinds in which some are equally far, so that a choice of one is arbitrary.
_TIES = ("identical", "zero vector", "all zero")
# Labels are ignored by those that need none.
_HARD = ("random", "one class", "singletons", "single image", "long", "short")


def _hard_inputs(kind, name):
    rng = np.random.default_rng(30)
    batch = 1 if kind == "single image" else 4
    z = rng.normal(size=[batch, 2, 3])
    labels = np.array([0, 1, 0, 2])[:batch]
    if kind == "one class":
        labels = np.full(batch, 3)
    elif kind == "singletons":
        labels = np.arange(batch)
    elif kind == "identical":
        z[:] = z[0, 0]
    elif kind == "zero vector":
        z[0, 0] = z[3, 1] = 0
    elif kind == "all zero":
        z[:] = 0
    elif kind == "long":
        z *= 1e3 / np.linalg.norm(z, axis=-1, keepdims=True)
    elif kind == "short":
        z *= 1e-3
    if name == "cross_entropy":
        labels = labels % 3
    return z.astype(np.float32), labels


def _check_hard(name, options, kind, z, labels):
    """The oracle's value within 1e-4, and a finite gradient."""
    loss = losses.build(name, **options)
    value, gradient = _value_and_gradient(loss, z, labels)
    exact = tf.cast(z, tf.float64).numpy()
    expected = oracles.value(name, exact, labels, **options)
    message = f"{name} {options} {kind} {z.dtype}"
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-4), message
    assert np.isfinite(gradient).all(), message


_HARD_CASES = [
    *_DEFAULTS,
    ("ntxent", {"negatives": "other_view"}),
    ("ntxent", {"denominator": "only_negatives", "beta": 1.0}),
    ("ntxent", {"tau_plus": 0.1}),
    ("supcon", {"denominator": "only_negatives"}),
    ("supcon", {"denominator": "one_positive", "positives_cap": 2}),
    ("supcon_in", {"denominator": "only_negatives"}),
    ("supcon_in", {"denominator": "one_positive"}),
    ("margin", {"mining": "semi_hard"}),
    ("nt_logistic", {"mining": "semi_hard"}),
    ("decoupled_ntxent", {"alignment": "similarity"}),
]


class TestHardInputs:
    @pytest.mark.parametrize(
        ("case", "kind"),
        [
            pytest.param(case, kind, id=f"{_name(case)}-{kind}")
            for case in _HARD_CASES
            for kind in _HARD + _TIES
            # Which one is semi-hard is arbitrary among equals.
            if case[1].get("mining") != "semi_hard" or kind not in _TIES
        ],
    )
    def test_float32(self, case, kind):
        name, options = case
        z, labels = _hard_inputs(kind, name)
        temperatures = (0.005, 0.01, 1.0) if kind == "random" else (0.005,)
        for temperature in temperatures:
            given = _with_temperature(name, options, temperature)
            _check_hard(name, given, kind, tf.constant(z), labels)

    @pytest.mark.parametrize("case", _HARD_CASES, ids=_name)
    def test_half_precision(self, case):
        name, options = case
        for kind, temperature in ("random", 1.0), ("long", 0.005):
            z, labels = _hard_inputs(kind, name)
            given = _with_temperature(name, options, temperature)
            _check_hard(name, given, kind, tf.cast(z, tf.bfloat16), labels)
