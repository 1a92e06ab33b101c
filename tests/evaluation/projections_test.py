"""The KL bound and the contrastive task, on projections of views."""

import colored_noise
import contexts
import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn import metrics

from tf_contrastive import evaluation
from tf_contrastive.base import errors
from tf_contrastive.evaluation import projections, protocols, view_embeddings
from tf_contrastive.losses import contrastive_metrics

_RNG = np.random.RandomState(0)


def _bound_by_hand(z, labels, temperature):
    """SINCERE's theorem 11, an anchor at a time."""
    views = z.shape[1]
    rows = z.reshape(-1, z.shape[-1])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    of = np.repeat(labels, views)
    bounds = []
    for i in range(len(rows)):
        e = np.exp(rows @ rows[i] / temperature)
        positives = [j for j in range(len(rows)) if of[j] == of[i] and j != i]
        negatives = [j for j in range(len(rows)) if of[j] != of[i]]
        if not positives or not negatives:
            continue
        noise = sum(e[j] for j in negatives)
        loss = -np.mean([np.log(e[j] / (e[j] + noise)) for j in positives])
        bounds.append(np.log(len(negatives)) - loss)
    return np.mean(bounds)


@pytest.mark.parametrize("views", [1, 2])
def test_the_bound_equals_a_transcription(views):
    # Classes of one, two, three and four images.
    labels = np.array([3, 0, 1, 1, 2, 2, 2, 3, 3, 3])
    z = np.eye(4)[labels][:, np.newaxis] + _RNG.normal(size=(10, views, 4))
    bound = evaluation.kl_lower_bound(z, labels, 0.3)
    assert bound == pytest.approx(_bound_by_hand(z, labels, 0.3), rel=1e-5)
    task = contrastive_metrics.contrastive_task(z, labels, temperature=0.3)
    assert bound == pytest.approx(float(task["kl_lower_bound"]), rel=1e-5)
    raw = evaluation.kl_lower_bound(z, labels, 0.3, normalize=False)
    assert raw != pytest.approx(bound, rel=0.01)


def _task_by_scipy(z, temperature):
    hits, entropies = [], []
    for v in range(z.shape[1]):
        other = z[:, (v + 1) % z.shape[1]]
        cosines = metrics.pairwise.cosine_similarity(z[:, v], other)
        hits.append(cosines.argmax(axis=1) == np.arange(len(z)))
        p = scipy.special.softmax(cosines / temperature, axis=1)
        entropies.append(scipy.stats.entropy(p, axis=1))
    return np.mean(hits), np.mean(entropies)


@pytest.mark.parametrize("views", [2, 3])
def test_task_equals_a_transcription(views):
    first = _RNG.normal(size=(40, 1, 5))
    z = first + 0.8 * _RNG.normal(size=(40, views, 5))
    accuracy, entropy = _task_by_scipy(z, 0.2)
    task = evaluation.contrastive_accuracy(z, 0.2)
    assert task["accuracy"] == pytest.approx(accuracy)
    assert task["entropy"] == pytest.approx(entropy, rel=1e-5)
    if views == 2:
        other = contrastive_metrics.contrastive_task(z, temperature=0.2)
        assert task["accuracy"] == pytest.approx(other["one_view_accuracy"])


def test_task_does_not_depend_on_blocks_or_order(monkeypatch):
    z = _RNG.normal(size=(60, 1, 5)) + 0.5 * _RNG.normal(size=(60, 2, 5))
    whole = evaluation.contrastive_accuracy(z, 0.2)
    monkeypatch.setattr(projections, "BLOCK", 7)
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


def test_task_of_equal_images_and_of_what_is_no_task():
    equal = evaluation.contrastive_accuracy(np.ones([10, 2, 3]), 0.1)
    assert equal["accuracy"] == 0.0
    assert equal["entropy"] == pytest.approx(np.log(10))
    with pytest.raises(errors.UserError, match="projections"):
        evaluation.contrastive_accuracy(np.ones([10, 1, 3]), 0.1)
    with pytest.raises(errors.UserError, match="temperature"):
        evaluation.contrastive_accuracy(np.ones([10, 2, 3]), 0)


def test_views_are_those_of_a_sample_of_test():
    context = colored_noise.context()
    views = view_embeddings.embed_views(context, 1000, 0)
    assert views.h.shape == (60, 2, 16)
    z = context.subject.projection(views.h)
    np.testing.assert_allclose(views.z, z, atol=1e-5)
    np.testing.assert_array_equal(views.labels, context.embeddings("test")[1])
    sample = view_embeddings.embed_views(context, 25, 0)
    rows = view_embeddings.sample(60, 25, 0)
    np.testing.assert_allclose(sample.h, views.h[rows], atol=1e-5)
    assert view_embeddings.loss_similarity(context) == (0.2, True)


def test_contrastive_and_kl_bound_protocols(monkeypatch):
    context = colored_noise.context()
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
    monkeypatch.setattr(projections, "BOUND_BATCH", 8)
    batches = contexts.measure("kl_bound", context, view_examples=60)
    assert batches["metrics"]["upper_bound"] < bound["upper_bound"]


def test_one_class_has_no_margin_and_no_bound():
    lines = []
    one = colored_noise.context(classes=1, log=lines.append)
    assert contexts.measure("separation", one) == {"metrics": {"margin": None}}
    assert contexts.measure("kl_bound", one) == {
        "metrics": {"kl_lower_bound": None}
    }
    assert any("1 class(es)" in line for line in lines)
    assert any("no batch of 512 images" in line for line in lines)
    assert "projection" in protocols.missing(
        "kl_bound", colored_noise.context(projection=None)
    )
