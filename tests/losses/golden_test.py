"""Losses and their gradients against the papers' golden values and identities.

The golden batch, its values and the identities are those of the losses'
reference sheet: eight unit vectors in the plane, two views of four images.
"""

import loss_oracles as oracles
import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import losses
from tf_contrastive.losses import contrastive_metrics, generalized

_ANGLES = np.deg2rad([[0, 12], [25, 41], [100, 131], [200, 216]])  # [B, V]
_GOLDEN = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # [B, V, 2]
_LABELS = np.array([0, 0, 1, 1])
# The batch as one view of eight images, in the order of the golden values.
_SINGLE = _GOLDEN.transpose(1, 0, 2).reshape(8, 1, 2)
_SINGLE_LABELS = np.tile(_LABELS, 2)


def _anchors(text):
    """Eight values, all of the first view first, as [B, V]."""
    return np.reshape([float(x) for x in text.split()], [2, 4]).T


_MEANS = [
    # (loss, options, mean over all anchors)
    ("ntxent", {}, 0.8302185926),
    # By the sums of exponentials in the codes of their authors; of the eight
    # anchors, the bound exp(-1 / t) holds for two, one and one.
    ("ntxent", {"denominator": "only_negatives"}, 0.1566957127),
    ("ntxent", {"tau_plus": 0.1}, 0.6210590892),
    ("ntxent", {"tau_plus": 0.05}, 0.7138915955),
    ("ntxent", {"beta": 1.0}, 1.2563800958),
    ("ntxent", {"beta": 0.5}, 1.1045688244),
    ("ntxent", {"beta": 1.0, "tau_plus": 0.1}, 1.1062072107),
    (
        "ntxent",
        {"beta": 1.0, "tau_plus": 0.1, "denominator": "only_negatives"},
        0.4532819343,
    ),
    ("supcon", {}, 1.5255794392),
    ("supcon_in", {}, 1.2872157938),
    ("sincere", {}, 0.5947817159),
    ("eps_supinfonce", {"epsilon": 0.1}, 0.5327865109),
    ("eps_supinfonce", {"epsilon": 0.25}, 0.4433183330),
    ("eps_supinfonce", {"epsilon": 0.5}, 0.3038998959),
    (
        "eps_supinfonce",
        {"epsilon": 0.125, "epsilon_in": "cosine"},
        0.4433183330,
    ),
    ("npairs", {"temperature": 1.0}, 1.7174435228),
    ("supcon", {"positives_cap": 1}, 0.3048958203),
    ("supcon", {"positives_cap": 2}, 1.1574965470),
    (
        "supcon",
        {"positives_cap": 1, "keep_dropped_positives": True},
        0.8302185926,
    ),
    (
        "supcon",
        {"positives_cap": 2, "keep_dropped_positives": True},
        1.3803787076,
    ),
    # The paper's, of size 2: 1000 * (0.0605404267 + 0.1 * 2.141052287).
    ("decoupled_ntxent", {"temperature": 1.0}, 274.6456554),
    (
        "decoupled_ntxent",
        {"alignment": "similarity", "weight": 0.5},
        0.4151092963,
    ),
    (
        "decoupled_ntxent",
        {"alignment": "similarity", "temperature": 1.0, "weight": 0.1},
        -0.7253543446,
    ),
]
_SUMS = [
    ("ntxent", {}, 6.6417487407),
    ("supcon", {}, 12.2046355136),
    ("supcon_in", {}, 10.2977263505),
]
_PER_ANCHOR = {
    "ntxent": (
        ".9907952194 1.1916816833 .8455201689 .3973254756"
        " 1.1160987955 1.1317009763 .6849992106 .2836272112"
    ),
    "supcon": (
        "1.1876471088 1.2195787100 2.3964227861 1.5558612223"
        " 1.1876357486 1.3271637127 1.5308731500 1.7994530751"
    ),
    "supcon_in": (
        "1.1708040966 1.2178613537 1.7599912554 1.1574768698"
        " 1.1831479533 1.3130261877 1.3242012595 1.1712173745"
    ),
    "sincere": (
        ".2083800713 .3228704887 1.9392996315 .3107254121"
        " .2364967243 .5502422542 .7087565182 .4814826273"
    ),
}
_OTHER_VIEW = {"negatives": "other_view"}
_SEMI_HARD = {"negatives": "other_view", "mining": "semi_hard"}
_NO_TEMPERATURE = ("margin", "triplet", "cross_entropy")
_FROM_FIRST_VIEW = [
    # (loss, options, mean over the anchors of the first view)
    ("ntxent", _OTHER_VIEW, 0.5393707569),
    ("nt_logistic", _OTHER_VIEW, 0.8590384005),
    (
        "nt_logistic",
        {**_OTHER_VIEW, "negative_reduction": "sum"},
        2.2917182035,
    ),
    ("nt_logistic", _SEMI_HARD, 1.2961696077),
    ("margin", {**_OTHER_VIEW, "margin": 0.0}, 0.0010923641),
    ("margin", {**_OTHER_VIEW, "margin": 0.4}, 0.0539617602),
    ("margin", {**_OTHER_VIEW, "margin": 0.8}, 0.1703872813),
    ("margin", {**_OTHER_VIEW, "margin": 1.6}, 0.5574951727),
    ("margin", {**_SEMI_HARD, "margin": 0.0}, 0.0),
    ("margin", {**_SEMI_HARD, "margin": 0.4}, 0.0586081884),
    ("margin", {**_SEMI_HARD, "margin": 0.8}, 0.3078847518),
    ("margin", {**_SEMI_HARD, "margin": 1.6}, 0.9986599889),
]


