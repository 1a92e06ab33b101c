"""Separation, bounds, spread and pictures of representations."""

import itertools
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import small
import tensorflow as tf
from sklearn import datasets as sklearn_datasets

from tf_contrastive import (
    datasets,
    encoders,
    errors,
    evaluation,
    exporting,
    heads,
    losses,
)
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import (
    bounds,
    contrastive,
    hypersphere,
    plots,
    prepared,
    projected,
    separation,
    subject,
)
from tf_contrastive.losses import metrics
from tf_contrastive.papers.figures import kmeans, spectra, transformations, tsne

_ROOT = Path(__file__).resolve().parents[1]
_RNG = np.random.RandomState(0)


def _clouds(n, seed, classes=4, spread=0.6, size=8):
    centers = np.random.RandomState(9).normal(size=(classes, size))
    random = np.random.RandomState(seed)
    labels = random.randint(classes, size=n)
    rows = centers[labels] + spread * random.normal(size=(n, size))
    return rows.astype(np.float32), labels


# ---- Separation --------------------------------------------------------------


def _nearest_by_hand(train, train_labels, test, labels):
    def cosine(x, y):
        return x @ y / (np.linalg.norm(x) * np.linalg.norm(y))

    pairs = [
        [
            (cosine(t, x), own == label)
            for x, own in zip(train, train_labels, strict=True)
        ]
        for t, label in zip(test, labels, strict=True)
    ]
    target = [max((c for c, own in row if own)) for row in pairs]
    noise = [max((c for c, own in row if not own)) for row in pairs]
    return np.array(target), np.array(noise)


@pytest.mark.parametrize("blocks", [(1024, 8192), (7, 11)])
def test_margins_equal_the_loops(monkeypatch, blocks):
    monkeypatch.setattr(separation, "_QUERY_BLOCK", blocks[0])
    monkeypatch.setattr(separation, "_BANK_BLOCK", blocks[1])
    four = *_clouds(60, 0), *_clouds(40, 1)
    target, noise = _nearest_by_hand(*four)
    found = evaluation.separation_margin(*four)
    assert set(found) == {"mean", "per_class", "target", "noise"}
    np.testing.assert_allclose(found["target"], target, atol=1e-6)
    np.testing.assert_allclose(found["noise"], noise, atol=1e-6)
    labels = four[-1]
    expected = [
        np.median(target[labels == c]) - np.median(noise[labels == c])
        for c in range(4)
    ]
    np.testing.assert_allclose(found["per_class"], expected, atol=1e-6)
    assert found["mean"] == pytest.approx(np.mean(expected), abs=1e-6)


def test_orthogonal_classes_have_the_margin_one():
    axes = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    labels = np.repeat(np.arange(3), 5)
    found = evaluation.separation_margin(axes, labels, 7 * axes, labels)
    assert found["mean"] == pytest.approx(1.0)
    # Classes that share every axis are not told apart.
    mixed = np.arange(15) % 2
    found = evaluation.separation_margin(axes, mixed, axes, mixed)
    assert found["mean"] == pytest.approx(0.0)


def test_absent_classes_leave_the_margin():
    train, train_labels = _clouds(80, 0)
    test, labels = _clouds(50, 1)
    # Class 1 is not in test; class 6 of test is not in train.
    labels[labels == 1] = 6
    found = evaluation.separation_margin(train, train_labels, test, labels)
    assert len(found["per_class"]) == 7
    assert np.isfinite(found["per_class"]).tolist() == [
        *(True, False, True, True),
        *(False, False, False),
    ]
    np.testing.assert_array_equal(np.isnan(found["target"]), labels == 6)
    assert not np.isnan(found["noise"]).any()
    assert found["mean"] == np.nanmean(found["per_class"])


def test_margins_of_nothing_to_compare_are_refused():
    rows, labels = _clouds(20, 0)
    with pytest.raises(errors.UserError, match="hold class 3 alone: a margin"):
        evaluation.separation_margin(rows, 0 * labels + 3, rows, labels)
    with pytest.raises(errors.UserError, match="no class of test_labels is in"):
        evaluation.separation_margin(rows, labels, rows, labels + 9)
    with pytest.raises(errors.UserError, match="20 rows hold NaN"):
        bad = rows.copy()
        bad[3, 2] = np.nan
        evaluation.separation_margin(bad, labels, rows, labels)
    with pytest.raises(errors.UserError, match="8 features and"):
        evaluation.separation_margin(rows, labels, rows[:, :3], labels)
    with pytest.raises(errors.UserError, match="train_labels hold -1"):
        evaluation.separation_margin(rows, 0 * labels - 1, rows, labels)


