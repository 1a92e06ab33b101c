"""Separation, KL bound, contrastive task, hypersphere, and their plots."""

import itertools
import subprocess
import sys
import tracemalloc
from pathlib import Path

import contexts
import numpy as np
import pytest
import scipy.stats
import small
import tensorflow as tf

from tf_contrastive import datasets, errors, evaluation, losses
from tf_contrastive.config import fields
from tf_contrastive.evaluation import (
    hypersphere,
    projections,
    protocols,
    robustness,
    separation,
    view_embeddings,
)
from tf_contrastive.losses import contrastive_metrics

_ROOT = Path(__file__).resolve().parents[2]
_RNG = np.random.RandomState(0)


def _clouds(n, seed, classes=4, spread=0.6, size=8):
    centers = np.random.RandomState(9).normal(size=(classes, size))
    random = np.random.RandomState(seed)
    labels = random.randint(classes, size=n)
    rows = centers[labels] + spread * random.normal(size=(n, size))
    return rows.astype(np.float32), labels


# ---- Separation --------------------------------------------------------------


def _nearest_by_hand(train, train_labels, test, labels):
    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    target, noise = [], []
    for row, label in zip(unit(test) @ unit(train).T, labels, strict=True):
        target.append(max(row[train_labels == label]))
        noise.append(max(row[train_labels != label]))
    return np.array(target), np.array(noise)


@pytest.mark.parametrize("blocks", [(1024, 8192), (7, 11)])
def test_margins_equal_a_transcription(monkeypatch, blocks):
    monkeypatch.setattr(separation, "_QUERY_BLOCK", blocks[0])
    monkeypatch.setattr(separation, "_BANK_BLOCK", blocks[1])
    arrays = *_clouds(60, 0), *_clouds(40, 1)
    target, noise = _nearest_by_hand(*arrays)
    margin = evaluation.separation_margin(*arrays)
    assert set(margin) == {"mean", "per_class", "target", "noise"}
    np.testing.assert_allclose(margin["target"], target, atol=1e-6)
    np.testing.assert_allclose(margin["noise"], noise, atol=1e-6)
    labels = arrays[-1]
    expected = [
        np.median(target[labels == c]) - np.median(noise[labels == c])
        for c in range(4)
    ]
    np.testing.assert_allclose(margin["per_class"], expected, atol=1e-6)
    assert margin["mean"] == pytest.approx(np.mean(expected), abs=1e-6)


def test_orthogonal_classes_have_margin_one():
    axes = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    labels = np.repeat(np.arange(3), 5)
    margin = evaluation.separation_margin(axes, labels, 7 * axes, labels)
    assert margin["mean"] == pytest.approx(1.0)
    mixed = np.arange(15) % 2
    margin = evaluation.separation_margin(axes, mixed, axes, mixed)
    assert margin["mean"] == pytest.approx(0.0)


def test_absent_classes_have_no_margin():
    train, train_labels = _clouds(80, 0)
    test, labels = _clouds(50, 1)
    # Class 1 is not in test; class 6 of test is not in train.
    labels[labels == 1] = 6
    margin = evaluation.separation_margin(train, train_labels, test, labels)
    expected = [True, False, True, True, False, False, False]
    assert np.isfinite(margin["per_class"]).tolist() == expected
    np.testing.assert_array_equal(np.isnan(margin["target"]), labels == 6)
    assert not np.isnan(margin["noise"]).any()
    assert margin["mean"] == np.nanmean(margin["per_class"])


def test_invalid_arrays_have_no_margin():
    rows, labels = _clouds(20, 0)
    bad = rows.copy()
    bad[3, 2] = np.nan
    for arrays, match in [
        ((rows, 0 * labels + 3, rows, labels), "only class 3"),
        ((rows, labels, rows, labels + 9), "no class of test_labels"),
        ((bad, labels, rows, labels), "20 rows hold NaN"),
        ((rows, labels, rows[:, :3], labels), "8 features and"),
        ((rows, 0 * labels - 1, rows, labels), "train_labels hold -1"),
    ]:
        with pytest.raises(errors.UserError, match=match):
            evaluation.separation_margin(*arrays)