def _options(name, options):
    if name in _NO_TEMPERATURE:
        return options
    return {"temperature": 0.5, **options}


def _close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def _exact(actual, expected):
    """Up to the ten decimals in which the golden values stand."""
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)


def _anchor_gradient(name, z, labels, index, **options):
    """Gradient of anchor `index`'s value with respect to its own vector."""
    z = tf.constant(z, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = losses.build(name, **options).per_anchor(z, labels)[index]
    return tf.convert_to_tensor(tape.gradient(value, z))[index].numpy()


class TestGoldenValues:
    @pytest.mark.parametrize(("name", "options", "expected"), _MEANS)
    def test_mean(self, name, options, expected):
        options = _options(name, options)
        _exact(oracles.value(name, _GOLDEN, _LABELS, **options), expected)
        _close(losses.build(name, **options)(_GOLDEN, _LABELS), expected)

    @pytest.mark.parametrize(("name", "options", "expected"), _SUMS)
    def test_sum(self, name, options, expected):
        options = {**_options(name, options), "reduction": "sum"}
        _exact(oracles.value(name, _GOLDEN, _LABELS, **options), expected)
        _close(losses.build(name, **options)(_GOLDEN, _LABELS), expected)

    @pytest.mark.parametrize("name", _PER_ANCHOR)
    def test_per_anchor(self, name):
        expected = _anchors(_PER_ANCHOR[name])
        values, counted = oracles.per_anchor(
            name, _GOLDEN, _LABELS, temperature=0.5
        )
        assert counted.all()
        _exact(values, expected)
        loss = losses.build(name, temperature=0.5)
        _close(loss.per_anchor(_GOLDEN, _LABELS), expected)

    @pytest.mark.parametrize(("name", "options", "expected"), _FROM_FIRST_VIEW)
    def test_from_the_first_view(self, name, options, expected):
        options = _options(name, options)
        values, _ = oracles.per_anchor(name, _GOLDEN, _LABELS, **options)
        _exact(values[:, 0].mean(), expected)
        loss = losses.build(name, **options)
        _close(np.mean(loss.per_anchor(_GOLDEN)[:, 0]), expected)

    def test_from_the_second_view(self):
        options = {"temperature": 0.5, **_OTHER_VIEW}
        values, _ = oracles.ntxent(_GOLDEN, **options)
        _exact(values[:, 1].mean(), 0.5087139583)
        loss = losses.build("ntxent", **options)
        _close(np.mean(loss.per_anchor(_GOLDEN)[:, 1]), 0.5087139583)
        _close(loss(_GOLDEN), (0.5393707569 + 0.5087139583) / 2)

    @pytest.mark.parametrize(
        ("reduction", "expected"),
        [("mean", 0.7066497604), ("sum", 2.8265990417)],
    )
    def test_npairs_of_one_view(self, reduction, expected):
        z = _GOLDEN[:, :1]
        options = {"temperature": 1.0, "reduction": reduction}
        _exact(oracles.value("npairs", z, _LABELS, **options), expected)
        _close(losses.build("npairs", **options)(z, _LABELS), expected)

    @pytest.mark.parametrize(
        ("include_self", "distribution"),
        [(True, 3.1230569848), (False, 2.7091377393)],
    )
    def test_align_uniform(self, include_self, distribution):
        options = {"temperature": 0.5, "include_self": include_self}
        _exact(oracles.align(_GOLDEN), 0.0605404267)
        _exact(oracles.uniform(_GOLDEN, **options), distribution)
        for weight in 0.0, 1.0, 3.0:
            loss = losses.build("align_uniform", weight=weight, **options)
            _close(loss(_GOLDEN), 0.0605404267 + weight * distribution)

    def test_contrastive_accuracy_and_entropy(self):
        _exact(oracles.contrastive_accuracy(_GOLDEN), 0.75)
        _exact(
            oracles.contrastive_entropy(_GOLDEN, temperature=0.5), 0.8635783138
        )
        # The package's is the mean of both directions.
        other = oracles.contrastive_accuracy(_GOLDEN[:, ::-1])
        measured = contrastive_metrics.contrastive_task(
            _GOLDEN, temperature=0.5
        )
        _close(measured["one_view_accuracy"], (0.75 + other) / 2)

    @pytest.mark.parametrize(
        ("degrees", "normalization", "expected"),
        [
            (0, "paper", 0.875),
            (0, "mean", 0.5833333333),
            (30, "paper", 1.4297277717),
            (30, "mean", 0.9531518478),
        ],
    )
    def test_sliced_wasserstein(self, degrees, normalization, expected):
        h = [[1, 2], [0, -1], [-2, 0.5]]
        prior = [[0.5, 0], [-1, 1], [2, -1]]
        c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
        _exact(
            oracles.sliced_wasserstein(
                h, prior, [[c, -s], [s, c]], normalization
            ),
            expected,
        )
        divisor = {"paper": 2 * 2, "mean": 3 * 2}[normalization]
        h, prior, w = (
            tf.constant(x, tf.float32) for x in (h, prior, [[c, -s], [s, c]])
        )
        _close(generalized.sliced_wasserstein(h, prior, w) / divisor, expected)


class TestGoldenGradients:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("supcon", [-0.1550600550, -0.0432466000]),
            ("supcon_in", [-0.1881780179, 0.0214359727]),
        ],
    )
    def test_of_an_anchor(self, name, expected):
        def value(z):
            values, _ = oracles.per_anchor(
                name, z, _LABELS, temperature=0.5, normalize=False
            )
            return values[0, 0]

        np.testing.assert_allclose(
            oracles.central_differences(value, _GOLDEN)[0, 0],
            expected,
            rtol=1e-7,
        )
        actual = _anchor_gradient(
            name, _GOLDEN, _LABELS, (0, 0), temperature=0.5, normalize=False
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-4)

    def test_through_the_normalisation(self):
        w = _GOLDEN.copy()
        w[0, 0] *= 2.5
        actual = _anchor_gradient("supcon", w, _LABELS, (0, 0), temperature=0.5)
        np.testing.assert_allclose(
            actual, [0, -0.01729864], rtol=1e-4, atol=1e-7
        )

    def test_of_one_pair_of_sincere(self):
        # Images 0 and 1 are the only ones of their class: one positive.
        kept = [0, 1, 2, 3, 6, 7]
        actual = _anchor_gradient(
            "sincere",
            _SINGLE[kept],
            _SINGLE_LABELS[kept],
            (0, 0),
            temperature=0.5,
            normalize=False,
        )
        np.testing.assert_allclose(
            actual, [-0.4845503081, 0.0454987126], rtol=1e-4
        )

    def test_of_one_pair_of_supcon(self):
        # One positive is kept; the others stay in its denominator.
        actual = _anchor_gradient(
            "supcon",
            _SINGLE,
            _SINGLE_LABELS,
            (0, 0),
            temperature=0.5,
            normalize=False,
            positives_cap=1,
            keep_dropped_positives=True,
        )
        np.testing.assert_allclose(
            actual, [-0.2082323168, -0.0307571355], rtol=1e-4
        )


