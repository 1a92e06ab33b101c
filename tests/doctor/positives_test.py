"""Expected positives against all batches."""

import itertools

import numpy as np
import pytest

from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import positives

_LABELS = np.array([0] * 3 + [1] * 2 + [2])


def _expected(**changes):
    run = fields.replace(
        Pretrain(), **({"loss": "supcon", "batch_size": 3} | changes)
    )
    counts = np.unique(_LABELS, return_counts=True)[1]
    return positives.per_anchor(run, counts, len(_LABELS))


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 3, 5])
def test_expected_positives_equal_the_mean_over_all_batches(views, batch):
    found = []
    for images in itertools.combinations(_LABELS, batch):
        labels = np.repeat(images, views)
        found += [(labels == label).sum() - 1 for label in labels]
    expected = _expected(views=views, batch_size=batch)
    assert expected == pytest.approx(np.mean(found))


@pytest.mark.parametrize("batch", [2, 4, 7, 9])
def test_expected_positives_of_balanced_classes(batch):
    classes = np.arange(batch) % 3
    same = (classes[:, None] == classes).sum(1) - 1
    expected = _expected(batch_size=batch, views=1, sampler="class_balanced")
    assert expected == pytest.approx(same.mean())


def test_expected_positives_of_each_kind_of_loss():
    for changes, expected in (
        ({"loss": "ntxent", "views": 3}, 2),
        ({"loss": "margin"}, 1),
        # Four anchors have two positives, two have one.
        ({"loss": "ntxent", "small_views": 4}, 10 / 6),
        ({"loss": "npairs", "batch_size": 6}, 1),
        ({"positives_cap": 1}, 1),
    ):
        assert _expected(**changes) == pytest.approx(expected), changes
    assert _expected(loss="cross_entropy") is None
