"""Measures: the values that a unit's runs write, and bounds of losses."""

import math

import numpy as np
import pytest

from lab.claims import definitions, measures
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

_FREE = {
    "images": 40,
    "dimension": 16,
    "temperature": 0.1,
    "spread": 0.1,
    "steps": 30,
    "learning_rate": 0.1,
    "classes": 4,
}


@pytest.mark.parametrize(
    ("options", "classes", "positives", "expected"),
    [
        ({"loss": "supcon"}, 2, 63.0, math.log(127)),
        ({"loss": "sincere", "views": 1}, 2, 31.0, math.log(33)),
        ({"loss": "ntxent"}, None, math.nan, math.log(127)),
        ({"loss": "ntxent", "negatives": "other_view"}, 2, 63.0, math.log(64)),
        ({"loss": "supcon", "positives_cap": 1}, 2, 63.0, math.log(65)),
        ({"loss": "moco", "queue_size": 100}, 2, 1.0, math.log(101)),
        ({"loss": "cross_entropy"}, 7, math.nan, math.log(7)),
        ({"loss": "margin", "mining": "semi_hard"}, 7, 9.0, None),
    ],
)
def test_the_loss_of_a_collapsed_network(options, classes, positives, expected):
    config = fields.replace(Pretrain(), batch_size=64, **options)
    found = measures.collapsed_loss(config, classes, positives)
    assert found == (expected and pytest.approx(expected, abs=1e-4))


def test_free_embeddings_reach_the_bounds_of_their_losses():
    recipe = definitions.claims()["SI-T4"].recipe("cpu")
    found = {}
    for loss in ("supcon", "sincere"):
        options = {"free_embeddings": _FREE | {"loss": loss}}
        unit = measures.Unit("free, 4 classes", loss, 0, options)
        found[loss] = measures.values(recipe, unit)
    supcon, sincere = found["supcon"], found["sincere"]
    # 80 embeddings: of 79 others, 19 have the anchor's class.
    assert supcon["ln(others)"] == pytest.approx(math.log(79))
    assert supcon["ln(positives)"] == pytest.approx(math.log(19))
    assert supcon["ln(1 + negatives)"] == pytest.approx(math.log(61))
    assert supcon["initial"] == pytest.approx(math.log(79), abs=0.1)
    assert sincere["initial"] == pytest.approx(math.log(61), abs=0.1)
    assert supcon["final"] > math.log(19) > 1 + sincere["final"]


def test_crops_of_one_colour_share_their_histogram():
    colors = (np.arange(8) * 32 + 8) / 255  # Each in a bin of its own.
    crops = np.broadcast_to(colors[:, None, None, None, None], [8, 2, 6, 6, 3])
    found = measures.intersections(crops)
    assert found == {"same_image": 1.0, "other_image": 0.0, "matched": 1.0}
    distorted = crops.copy()
    distorted[:, 1] = np.roll(crops[:, 0], 1, axis=0)
    found = measures.intersections(distorted)
    assert (found["same_image"], found["matched"]) == (0.0, 0.0)
    assert found["other_image"] == pytest.approx(1 / 7)