def test_margins_take_little_memory():
    train = _RNG.normal(size=(20_000, 16)).astype(np.float32)
    test = _RNG.normal(size=(4000, 16)).astype(np.float32)
    labels = _RNG.randint(10, size=20_000)
    tracemalloc.start()
    evaluation.separation_margin(train, labels, test, labels[:4000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # All cosines at once are 320 MB.


def test_histograms_are_shares():
    target = np.array([0.95, 1.0000001, 0.5, np.nan, -0.7])
    found = evaluation.neighbor_histograms(target, np.full(5, np.nan))
    assert len(found["edges"]) == 101
    assert found["target"].sum() == pytest.approx(1)
    assert found["target"][0] == found["target"][-1] == 0.25
    assert found["target_median"] == pytest.approx(0.725)
    assert found["noise"].sum() == 0
    assert np.isnan(found["noise_median"])


# ---- Bounds ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "count", "loss"),
    [(0.5, 10, 2.290), (1.0, 10, 1.973), (1.0, 100, 4.117), (2.0, 1000, 4.947)],
)
def test_the_bound_of_two_gaussians(mean, count, loss):
    """p+ = N(mean, 1), p- = N(0, 1), whose symmetric divergence is mean^2."""
    random = np.random.RandomState(0)
    rounds = 4_000_000 // count

    def score(x):
        return mean * x - mean**2 / 2

    target = score(random.normal(mean, 1.0, size=rounds))
    noise = score(random.normal(0.0, 1.0, size=(rounds, count)))
    found = bounds.density_ratio_bound(target, noise)
    assert np.log(count) - found == pytest.approx(loss, abs=0.03)
    assert 0 < found < mean**2
    # Any other score tells less.
    assert bounds.density_ratio_bound(2 * target, 2 * noise) < found


def test_the_bound_is_log_noise_less_sincere():
    z = _RNG.normal(size=(7, 2, 4))
    labels = np.array([0, 1, 0, 2, 1, 0, 3])
    found = evaluation.kl_lower_bound(z, labels, 0.3)
    task = metrics.contrastive_task(z, labels, temperature=0.3)
    assert found == pytest.approx(float(task["kl_lower_bound"]), rel=1e-5)
    loss = losses.build("sincere", temperature=0.3).per_anchor(z, labels)
    others = 2 * np.array([4, 5, 4, 6, 5, 4, 6])[:, np.newaxis]
    assert found == pytest.approx(np.mean(np.log(others) - loss), rel=1e-5)
    raw = evaluation.kl_lower_bound(z, labels, 0.3, normalize=False)
    assert raw != pytest.approx(found, rel=0.01)


def test_the_bound_of_perfect_projections_is_that_of_the_noise():
    z = np.repeat(np.eye(4)[:, np.newaxis], 2, axis=1)
    found = evaluation.kl_lower_bound(z, np.arange(4), 0.02)
    assert found == pytest.approx(np.log(6), abs=1e-4)
    # One point tells nothing: the loss is that of guessing, ln 7.
    same = evaluation.kl_lower_bound(np.ones((4, 2, 3)), np.arange(4), 0.02)
    assert same == pytest.approx(np.log(6) - np.log(7), abs=1e-4)


@pytest.mark.parametrize(
    ("z", "labels", "temperature", "message"),
    [
        (np.ones([4, 2]), [0, 1, 0, 1], 0.1, "shape \\[4, 2\\]: give \\[im"),
        (np.ones([4, 2, 3]), [0, 0, 0, 0], 0.1, "no image has both another"),
        (np.ones([3, 1, 3]), [0, 1, 2], 0.1, "no image has both another"),
        (np.ones([2, 2, 3]), [0, 1], 0.0, "temperature=0.0: must be above 0"),
        (np.full([2, 2, 3], np.nan), [0, 1], 0.1, "4 of 4 rows hold NaN"),
        (np.ones([2, 2, 3]), [0, -1], 0.1, "labels hold -1"),
        (np.ones([2, 2, 3]), [0], 0.1, "one label for each of the 2"),
    ],
)
def test_what_has_no_bound_is_refused(z, labels, temperature, message):
    with pytest.raises(errors.UserError, match=message):
        evaluation.kl_lower_bound(z, np.array(labels), temperature)
    with pytest.raises(errors.UserError, match="give scores"):
        bounds.density_ratio_bound([1.0], [[]])
    with pytest.raises(errors.UserError, match="hold NaN"):
        bounds.density_ratio_bound([1.0], [[np.nan]])


# ---- The contrastive task ----------------------------------------------------


def _task_by_hand(z, temperature):
    hits, entropies = [], []
    for i, v in itertools.product(range(len(z)), range(z.shape[1])):
        other = z[:, (v + 1) % z.shape[1]]
        cosines = [
            z[i, v] @ c / np.linalg.norm(z[i, v]) / np.linalg.norm(c)
            for c in other
        ]
        e = np.exp(np.array(cosines) / temperature)
        p = e / e.sum()
        hits.append(np.argmax(cosines) == i)
        entropies.append(-(p * np.log(p)).sum())
    return np.mean(hits), np.mean(entropies)


@pytest.mark.parametrize("views", [2, 3])
def test_the_task_equals_the_loops(views):
    first = _RNG.normal(size=(40, 1, 5))
    z = first + 0.8 * _RNG.normal(size=(40, views, 5))
    accuracy, entropy = _task_by_hand(z, 0.2)
    found = evaluation.contrastive_accuracy(z, 0.2)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["entropy"] == pytest.approx(entropy, rel=1e-5)
    if views == 2:
        task = metrics.contrastive_task(z, temperature=0.2)
        assert found["accuracy"] == pytest.approx(task["one_view_accuracy"])


def test_the_task_in_blocks_and_batches(monkeypatch):
    z = _RNG.normal(size=(60, 1, 5)) + 0.5 * _RNG.normal(size=(60, 2, 5))
    whole = evaluation.contrastive_accuracy(z, 0.2)
    monkeypatch.setattr(contrastive, "_BLOCK", 7)
    blocks = evaluation.contrastive_accuracy(z, 0.2)
    assert blocks["accuracy"] == whole["accuracy"]
    assert blocks["entropy"] == pytest.approx(whole["entropy"])
    # Of each image by itself, in its place.
    assert blocks["correct"].tolist() == whole["correct"].tolist()
    assert whole["correct"].mean() == pytest.approx(whole["accuracy"])
    swapped = z.copy()
    swapped[[3, 50]] = z[[50, 3]]
    again = evaluation.contrastive_accuracy(swapped, 0.2)["correct"]
    assert again[[50, 3]].tolist() == whole["correct"][[3, 50]].tolist()
    # Among fewer, the right one is found more often.
    fewer = evaluation.contrastive_accuracy(z, 0.2, batch_size=6)
    assert fewer["accuracy"] > whole["accuracy"]
    assert fewer["entropy"] < np.log(6) < np.log(60)


def test_the_task_s_ends():
    same = evaluation.contrastive_accuracy(np.ones([10, 2, 3]), 0.1)
    assert same["accuracy"] == 0.0
    assert same["entropy"] == pytest.approx(np.log(10))
    apart = np.repeat(np.eye(10)[:, np.newaxis], 2, axis=1)
    sure = evaluation.contrastive_accuracy(apart, 0.01)
    assert sure["accuracy"] == 1.0
    assert sure["entropy"] == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(errors.UserError, match="shape \\[10, 1, 3\\]: give"):
        evaluation.contrastive_accuracy(np.ones([10, 1, 3]), 0.1)
    with pytest.raises(errors.UserError, match="temperature=0: must be above"):
        evaluation.contrastive_accuracy(np.ones([10, 2, 3]), 0)


# ---- Spread ------------------------------------------------------------------


def test_alignment_and_uniformity_equal_the_loops(monkeypatch):
    monkeypatch.setattr(hypersphere, "_BLOCK", 7)
    z = _RNG.normal(size=(30, 3, 4))
    unit = z / np.linalg.norm(z, axis=-1, keepdims=True)
    pairs = [
        ((x[a] - x[b]) ** 2).sum()
        for x in unit
        for a, b in itertools.permutations(range(3), 2)
    ]
    assert evaluation.alignment(z) == pytest.approx(np.mean(pairs))
    rows = unit[:, 0]
    pairs = [
        np.exp(-2 * ((rows[a] - rows[b]) ** 2).sum())
        for a, b in itertools.permutations(range(30), 2)
    ]
    found = evaluation.uniformity(z[:, 0])
    assert found == pytest.approx(np.log(np.mean(pairs)), rel=1e-5)
    assert evaluation.uniformity(np.ones([9, 3])) == pytest.approx(0, abs=1e-6)
    with pytest.raises(errors.UserError, match=r"1 row\(s\): give at least 2"):
        evaluation.uniformity(np.ones([1, 3]))


@pytest.mark.parametrize("shape", [(50, 6), (6, 50)])
def test_effective_rank_is_that_of_singular_values(shape):
    x = (_RNG.normal(size=shape) * np.arange(1, shape[1] + 1)).astype("f")
    x += 5.0
    found = evaluation.effective_rank(x)
    expected = float(metrics.effective_rank(tf.constant(x)))
    assert found == pytest.approx(expected, rel=1e-3)
    assert evaluation.effective_rank(np.ones([5, 3])) == 1.0


def test_projections_of_a_sphere_are_those_of_its_marginal():
    sphere = _RNG.normal(size=(4000, 16))
    found = evaluation.random_projections(sphere, 16)
    assert found["projections"].shape == (4000, 16)
    # Orthogonal directions: lengths stay.
    lengths = np.linalg.norm(found["projections"], axis=1)
    np.testing.assert_allclose(lengths, 1.0, rtol=1e-4)
    # The 99.9 % quantile of the distance, for one direction, is 1.95 / sqrt(n).
    assert found["ks_prior"].max() < 2.5 / np.sqrt(4000)
    half = 15 / 2
    theirs = scipy.stats.kstest(
        found["projections"][:, 3],
        lambda x: scipy.stats.beta.cdf((x + 1) / 2, half, half),
    )
    assert found["ks_prior"][3] == pytest.approx(theirs.statistic, abs=1e-4)
    # A coordinate has the excess kurtosis -6 / (d + 2).
    assert found["kurtosis"].mean() == pytest.approx(-6 / 18, abs=0.1)


def test_clusters_are_far_from_a_sphere():
    rows, _ = _clouds(2000, 0, spread=0.05)
    found = evaluation.random_projections(rows, 8)
    assert found["ks_prior"].mean() > 0.15
    assert found["ks_normal"].mean() > 0.1
    normal = evaluation.random_projections(
        _RNG.normal(size=(4000, 8)), 3, normalize=False
    )
    assert normal["ks_prior"].max() < 0.05
    wide = evaluation.random_projections(
        9 * _RNG.normal(size=(4000, 8)), 3, normalize=False
    )
    assert wide["ks_prior"].min() > 0.3
    assert wide["ks_normal"].max() < 0.05
    point = evaluation.random_projections(np.ones([9, 4]), 99)
    assert point["projections"].shape == (9, 4)
    assert np.isfinite(point["ks_normal"]).all()


# ---- Spectra -----------------------------------------------------------------


def test_a_spectrum_s_values_and_shares():
    values = np.array([8.0, 4.0, 2.0, 1.0, 1.0])
    q, _ = np.linalg.qr(_RNG.normal(size=(5, 5)))
    found = evaluation.spectrum(q @ np.diag(-values) @ q.T)
    np.testing.assert_allclose(found["eigenvalues"], values, atol=1e-9)
    np.testing.assert_allclose(found["singular_values"], values, atol=1e-9)
    assert found["shares"] == {1: pytest.approx(0.5)}
    # A rotation's eigenvalues are complex, of magnitude 1.
    turned = evaluation.spectrum(np.array([[0.0, -1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(turned["eigenvalues"], 1.0)
    assert turned["effective_rank"] == pytest.approx(2.0)
    wide = evaluation.spectrum(np.ones([3, 7]))
    assert wide["eigenvalues"] is None
    assert wide["effective_rank"] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(errors.UserError, match="hold NaN or infinity"):
        evaluation.spectrum(np.full([2, 2], np.nan))


def test_a_linear_map_is_found_by_what_it_does():
    tf.keras.utils.set_random_seed(1)
    head = heads.build("linear", output=5)
    head(_RNG.normal(size=(64, 7)).astype("f") * 3 + 1, training=True)
    found = spectra.linear_map(head, 7)
    dense, norm = head.layers
    scale = (norm.moving_variance + norm.epsilon) ** -0.5
    np.testing.assert_allclose(
        found, dense.kernel * (norm.gamma * scale), rtol=1e-4, atol=1e-6
    )
    mlp = heads.build("mlp", output=5)
    mlp(np.ones([4, 7], "f"))
    assert spectra.linear_map(mlp, 7) is None


# ---- Transformations ---------------------------------------------------------


def _photographs(count=64, side=16):
    china = sklearn_datasets.load_sample_image("china.jpg") / np.float32(255)
    random = np.random.RandomState(4)
    corners = random.randint(0, 380, size=(count, 2))
    return np.stack([china[y : y + side, x : x + side] for y, x in corners])


def test_transformations_do_what_their_class_says():
    images = _photographs()
    extra = np.concatenate([images, np.full_like(images[..., :1], 0.7)], -1)
    batches = [(extra[:40], None), (extra[40:], None)]
    for name, task in transformations.TASKS.items():
        made, kinds = map(
            np.concatenate,
            zip(*transformations.transformed(batches, name, 0), strict=True),
        )
        assert made.shape == extra.shape
        assert (made[..., 3] == np.float32(0.7)).all()
        shares = np.bincount(kinds, minlength=len(task.shares)) / len(kinds)
        np.testing.assert_allclose(shares, task.shares, atol=0.17)
        np.testing.assert_array_equal(made[kinds == 0], extra[kinds == 0])
        for kind in range(1, len(task.shares)):
            rows = kinds == kind
            distance = np.abs(made[rows] - extra[rows]).mean(axis=(1, 2, 3))
            assert (distance > 0).mean() > 0.9, name
        if name == "rotation":
            for image, before, kind in zip(made, extra, kinds, strict=True):
                np.testing.assert_array_equal(image, np.rot90(before, kind))
        if name == "color":
            spread = np.ptp(made[..., :3], axis=-1).max(axis=(1, 2))
            np.testing.assert_array_equal(spread < 1e-6, kinds == 1)
        # Drawn by the seed and an image's place, not by the batches.
        again = [
            x for x, _ in transformations.transformed([(extra, 0)], name, 0)
        ]
        np.testing.assert_allclose(again[0], made, atol=1e-6)
    with pytest.raises(errors.UserError, match="did you mean 'rotation'"):
        transformations.transformed(batches, "rotate", 0)


def test_what_features_hold_is_told_and_what_they_lack_is_not():
    random = np.random.RandomState(0)
    kinds = random.randint(4, size=900)
    noise = random.normal(size=(900, 6))
    held = noise + 3 * np.eye(6)[kinds]
    for rows, low, high in ((held, 0.85, 1.0), (noise, 0.15, 0.35)):
        found = transformations.predict(
            rows[:600], kinds[:600], rows[600:], kinds[600:], hidden=32
        )
        assert low < found["top1"] < high
        assert found["chance"] == pytest.approx(0.25, abs=0.06)
        assert found["predictions"].shape == (300,)
    with pytest.raises(errors.UserError, match="give at least 20, and two of"):
        transformations.predict(noise[:9], kinds[:9], noise, kinds)


# ---- Maps and local features -------------------------------------------------


def test_a_map_keeps_clusters_together():
    rows, labels = _clouds(120, 0, spread=0.1)
    places, divergence = tsne.tsne(rows, perplexity=10)
    assert places.shape == (120, 2)
    assert 0 < divergence < 2
    distances = ((places[:, None] - places) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).mean() > 0.95
    again, _ = tsne.tsne(rows, perplexity=10)
    np.testing.assert_array_equal(places, again)


def test_maps_of_few_and_of_equal_points():
    assert np.isfinite(tsne.tsne(np.eye(5, 2), perplexity=30)[0]).all()
    assert np.isfinite(tsne.tsne(np.ones([9, 3]))[0]).all()
    with pytest.raises(errors.UserError, match=r"3 row\(s\): give at least 4"):
        tsne.tsne(np.ones([3, 3]))
    with pytest.raises(errors.UserError, match="1 of 9 rows hold NaN"):
        tsne.tsne(np.diag([np.nan] + [1.0] * 8) + 1.0)


def test_random_classes_are_chosen():
    labels = np.repeat(np.arange(20), 30)
    rows = tsne.choose(labels, 5, 40, seed=1)
    assert len(rows) == 40
    assert len(np.unique(labels[rows])) == 5
    np.testing.assert_array_equal(rows, tsne.choose(labels, 5, 40, seed=1))
    assert len(tsne.choose(np.full(9, -1), 5, 40, seed=1)) == 9


def test_local_clusters_find_regions():
    features = np.zeros([6, 8, 3])
    features[:, :4] = [1, 0, 0.1]
    features[:3, 4:] = [0, 2, 0]
    features[3:, 4:] = [0, 0, -1]
    found, explained = kmeans.local_clusters(features, 3)
    expected = np.zeros([6, 8], int)
    expected[:3, 4:] = 1
    expected[3:, 4:] = 2
    np.testing.assert_array_equal(found, expected)  # In order of appearance.
    assert explained == pytest.approx(1.0)
    two, less = kmeans.local_clusters(features, 2)
    assert two.max() == 1
    assert 0.2 < less < 1
    # Length is of no account, and there may be fewer places than clusters.
    more, _ = kmeans.local_clusters(features[:1, :3], 16)
    np.testing.assert_array_equal(more, 0)
    # Gray pixels differ in nothing but their length.
    gray = np.repeat([[0.2, 0.9]], 3, axis=0)[..., np.newaxis] * np.ones(3)
    same, _ = kmeans.local_clusters(gray, 2)
    apart, _ = kmeans.local_clusters(gray, 2, normalize=False)
    assert same.max() == 0
    np.testing.assert_array_equal(apart, [[0, 1]] * 3)
    with pytest.raises(errors.UserError, match="NaN"):
        kmeans.local_clusters(features * np.nan, 2)


def test_patches_are_squares_of_pixels():
    image = np.arange(64 * 64 * 3, dtype=np.float32).reshape(64, 64, 3)
    found = kmeans.patches(image)
    assert found.shape == (32, 32, 12)
    np.testing.assert_array_equal(found[3, 5], image[6:8, 10:12].reshape(-1))
    assert kmeans.patches(image[:8, :8]).shape == (8, 8, 3)


@pytest.fixture(scope="module")
def encoder():
    """A small residual network whose statistics have seen images."""
    tf.keras.utils.set_random_seed(0)
    made = encoders.build(
        "resnet10",
        width=0.125,
        stem="cifar",
        image_shape=(16, 16, 3),
        synchronized=False,
    )
    made(_photographs(), training=True)
    return made


@pytest.fixture(scope="module")
def exported(encoder, tmp_path_factory):
    """The same as a SavedModel, loaded."""
    folder = str(tmp_path_factory.mktemp("export"))
    return exporting.load(exporting.export(encoder, folder))


@pytest.mark.slow
def test_inner_layers_are_those_of_the_encoder(encoder, exported):
    before = [v.numpy() for v in encoder.variables]
    inner = kmeans.local_features(encoder, 16)
    assert inner.names == (
        "stage2_block1_relu",
        "stage3_block1_relu",
        "stage4_block1_relu",
    )
    images = _photographs(4)
    maps = [m.numpy() for m in inner.make(images)]
    assert [m.shape[1] for m in maps] == [8, 4, 2]
    np.testing.assert_allclose(
        maps[-1].mean(axis=(1, 2)), encoder(images), atol=1e-5
    )
    # A SavedModel has no layers: its graph gives the same maps.
    of_graph = kmeans.local_features(exported, 16)
    assert of_graph.side == 16
    for ours, theirs in zip(maps, of_graph.make(images), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    twice = kmeans.local_features(encoder, 16, scale=2)
    assert twice.side == 32
    assert twice.make(tf.image.resize(images, [32, 32]))[-1].shape[1] == 4
    for ours, v in zip(before, encoder.variables, strict=True):
        np.testing.assert_array_equal(ours, v)


def test_an_encoder_without_maps_is_refused():
    flat = tf.keras.Sequential(
        [tf.keras.layers.Flatten(), tf.keras.layers.Dense(4)]
    )
    flat.build([None, 8, 8, 3])
    with pytest.raises(errors.UserError, match="needs a convolutional"):
        kmeans.local_features(flat, 8)


# ---- The protocols -----------------------------------------------------------


def _subject(encoder, labelled=True, projection=None, **options):
    random = np.random.RandomState(3)
    images = (_photographs(160) * 255).astype(np.uint8)
    labels = random.randint(3, size=160) if labelled else None
    # Colour tells the classes.
    if labelled:
        images[labels == 0, ..., 0] //= 4
        images[labels == 1, ..., 2] //= 4
    train, test = (
        datasets.from_arrays(images[rows], labels[rows] if labelled else None)
        for rows in (slice(0, 100), slice(100, 160))
    )
    run = fields.replace(
        small.RUN,
        loss="sincere",
        temperature=0.2,
        augmentation="crop",
        image_size=16,
    )
    return subject.Subject(
        encoder,
        train,
        test,
        fields.replace(Evaluate(), embedding_batch_size=32),
        run=run,
        projection=projection,
        **options,
    )


@pytest.fixture(scope="module")
def head():
    """A linear projection of the encoder's features."""
    made = heads.build("linear", output=8, batch_norm=False)
    made(np.ones([2, 64], "f"))
    return made


@pytest.fixture(scope="module")
def labelled(encoder, head):
    """The encoder with its projection, on images of three classes."""
    return _subject(encoder, projection=head)


def _figures(found, folder):
    """Writes all plots, which must be PNG files that are no blank page."""
    assert found["plots"]
    for name, figure in found["plots"].items():
        data = plots.png(figure)
        (folder / f"{name}.png").write_bytes(data)
        shown = plots.pixels(figure)
        assert data[:4] == b"\x89PNG"
        assert tf.io.decode_png(data).shape[:2] == shown.shape[:2]
        assert shown.std() > 10


def test_separation_of_a_subject(labelled, tmp_path):
    found = separation.measure(labelled)
    four = *labelled.embeddings("train"), *labelled.embeddings("test")
    expected = evaluation.separation_margin(*four)
    assert found["metrics"]["margin"] == expected["mean"]
    assert found["metrics"]["margin_per_class"] == pytest.approx(
        expected["per_class"].tolist()
    )
    medians = np.median(expected["target"]) - np.median(expected["noise"])
    assert found["metrics"]["margin_of_medians"] == pytest.approx(abs(medians))
    _figures(found, tmp_path)


def test_views_of_a_subject_are_projected_once(labelled, head):
    made = projected.embed(labelled, 1000, 0)
    assert made.h.shape == (60, 2, 64)
    np.testing.assert_allclose(made.z, head(made.h), atol=1e-5)
    np.testing.assert_array_equal(made.labels, labelled.embeddings("test")[1])
    assert projected.embed(labelled, 1000, 0) is made
    some = projected.embed(labelled, 25, 0)
    rows = projected.sample(60, 25, 0)
    np.testing.assert_allclose(some.h, made.h[rows], atol=1e-5)
    assert projected.comparison(labelled) == (0.2, True)


def test_the_task_and_the_bound_of_a_subject(labelled):
    made = projected.embed(labelled, 60, 0)
    found = contrastive.measure(labelled, view_examples=60)
    expected = evaluation.contrastive_accuracy(made.z, 0.2)
    assert found["metrics"]["contrastive_accuracy"] == expected["accuracy"]
    assert found["metrics"]["contrastive_entropy"] == expected["entropy"]
    assert found["metrics"]["most_entropy"] == pytest.approx(np.log(60))
    bound = bounds.measure(labelled, view_examples=60)["metrics"]
    expected = evaluation.kl_lower_bound(made.z, made.labels, 0.2)
    assert bound["kl_lower_bound"] == pytest.approx(expected, rel=1e-5)
    assert bound["most"] - bound["sincere_loss"] == pytest.approx(expected)
    smaller = bounds.measure(labelled, view_examples=60, kl_batch_size=8)
    assert smaller["metrics"]["most"] < bound["most"]


def test_the_spread_of_a_subject(labelled, tmp_path):
    found = hypersphere.measure(labelled, random_directions=5)
    h, z = labelled.embeddings("test")[0], labelled.projections("test")[0]
    measured = found["metrics"]
    assert measured["uniformity_h"] == pytest.approx(evaluation.uniformity(h))
    assert measured["effective_rank_z"] == pytest.approx(
        evaluation.effective_rank(z)
    )
    made = projected.embed(labelled, 10_000, 0)
    assert measured["alignment_z"] == evaluation.alignment(made.z)
    assert found["arrays"]["random_projections_z"].shape == (60, 5)
    _figures(found, tmp_path)


def test_the_spectrum_of_a_subject(labelled, head, tmp_path):
    assert "projection is mlp, not linear" in spectra.needs(labelled)
    found = spectra.measure(labelled)
    theirs = np.linalg.svd(head.layers[0].kernel, compute_uv=False)
    np.testing.assert_allclose(
        found["arrays"]["singular_values"], theirs, rtol=1e-3
    )
    assert found["metrics"]["rows"] == 64
    _figures(found, tmp_path)


def test_transformations_of_a_subject(labelled, tmp_path):
    found = transformations.measure(
        labelled, transforms_train=80, transforms_test=50, transforms_hidden=16
    )
    assert set(found["metrics"]) == {
        f"{task}_{what}"
        for task in transformations.TASKS
        for what in ("h", "h_interval", "z", "z_interval", "chance")
    }
    for task in transformations.TASKS:
        for space in ("h", "z"):
            share = found["metrics"][f"{task}_{space}"]
            low, high = found["metrics"][f"{task}_{space}_interval"]
            assert 0 <= low <= share <= high <= 1
            # Of 50 images: 1.96 standard errors either way, roughly.
            half = 1.96 * np.sqrt(share * (1 - share) / 50)
            assert (high - low) / 2 == pytest.approx(half, abs=0.03)
    # Edges and pixels are worlds apart.
    assert found["metrics"]["sobel_h"] > 0.7 > found["metrics"]["sobel_chance"]
    _figures(found, tmp_path)


def test_maps_and_clusters_of_a_subject(labelled, tmp_path):
    found = tsne.measure(labelled, tsne_examples=40, tsne_classes=2)
    assert found["arrays"]["tsne_z"].shape == found["arrays"]["tsne_h"].shape
    assert len(np.unique(found["arrays"]["tsne_labels"])) == 2
    _figures(found, tmp_path)
    found = kmeans.measure(labelled, kmeans_images=2, kmeans_clusters=(2, 3))
    assert len(found["plots"]) == 2
    assert found["arrays"]["clusters_0_stage4_block1_relu_3"].shape == (4, 4)
    explained = found["metrics"]
    assert explained["explained_pixels_2"] <= explained["explained_pixels_3"]
    _figures(found, tmp_path)


def test_an_export_without_labels_has_maps_and_clusters(exported, tmp_path):
    unlabelled = _subject(exported, labelled=False)
    for protocol in (tsne, kmeans, transformations):
        assert protocol.needs(unlabelled) is None
    assert "no labels" in prepared.needs_labels(unlabelled)
    assert "no labels" in bounds.needs(unlabelled)
    assert "without its projection" in projected.needs(unlabelled)
    found = tsne.measure(unlabelled, tsne_examples=30)
    assert "tsne_z" not in found["arrays"]
    _figures(found, tmp_path)
    told = []
    unlabelled.say = told.append
    found = kmeans.measure(unlabelled, kmeans_images=1, kmeans_clusters=(2,))
    assert "its own 16 pixels only" in told[0]
    assert len(found["metrics"]) == 4
    _figures(found, tmp_path)
    spread = hypersphere.measure(unlabelled, random_directions=2)
    assert "uniformity_h" in spread["metrics"]
    assert "uniformity_z" not in spread["metrics"]


def test_one_class_has_no_margin_and_no_bound(encoder, head):
    images = (_photographs(30) * 255).astype(np.uint8)
    source = datasets.from_arrays(images, np.zeros(30, np.int64))
    run = fields.replace(small.RUN, augmentation="crop", image_size=16)
    told = []
    alone = subject.Subject(
        encoder, source, source, run=run, projection=head, say=told.append
    )
    assert "one class alone" in bounds.needs(alone)
    # As where a dataset of more classes has images of one only.
    assert separation.measure(alone) == {"metrics": {"margin": None}}
    assert bounds.measure(alone) == {"metrics": {"kl_lower_bound": None}}
    assert any("1 class(es)" in line for line in told)
    assert any("no batch of 512 images" in line for line in told)


def test_every_protocol_has_its_hyperparameters():
    measures = {
        "separation": separation.measure,
        "kl_bound": bounds.measure,
        "contrastive": contrastive.measure,
        "uniformity": hypersphere.measure,
        "spectrum": spectra.measure,
        "transforms": transformations.measure,
        "tsne": tsne.measure,
        "kmeans": kmeans.measure,
    }
    chosen = RepresentationProtocols()
    for name, measure in measures.items():
        hyperparameters = chosen.hyperparameters(name)
        defaults = measure.__kwdefaults__ or {}
        assert set(hyperparameters) == set(defaults) - {"seed"}, name
        for knob, value in hyperparameters.items():
            assert np.array_equal(value, defaults[knob]), knob


# ---- Pictures ----------------------------------------------------------------


def test_figures_of_bins_and_of_severities(tmp_path):
    confidences = _RNG.uniform(0.1, 1, size=500)
    bins = evaluation.reliability(
        confidences, _RNG.uniform(size=500) < confidences
    )
    curves = {"fog": [0.8, 0.7, 0.6], "gaussian_noise": [0.7, 0.5, 0.3]}
    found = {
        "reliability": plots.reliability_diagram({"clean": bins}),
        "severity": plots.severity_curves(curves, clean=0.9),
        "one": plots.severity_curves({"fog": [0.5]}),
    }
    _figures({"plots": found}, tmp_path)


@pytest.mark.parametrize("panels", [1, 3])
def test_the_legend_of_reliability_hides_nothing(panels):
    bins = evaluation.reliability(np.linspace(0.03, 1, 60), np.ones(60))
    figure = plots.reliability_diagram({str(k): bins for k in range(panels)})
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 2
    assert figure.bbox.fully_containsx(box.x0)
    assert figure.bbox.fully_containsx(box.x1)
    for axis in figure.axes:
        assert axis.get_legend() is None
        assert not axis.get_tightbbox().overlaps(box)


def test_pictures_leave_pyplot_alone():
    code = (
        "import sys, numpy as np\n"
        "from tf_contrastive.evaluation import pictures, protocols\n"
        "assert 'matplotlib' not in sys.modules\n"
        "pictures.png(pictures.severity_curves({'fog': [0.5, 0.4]}))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT)


def test_a_thousand_classes_fit_on_a_page():
    part = evaluation.neighbor_histograms(np.ones(3), np.zeros(3))
    parts = {f"class {k}": part for k in range(1000)}
    figure = plots.neighbor_histograms(parts)
    assert len(figure.axes) < 20
    places = {"h": _RNG.normal(size=(100, 2))}
    crowd = plots.maps(places, np.arange(100), [str(k) for k in range(100)])
    assert not crowd.legends


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
