"""Calibration, corruption errors and average precision, by the papers."""

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics

from tf_contrastive import evaluation
from tf_contrastive.evaluation import classification_metrics as ours

# ---- Calibration -------------------------------------------------------------


def test_calibration_equals_sums_by_scipy():
    random = np.random.RandomState(0)
    logits = 3 * random.normal(size=[500, 7])
    table = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = random.randint(7, size=500)
    confidences = table.max(1)
    excess = (table.argmax(1) == labels) - confidences
    sums = scipy.stats.binned_statistic(confidences, excess, "sum", 15, (0, 1))
    expected = np.abs(sums.statistic).sum() / 500
    found = evaluation.expected_calibration_error(table, labels)
    assert found == pytest.approx(expected, rel=1e-9)


def test_bins_hold_their_upper_end():
    found = evaluation.reliability([0.0, 0.5, 0.5 + 1e-9, 1.0], [0, 1, 0, 1], 2)
    np.testing.assert_array_equal(found["count"], [2, 2])
    np.testing.assert_allclose(found["accuracy"], [0.5, 0.5])
    np.testing.assert_allclose(found["confidence"], [0.25, 0.75])


# ---- Corruptions -------------------------------------------------------------


def _constant(error, names=tuple(ours.ALEXNET)):
    return {name: [error] * 5 for name in names}


def test_corruption_golden():
    found = evaluation.mean_corruption_error(_constant(0.5))
    assert found["mce"] == pytest.approx(64.6725730, abs=1e-6)
    assert found["relative_mce"] is None


def test_alexnet_against_itself_is_a_hundred():
    errors = {name: [e] * 5 for name, e in ours.ALEXNET.items()}
    # Corruptions that AlexNet was not tried on are ignored.
    errors["saturate"] = [0.3] * 5
    found = evaluation.mean_corruption_error(
        errors, clean_error=ours.ALEXNET_CLEAN
    )
    assert found["mce"] == pytest.approx(100)
    assert found["relative_mce"] == pytest.approx(100)


def test_other_data_need_a_baseline():
    none = {"mce": None, "relative_mce": None}
    # CIFAR-10-C's corruptions have the names of ImageNet's.
    found = evaluation.mean_corruption_error(
        _constant(0.5), 0.1, imagenet=False
    )
    assert found == none
    few = _constant(0.5, ["fog", "frost", "contrast"])
    assert evaluation.mean_corruption_error(few, 0.1) == none
    short = {name: [0.5] * 3 for name in ours.ALEXNET}
    assert evaluation.mean_corruption_error(short, 0.1) == none
    baseline = {"fog": [0.6, 0.8], "frost": 0.5, "clean": 0.2}
    found = evaluation.mean_corruption_error(
        {"fog": [0.3, 0.5], "frost": [0.4, 0.6]}, 0.1, baseline
    )
    assert found["mce"] == pytest.approx(100 * (0.4 / 0.7 + 0.5 / 0.5) / 2)
    relative = (0.4 - 0.1) / (0.7 - 0.2), (0.5 - 0.1) / (0.5 - 0.2)
    assert found["relative_mce"] == pytest.approx(100 * np.mean(relative))


# ---- Average precision -------------------------------------------------------


def test_average_precision_golden():
    found = evaluation.eleven_point_average_precision(
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [1, 0, 1, 1, 0, 0]
    )
    assert found == pytest.approx(0.8409090909, abs=1e-10)


def test_average_precision_equals_the_curve_of_scikit_learn():
    random = np.random.RandomState(0)
    for ties in (False, True):
        labels = random.randint(2, size=300)
        scores = labels + random.normal(size=300)
        scores = np.round(scores) if ties else scores
        precision, recall, _ = metrics.precision_recall_curve(labels, scores)
        # The last point, recall 0, is no threshold's.
        points = [
            precision[:-1][recall[:-1] >= level - 1e-9].max()
            for level in np.linspace(0, 1, 11)
        ]
        found = evaluation.eleven_point_average_precision(scores, labels)
        assert found == pytest.approx(np.mean(points), rel=1e-12)
        order = random.permutation(300)
        again = evaluation.eleven_point_average_precision(
            scores[order], labels[order]
        )
        assert again == found
