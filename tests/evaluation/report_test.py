"""Reports: whether an encoder is any good, and what of it is shown."""

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.evaluation import report
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


def _row(protocol, variant=""):
    return {"protocol": protocol, "variant": variant}


def _part(right, labels=_TEST):
    """A number of right answers; the others are the next class."""
    predictions = np.where(np.arange(20) < right, labels, (labels + 1) % 3)
    return {"predictions": predictions, "correct": predictions == labels}


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
