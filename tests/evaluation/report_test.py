"""Reports: whether an encoder is any good, and what of it is shown."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.evaluation import figures, report
from tf_contrastive.evaluation.context import Data
from tf_contrastive.evaluation.subject import Subject

# Train has 20, 30 and 10 images of the classes, test 10, 5 and 5.
_TRAIN, _TEST = (
    np.repeat([0, 1, 2], [20, 30, 10]),
    np.repeat([0, 1, 2], [10, 5, 5]),
)


class _Context:
    """The part of a context that is judged."""

    def __init__(self, encoder="trained", names=("cat", "dog", "owl")):
        images = np.zeros([60, 4, 4, 3], np.uint8)
        self.data = Data(
            datasets.from_arrays(images, _TRAIN, names),
            datasets.from_arrays(images[:20], _TEST, names),
        )
        self.subject = Subject(tf.Module(), name=encoder)

    def labels(self, split):
        return _TRAIN if split == "train" else _TEST


def _row(protocol, variant=""):
    return {"protocol": protocol, "variant": variant}


def _part(right, labels=_TEST):
    """A number of right answers; the others are the next class."""
    predictions = np.where(np.arange(20) < right, labels, (labels + 1) % 3)
    return {"predictions": predictions, "correct": predictions == labels}


def _verdict(*results):
    """The verdict of (context, protocol, variant, measurement)."""
    made = report.Report(None, {})
    for context, protocol, variant, part in results:
        made.add(context, [_row(protocol, variant)], [part], "")
    return made.verdict()


def test_an_encoder_is_compared_with_an_untrained_one_and_the_majority():
    line = _verdict(
        (_Context(), "knn", "k=1", _part(3)),
        (_Context(), "linear", "", _part(19)),
        (_Context("untrained"), "linear", "", _part(12)),
    )
    # Of 20 answers the encoder has 7 alone and the untrained one none. The most
    # frequent class of train has 5 images of test, of which the encoder has 4.
    p_untrained = 2 * 0.5**7
    majority = (_TEST == 1).sum()
    right = _part(19)["correct"]
    alone = (right & (_TEST != 1)).sum(), (~right & (_TEST == 1)).sum()
    p_majority = scipy.stats.binomtest(int(alone[0]), int(sum(alone))).pvalue
    assert p_majority < 0.001 < p_untrained
    assert line.startswith(
        "trained encoder, linear 0.9500: better than untrained 0.6000"
    )
    assert f"p = {p_untrained:.4f}" in line
    assert f'better than always "dog" {majority / 20:.4f}' in line
    assert f"p = {p_majority:.4f}" in line or "p < 0.0001" in line


def test_other_variants_of_an_untrained_encoder_are_not_compared():
    line = _verdict(
        (_Context(), "knn", "k=1", _part(10)),
        (_Context("untrained"), "knn", "k=5", _part(2)),
    )
    assert "untrained" not in line and '"dog"' in line
    line = _verdict((_Context(names=None), "linear", "", _part(10)))
    assert '"class 1"' in line


def test_classes_have_accuracies_of_their_own():
    part = _part(14)
    row = report.result_row(_Context(), _row("knn"), part, 1.0)
    metrics = row["metrics"]
    assert metrics["class_accuracies"] == [1.0, 0.8, 0.0]
    assert metrics["balanced_accuracy"] == pytest.approx(
        sklearn.metrics.balanced_accuracy_score(_TEST, part["predictions"])
    )
    # A class without images in the split has none.
    labels = np.where(_TEST == 1, 2, _TEST)
    part = _part(20, labels) | {"labels": labels}
    row = report.result_row(_Context(), _row("knn"), part, 1.0)
    assert row["metrics"]["class_accuracies"] == [1.0, None, 1.0]
    assert row["metrics"]["balanced_accuracy"] == 1.0


def test_a_confusion_matrix_shows_percentages_of_each_class():
    part = _part(14)
    figure = figures.confusion(
        _TEST, part["predictions"], ("cat", "dog", "owl")
    )
    (axis,) = figure.axes
    shown = np.zeros([3, 3])
    for text in axis.texts:
        column, row = map(int, text.get_position())
        shown[row, column] = float(text.get_text())
    expected = sklearn.metrics.confusion_matrix(
        _TEST, part["predictions"], normalize="true"
    )
    np.testing.assert_allclose(shown, 100 * expected, atol=0.5)
    assert [t.get_text() for t in axis.get_yticklabels()] == [
        "cat",
        "dog",
        "owl",
    ]