def _random(seed, batch=6, views=2, dimensions=8, classes=3):
    """Projections [B, V, P] of different lengths, and labels [B]."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=[batch, views, dimensions])
    z *= rng.uniform(0.5, 2, size=[batch, views, 1])
    return z, rng.permutation(np.arange(batch) % classes)


def _unit(seed, **sizes):
    w, labels = _random(seed, **sizes)
    return oracles.normalise(w), labels


def _parts(z, labels, index):
    """An anchor's positives [|P|, P] and negatives [|N|, P]."""
    same = oracles.same_class(labels)
    positives, negatives = oracles.split(*index, same, z.shape[1])
    return (
        np.array([z[k] for k in positives]),
        np.array([z[k] for k in negatives]),
    )


def _softmax(x):
    weights = np.exp(x - np.max(x))
    return weights / weights.sum()


class TestClosedFormGradients:
    """SC Eq 3 to 14, SI Eq 13 and SR's table, of an anchor alone."""

    @pytest.mark.parametrize("temperature", [0.1, 0.5])
    @pytest.mark.parametrize("name", ["supcon", "supcon_in"])
    def test_supcon(self, name, temperature):
        w, labels = _random(0)
        z = oracles.normalise(w)
        index = (0, 0)
        positives, negatives = _parts(z, labels, index)
        anchor = z[index]
        s_p = positives @ anchor / temperature
        s_n = negatives @ anchor / temperature
        shares = _softmax(np.concatenate([s_p, s_n]))
        p_p, p_n = np.split(shares, [len(s_p)])
        if name == "supcon":
            x = np.full(len(s_p), 1 / len(s_p))  # Eq 7
        else:
            x = _softmax(s_p)  # Eq 5
        # Eq 3, 6, 8 and 9.
        expected = ((p_p - x) @ positives + p_n @ negatives) / temperature
        options = {"temperature": temperature}
        actual = _anchor_gradient(
            name, z, labels, index, normalize=False, **options
        )
        _near(actual, expected)
        # Eq 12 to 14.
        norm = np.linalg.norm(w[index])
        tangent_p = positives - np.outer(positives @ anchor, anchor)
        tangent_n = negatives - np.outer(negatives @ anchor, anchor)
        expected = (p_p - x) @ tangent_p + p_n @ tangent_n
        actual = _anchor_gradient(name, w, labels, index, **options)
        _near(actual, expected / (temperature * norm))

    @pytest.mark.parametrize("temperature", [0.1, 0.5])
    @pytest.mark.parametrize("epsilon", [0.0, 0.5])
    def test_sincere(self, epsilon, temperature):
        z, labels = _unit(0)
        index = (0, 0)
        positives, negatives = _parts(z, labels, index)
        expected = np.zeros(z.shape[-1])
        for positive in positives:
            among = np.vstack([positive, negatives])
            logits = among @ z[index] / temperature
            # Epsilon lowers the positive among the candidates (SI Eq 15).
            logits[0] -= epsilon
            q = _softmax(logits)
            q[0] -= 1
            expected += q @ among / temperature / len(positives)
        options = {"temperature": temperature, "normalize": False}
        if epsilon:
            name, options["epsilon"] = "eps_supinfonce", epsilon
        else:
            name = "sincere"
        _near(_anchor_gradient(name, z, labels, index, **options), expected)

    def test_of_losses_with_one_positive(self):
        """SR Table 2, whose losses and gradients are printed negated."""
        z, _ = _unit(0)
        index, temperature = (0, 0), 0.2
        anchor, positive = z[index], z[0, 1]
        negatives = np.delete(z[:, 1], 0, axis=0)
        s_p, s_n = positive @ anchor, negatives @ anchor
        share = _softmax(np.append(s_p, s_n) / temperature)
        sigmoid = 1 / (1 + np.exp(-s_n / temperature))
        inside = s_p - s_n < 0.4
        expected = {
            "ntxent": (share[1:] @ negatives - (1 - share[0]) * positive)
            / temperature,
            "nt_logistic": (
                sigmoid @ negatives / len(negatives)
                - positive / (1 + np.exp(s_p / temperature))
            )
            / temperature,
            "margin": inside @ (negatives - positive) / len(negatives),
        }
        assert inside.any()
        for name in expected:
            options = {"negatives": "other_view", "normalize": False}
            if name == "margin":
                options["margin"] = 0.4
            else:
                options["temperature"] = temperature
            actual = _anchor_gradient(name, z, None, index, **options)
            _near(actual, expected[name])


