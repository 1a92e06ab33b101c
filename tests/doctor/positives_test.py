"""Expected positives against all batches."""

import itertools

import numpy as np
import pytest

from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import positives

_LABELS = np.array([0] * 3 + [1] * 2 + [2])


def _expected(labels=_LABELS, **changes):
    run = fields.replace(
        Pretrain(), **({"loss": "supcon", "batch_size": 3} | changes)
    )
    counts = np.unique(labels, return_counts=True)[1]
    return positives.expect(run, counts, len(labels))


def _enumerated(views, batch):
    """(positives, negatives, fraction without) over all possible batches."""
    anchors = []
    for images in itertools.combinations(_LABELS, batch):
        labels = np.repeat(images, views)
        same = labels[:, None] == labels
        anchors += [(row.sum() - 1, (~row).sum()) for row in same]
    anchors = np.array(anchors)
    return (*anchors.mean(0), (anchors[:, 0] == 0).mean())


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 3, 5])
def test_expected_positives_equal_the_mean_over_all_batches(views, batch):
    expected = _expected(views=views, batch_size=batch)
    np.testing.assert_allclose(
        (expected.positives, expected.negatives, expected.without_positives),
        _enumerated(views, batch),
        rtol=1e-9,
    )


@pytest.mark.parametrize("batch", [2, 4, 7, 9])
def test_expected_positives_of_balanced_classes(batch):
    classes = np.arange(batch) % 3
    same = (classes[:, None] == classes).sum(1) - 1
    expected = _expected(batch_size=batch, views=1, sampler="class_balanced")
    assert expected.positives == pytest.approx(same.mean())
    assert expected.without_positives == pytest.approx((same == 0).mean())


def test_expected_positives_of_each_kind_of_loss():
    for changes, pairs in (
        ({"loss": "ntxent", "views": 3}, (2, 6)),
        ({"loss": "margin"}, (1, 2)),
        # Four anchors have two positives, two have one.
        ({"loss": "ntxent", "small_views": 4}, (10 / 6, 4)),
        ({"loss": "moco", "queue_size": 100}, (1, 100)),
    ):
        expected = _expected(**changes)
        found = expected.positives, expected.negatives
        assert found == pytest.approx(pairs), changes
    assert _expected(positives_cap=1).positives == 1
    assert _expected(loss="npairs").positives == pytest.approx(
        1 - _expected(views=1).without_positives
    )
    assert _expected(loss="cross_entropy") is None