def test_margins_use_little_memory():
    train = _RNG.normal(size=(20_000, 16)).astype(np.float32)
    test = _RNG.normal(size=(4000, 16)).astype(np.float32)
    labels = _RNG.randint(10, size=20_000)
    tracemalloc.start()
    evaluation.separation_margin(train, labels, test, labels[:4000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # All cosines at once are 320 MB.


def test_histograms_are_fractions():
    target = np.array([0.95, 1.0000001, 0.5, np.nan, -0.7])
    histograms = evaluation.neighbor_histograms(target, np.full(5, np.nan))
    assert len(histograms["edges"]) == 101
    assert histograms["target"].sum() == pytest.approx(1)
    assert histograms["target"][0] == histograms["target"][-1] == 0.25
    assert histograms["target_median"] == pytest.approx(0.725)
    assert histograms["noise"].sum() == 0
    assert np.isnan(histograms["noise_median"])


# ---- KL bound ----------------------------------------------------------------


def test_bound_is_log_noise_minus_sincere():
    z = _RNG.normal(size=(7, 2, 4))
    labels = np.array([0, 1, 0, 2, 1, 0, 3])
    bound = evaluation.kl_lower_bound(z, labels, 0.3)
    task = contrastive_metrics.contrastive_task(z, labels, temperature=0.3)
    assert bound == pytest.approx(float(task["kl_lower_bound"]), rel=1e-5)
    loss = losses.build("sincere", temperature=0.3).per_anchor(z, labels)
    others = 2 * np.array([4, 5, 4, 6, 5, 4, 6])[:, np.newaxis]
    assert bound == pytest.approx(np.mean(np.log(others) - loss), rel=1e-5)
    raw = evaluation.kl_lower_bound(z, labels, 0.3, normalize=False)
    assert raw != pytest.approx(bound, rel=0.01)


def test_bound_of_perfect_and_of_equal_projections():
    z = np.repeat(np.eye(4)[:, np.newaxis], 2, axis=1)
    perfect = evaluation.kl_lower_bound(z, np.arange(4), 0.02)
    assert perfect == pytest.approx(np.log(6), abs=1e-4)
    # The loss of equal projections is at chance level, ln 7.
    equal = evaluation.kl_lower_bound(np.ones((4, 2, 3)), np.arange(4), 0.02)
    assert equal == pytest.approx(np.log(6) - np.log(7), abs=1e-4)


@pytest.mark.parametrize(
    ("z", "labels", "temperature", "match"),
    [
        (np.ones([4, 2]), [0, 1, 0, 1], 0.1, "projections"),
        (np.ones([4, 2, 3]), [0, 0, 0, 0], 0.1, "negative"),
        (np.ones([3, 1, 3]), [0, 1, 2], 0.1, "positive"),
        (np.ones([2, 2, 3]), [0, 1], 0.0, "temperature"),
        (np.full([2, 2, 3], np.nan), [0, 1], 0.1, "NaN"),
        (np.ones([2, 2, 3]), [0, -1], 0.1, "labels"),
        (np.ones([2, 2, 3]), [0], 0.1, "labels"),
    ],
)
def test_invalid_arrays_have_no_bound(z, labels, temperature, match):
    with pytest.raises(errors.UserError, match=match):
        evaluation.kl_lower_bound(z, np.array(labels), temperature)


# ---- Contrastive task --------------------------------------------------------


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
def test_task_equals_a_transcription(views):
    first = _RNG.normal(size=(40, 1, 5))
    z = first + 0.8 * _RNG.normal(size=(40, views, 5))
    accuracy, entropy = _task_by_hand(z, 0.2)
    task = evaluation.contrastive_accuracy(z, 0.2)
    assert task["accuracy"] == pytest.approx(accuracy)
    assert task["entropy"] == pytest.approx(entropy, rel=1e-5)
    if views == 2:
        other = contrastive_metrics.contrastive_task(z, temperature=0.2)
        assert task["accuracy"] == pytest.approx(other["one_view_accuracy"])


def test_task_does_not_depend_on_blocks_or_order(monkeypatch):
    z = _RNG.normal(size=(60, 1, 5)) + 0.5 * _RNG.normal(size=(60, 2, 5))
    whole = evaluation.contrastive_accuracy(z, 0.2)
    monkeypatch.setattr(projections, "_BLOCK", 7)
    blocks = evaluation.contrastive_accuracy(z, 0.2)
    assert blocks["entropy"] == pytest.approx(whole["entropy"])
    assert blocks["correct"].tolist() == whole["correct"].tolist()
    assert whole["correct"].mean() == pytest.approx(whole["accuracy"])
    swapped = z.copy()
    swapped[[3, 50]] = z[[50, 3]]
    again = evaluation.contrastive_accuracy(swapped, 0.2)["correct"]
    assert again[[50, 3]].tolist() == whole["correct"][[3, 50]].tolist()
    # Smaller batches make the task easier.
    small_batches = evaluation.contrastive_accuracy(z, 0.2, batch_size=6)
    assert small_batches["accuracy"] > whole["accuracy"]
    assert small_batches["entropy"] < np.log(6)


def test_task_of_equal_and_of_orthogonal_images():
    equal = evaluation.contrastive_accuracy(np.ones([10, 2, 3]), 0.1)
    assert equal["accuracy"] == 0.0
    assert equal["entropy"] == pytest.approx(np.log(10))
    apart = np.repeat(np.eye(10)[:, np.newaxis], 2, axis=1)
    certain = evaluation.contrastive_accuracy(apart, 0.01)
    assert certain["accuracy"] == 1.0
    assert certain["entropy"] == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(errors.UserError, match="projections"):
        evaluation.contrastive_accuracy(np.ones([10, 1, 3]), 0.1)
    with pytest.raises(errors.UserError, match="temperature"):
        evaluation.contrastive_accuracy(np.ones([10, 2, 3]), 0)


# ---- Hypersphere -------------------------------------------------------------


def test_alignment_and_uniformity_equal_transcriptions(monkeypatch):
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
    uniformity = evaluation.uniformity(z[:, 0])
    assert uniformity == pytest.approx(np.log(np.mean(pairs)), rel=1e-5)
    assert evaluation.uniformity(np.ones([9, 3])) == pytest.approx(0, abs=1e-6)
    with pytest.raises(errors.UserError, match="at least 2"):
        evaluation.uniformity(np.ones([1, 3]))


@pytest.mark.parametrize("shape", [(50, 6), (6, 50)])
def test_effective_rank_is_that_of_singular_values(shape):
    x = (_RNG.normal(size=shape) * np.arange(1, shape[1] + 1)).astype("f")
    x += 5.0
    expected = float(contrastive_metrics.effective_rank(tf.constant(x)))
    assert evaluation.effective_rank(x) == pytest.approx(expected, rel=1e-3)
    assert evaluation.effective_rank(np.ones([5, 3])) == 1.0


def test_projections_of_a_sphere_have_its_marginal():
    sphere = _RNG.normal(size=(4000, 16))
    found = evaluation.random_projections(sphere, 16)
    # Orthogonal directions preserve lengths.
    lengths = np.linalg.norm(found["projections"], axis=1)
    np.testing.assert_allclose(lengths, 1.0, rtol=1e-4)
    # The 99.9 % quantile of the distance, for one direction, is 1.95 / sqrt(n).
    assert found["ks_prior"].max() < 2.5 / np.sqrt(4000)
    half = 15 / 2
    expected = scipy.stats.kstest(
        found["projections"][:, 3],
        lambda x: scipy.stats.beta.cdf((x + 1) / 2, half, half),
    )
    assert found["ks_prior"][3] == pytest.approx(expected.statistic, abs=1e-4)
    # A coordinate has the excess kurtosis -6 / (d + 2).
    assert found["kurtosis"].mean() == pytest.approx(-6 / 18, abs=0.1)


def test_distances_of_clusters_and_of_wide_normals():
    rows, _ = _clouds(2000, 0, spread=0.05)
    clusters = evaluation.random_projections(rows, 8)
    assert clusters["ks_prior"].mean() > 0.15
    assert clusters["ks_normal"].mean() > 0.1
    normal = _RNG.normal(size=(4000, 8))
    raw = evaluation.random_projections(normal, 3, normalize=False)
    assert raw["ks_prior"].max() < 0.05
    wide = evaluation.random_projections(9 * normal, 3, normalize=False)
    assert wide["ks_prior"].min() > 0.3
    assert wide["ks_normal"].max() < 0.05
    point = evaluation.random_projections(np.ones([9, 4]), 99)
    assert point["projections"].shape == (9, 4)
    assert np.isfinite(point["ks_normal"]).all()


# ---- Protocols ---------------------------------------------------------------


def _context(classes=3, **options):
    """A random linear encoder and projection, on coloured noise."""
    random = np.random.RandomState(3)
    images = random.randint(256, size=(160, 8, 8, 3)).astype(np.uint8)
    labels = random.randint(classes, size=160)
    images[labels == 0, ..., 0] //= 4
    images[labels == 1, ..., 2] //= 4
    train, test = (
        datasets.from_arrays(images[rows], labels[rows])
        for rows in (slice(0, 100), slice(100, 160))
    )
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(16)]
    encoder = tf.keras.Sequential([tf.keras.Input([8, 8, 3]), *layers])
    head = tf.keras.layers.Dense(8)
    head(tf.zeros([1, 16]))
    run = fields.replace(
        small.RUN,
        loss="sincere",
        temperature=0.2,
        augmentation="crop",
        image_size=8,
    )
    options = {"projection": head, "run": run} | options
    return contexts.make(encoder, train, test, **options)


@pytest.fixture(scope="module")
def context():
    return _context()


@pytest.mark.slow
def test_separation_protocol(context):
    measurement = contexts.measure("separation", context)
    expected = evaluation.separation_margin(*context.labelled_embeddings())
    measured = measurement["metrics"]
    assert measured["margin"] == expected["mean"]
    assert measured["margin_per_class"] == pytest.approx(
        expected["per_class"].tolist()
    )
    medians = np.median(expected["target"]) - np.median(expected["noise"])
    assert measured["margin_of_medians"] == pytest.approx(abs(medians))
    assert "projection_margin" in measured
    contexts.check_plots(measurement)


def test_views_are_embedded_once(context):
    views = view_embeddings.embed_views(context, 1000, 0)
    assert views.h.shape == (60, 2, 16)
    np.testing.assert_allclose(
        views.z, context.subject.projection(views.h), atol=1e-5
    )
    np.testing.assert_array_equal(views.labels, context.embeddings("test")[1])
    assert view_embeddings.embed_views(context, 1000, 0) is views
    sample = view_embeddings.embed_views(context, 25, 0)
    rows = view_embeddings.sample(60, 25, 0)
    np.testing.assert_allclose(sample.h, views.h[rows], atol=1e-5)
    assert view_embeddings.loss_similarity(context) == (0.2, True)


def test_contrastive_and_kl_bound_protocols(context):
    _, z, labels = view_embeddings.embed_views(context, 60, 0)
    measured = contexts.measure("contrastive", context, view_examples=60)[
        "metrics"
    ]
    expected = evaluation.contrastive_accuracy(z, 0.2)
    assert measured["contrastive_accuracy"] == expected["accuracy"]
    assert measured["contrastive_entropy"] == expected["entropy"]
    assert measured["max_entropy"] == pytest.approx(np.log(60))
    bound = contexts.measure("kl_bound", context, view_examples=60)["metrics"]
    expected = evaluation.kl_lower_bound(z, labels, 0.2)
    assert bound["kl_lower_bound"] == pytest.approx(expected, rel=1e-5)
    difference = bound["upper_bound"] - bound["sincere_loss"]
    assert difference == pytest.approx(expected)
    batches = contexts.measure(
        "kl_bound", context, view_examples=60, kl_batch_size=8
    )
    assert batches["metrics"]["upper_bound"] < bound["upper_bound"]


@pytest.mark.slow
def test_uniformity_protocol(context):
    measurement = contexts.measure("uniformity", context, random_directions=5)
    h, z = context.embeddings("test")[0], context.projections("test")[0]
    measured = measurement["metrics"]
    assert measured["uniformity_h"] == pytest.approx(evaluation.uniformity(h))
    rank = evaluation.effective_rank(z)
    assert measured["effective_rank_z"] == pytest.approx(rank)
    views = view_embeddings.embed_views(context, 10_000, 0)
    assert measured["alignment_z"] == evaluation.alignment(views.z)
    assert measurement["arrays"]["random_projections_z"].shape == (60, 5)
    contexts.check_plots(measurement)
    only_h = contexts.measure("uniformity", _context(projection=None))[
        "metrics"
    ]
    assert "uniformity_h" in only_h and "uniformity_z" not in only_h


def test_one_class_has_no_margin_and_no_bound():
    lines = []
    one = _context(classes=1, log=lines.append)
    assert "only one class" in protocols.missing("kl_bound", one)
    # A dataset of several classes may have images of one only.
    assert contexts.measure("separation", one) == {"metrics": {"margin": None}}
    assert contexts.measure("kl_bound", one) == {
        "metrics": {"kl_lower_bound": None}
    }
    assert any("1 class(es)" in line for line in lines)
    assert any("no batch of 512 images" in line for line in lines)
    assert "projection" in protocols.missing(
        "kl_bound", _context(projection=None)
    )


# ---- Plots -------------------------------------------------------------------


def test_plots_of_reliability_and_of_severities():
    confidences = _RNG.uniform(0.1, 1, size=500)
    bins = evaluation.reliability(
        confidences, _RNG.uniform(size=500) < confidences
    )
    curves = {"fog": [0.8, 0.7, 0.6], "gaussian_noise": [0.7, 0.5, 0.3]}
    figures = {
        "reliability": robustness.reliability_diagram({"clean": bins}),
        "severity": robustness.severity_curves(curves, clean=0.9),
        "one": robustness.severity_curves({"fog": [0.5]}, clean=0.6),
    }
    contexts.check_plots({"plots": figures})


@pytest.mark.parametrize("panels", [1, 3])
def test_legend_of_reliability_hides_nothing(panels):
    bins = evaluation.reliability(np.linspace(0.03, 1, 60), np.ones(60))
    figure = robustness.reliability_diagram(
        {str(k): bins for k in range(panels)}
    )
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 2
    assert figure.bbox.fully_containsx(box.x0)
    assert figure.bbox.fully_containsx(box.x1)
    for axis in figure.axes:
        assert axis.get_legend() is None
        assert not axis.get_tightbbox().overlaps(box)


def test_plots_do_not_import_pyplot():
    code = (
        "import sys\n"
        "from tf_contrastive.evaluation import plots, robustness\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.png(robustness.severity_curves({'fog': [0.5]}, 0.6))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT)


def test_a_thousand_classes_fit_on_a_page():
    part = evaluation.neighbor_histograms(np.ones(3), np.zeros(3))
    parts = {f"class {k}": part for k in range(1000)}
    assert len(separation.plot(parts).axes) < 20
