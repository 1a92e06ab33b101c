"""Separation margins against transcriptions."""

import blobs
import colored_noise
import contexts
import numpy as np
import pytest

from tf_contrastive import evaluation
from tf_contrastive.base.errors import UserError
from tf_contrastive.evaluation import separation

_RNG = np.random.RandomState(0)


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
    monkeypatch.setattr(separation, "QUERY_BLOCK", blocks[0])
    monkeypatch.setattr(separation, "BANK_BLOCK", blocks[1])
    arrays = *blobs.blobs(60, spread=0.6), *blobs.blobs(40, spread=0.6, seed=1)
    target, noise = _nearest_by_hand(*arrays)
    margin = evaluation.separation_margin(*arrays)
    np.testing.assert_allclose(margin["target"], target, atol=1e-6)
    np.testing.assert_allclose(margin["noise"], noise, atol=1e-6)
    labels = arrays[-1]
    expected = [
        np.median(target[labels == c]) - np.median(noise[labels == c])
        for c in range(4)
    ]
    np.testing.assert_allclose(margin["per_class"], expected, atol=1e-6)
    assert margin["mean"] == pytest.approx(np.mean(expected), abs=1e-6)


def test_labels_that_are_no_class_ids_are_refused():
    axes, labels = np.eye(3, dtype=np.float32), np.array([0, 1, 2**24 - 1])
    margin = evaluation.separation_margin(axes, labels, axes, labels)
    assert len(margin["per_class"]) == 2**24
    for label in (2**24, 2**40):
        labels[2] = label
        with pytest.raises(UserError, match="class ids"):
            evaluation.separation_margin(axes, labels, axes, labels)


def test_absent_classes_have_no_margin():
    train, train_labels = blobs.blobs(80, spread=0.6)
    test, labels = blobs.blobs(50, spread=0.6, seed=1)
    # Class 1 is not in test; class 6 of test is not in train.
    labels[labels == 1] = 6
    margin = evaluation.separation_margin(train, train_labels, test, labels)
    expected = [True, False, True, True, False, False, False]
    assert np.isfinite(margin["per_class"]).tolist() == expected
    np.testing.assert_array_equal(np.isnan(margin["target"]), labels == 6)
    assert not np.isnan(margin["noise"]).any()
    assert margin["mean"] == np.nanmean(margin["per_class"])


def test_histograms_are_fractions():
    target = np.array([0.95, 1.0000001, 0.5, np.nan, -0.7])
    histograms = evaluation.neighbor_histograms(target, np.full(5, np.nan))
    assert len(histograms["edges"]) == 101
    assert histograms["target"].sum() == pytest.approx(1)
    assert histograms["target"][0] == histograms["target"][-1] == 0.25
    assert histograms["target_median"] == pytest.approx(0.725)
    assert histograms["noise"].sum() == 0
    assert np.isnan(histograms["noise_median"])


@pytest.mark.slow
def test_separation_protocol():
    context = colored_noise.context()
    measurement = contexts.measure("separation", context)
    expected = evaluation.separation_margin(*context.labelled_embeddings)
    measured = measurement["metrics"]
    assert measured["margin"] == expected["mean"]
    assert measured["margin_per_class"] == pytest.approx(
        expected["per_class"].tolist()
    )
    medians = np.median(expected["target"]) - np.median(expected["noise"])
    assert measured["margin_of_medians"] == pytest.approx(abs(medians))
    assert "projection_margin" in measured
    contexts.check_plots(measurement)