def _near(actual, expected):
    """Within 1e-4 of the largest entry."""
    np.testing.assert_allclose(
        actual, expected, rtol=1e-4, atol=1e-4 * np.max(np.abs(expected))
    )


def _gradient(loss, z, labels=None):
    z = tf.constant(z, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z, labels)
    return tf.convert_to_tensor(tape.gradient(value, z)).numpy()


def _value(name, z, labels=None, **options):
    return losses.build(name, **options)(z, labels).numpy()


# (name, options) of losses over a batch of two views, for the invariances.
_INVARIANT = [
    ("ntxent", {}),
    ("supcon", {}),
    ("supcon_in", {}),
    ("sincere", {}),
    ("eps_supinfonce", {}),
    ("triplet", {}),
    ("margin", {}),
    ("nt_logistic", {}),
    ("decoupled_ntxent", {"scale": 10.0}),
    ("align_uniform", {}),
]


class TestIdentities:
    @pytest.mark.parametrize("name", ["supcon", "supcon_in", "sincere"])
    def test_images_without_labels_make_ntxent(self, name):
        z, _ = _random(0)
        loss = losses.build(name, temperature=0.5, unlabelled="own_views")
        expected = losses.build("ntxent", temperature=0.5)(z)
        _close(loss(z, np.full(len(z), -1)), expected)
        with pytest.raises(ValueError, match="from 0 to 2147483647"):
            losses.build(name)(z, np.full(len(z), -1))
        with pytest.raises(ValueError, match="or -1 for an image without"):
            loss(z, np.full(len(z), -2))

    def test_classes_of_one_image_make_ntxent(self):
        z, _ = _random(0)
        labels = np.arange(len(z))
        expected = losses.build("ntxent", temperature=0.2).per_anchor(z)
        for name in "supcon", "supcon_in", "sincere":
            loss = losses.build(name, temperature=0.2)
            _close(loss.per_anchor(z, labels), expected)

    def test_one_positive_makes_supcon_and_sincere_one(self):
        z, labels = _random(0, batch=8, views=1, classes=4)
        sincere = losses.build("sincere", temperature=0.5)
        expected = sincere.per_anchor(z, labels)
        assert np.min(expected) > 0.01
        for name in "supcon", "supcon_in":
            loss = losses.build(name, temperature=0.5)
            _close(loss.per_anchor(z, labels), expected)

    @pytest.mark.parametrize(("name", "options"), _INVARIANT)
    def test_length_does_not_matter(self, name, options):
        w, labels = _random(2)
        lengths = np.random.default_rng(3).uniform(0.1, 10, size=[6, 2, 1])
        loss = losses.build(name, **options)
        _close(loss(lengths * w, labels), loss(w, labels))
        gradient = _gradient(loss, w, labels)
        assert np.max(np.abs(gradient)) > 1e-3
        # The gradient stands at right angles on its vector.
        assert np.max(np.abs(np.sum(gradient * w, -1))) < 1e-5
        np.testing.assert_allclose(
            _gradient(loss, lengths * w, labels),
            gradient / lengths,
            rtol=1e-3,
            atol=1e-5,
        )

    @pytest.mark.parametrize("size", [8, 64])
    def test_decoupled_is_the_papers(self, size):
        z, _ = _random(0, dimensions=size)
        decoupled = losses.build("decoupled_ntxent")
        # Table 1, row 1, with the numbers of appendix A, but without i itself.
        of_table = losses.build(
            "align_uniform",
            temperature=1.0,
            weight=0.1,
            scale=1000.0,
            include_self=False,
        )
        np.testing.assert_allclose(decoupled(z), of_table(z), rtol=1e-5)
        # Equation 5 has the same optimum with another weight.
        printed = losses.build(
            "decoupled_ntxent", alignment="similarity", weight=0.1 * size / 2
        )
        expected = 2000 / size * (1 + printed(z))
        np.testing.assert_allclose(decoupled(z), expected, rtol=1e-5)

    @pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
    def test_decoupled_by_its_temperature(self, temperature):
        z, _ = _random(0)
        decoupled = losses.build(
            "decoupled_ntxent",
            alignment="similarity",
            temperature=temperature,
            weight=temperature,
        )
        ntxent = losses.build("ntxent", temperature=temperature)
        np.testing.assert_allclose(
            decoupled.per_anchor(z),
            temperature * ntxent.per_anchor(z),
            rtol=1e-4,
            atol=1e-5,
        )

    def test_floor_of_a_training_batch(self):
        # 512 images of two classes: SI Table 4 ends at 6.28.
        labels = np.arange(512) % 2
        z = np.repeat(np.where(labels, 1.0, -1.0)[:, None, None], 2, axis=1)
        value = _value("supcon", z, labels, temperature=0.1)
        np.testing.assert_allclose(value, 6.236, atol=5e-4)

    @pytest.mark.parametrize("batch", [2, 32])
    def test_before_training(self, batch):
        expected = np.log(2 * batch - 1)
        collapsed = np.ones([batch, 2, 4])
        _close(_value("ntxent", collapsed, temperature=0.1), expected)
        orthogonal = np.eye(2 * batch).reshape(batch, 2, -1)
        _close(_value("ntxent", orthogonal, temperature=0.1), expected)
