"""Predicted transformations of images."""

import contexts
import numpy as np
import photographs
import pytest

from tf_contrastive.base import errors
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.evaluation import transformations


def test_images_are_transformed_as_their_class_says():
    images = photographs.photographs()
    extra = np.concatenate([images, np.full_like(images[..., :1], 0.7)], -1)
    batches = [(extra[:40], None), (extra[40:], None)]
    for name, task in transformations.TASKS.items():
        pixels, kinds = map(
            np.concatenate,
            zip(*transformations.transformed(batches, name, 0), strict=True),
        )
        assert pixels.shape == extra.shape
        assert (pixels[..., 3] == np.float32(0.7)).all()
        counts = np.bincount(kinds, minlength=len(task.fractions))
        np.testing.assert_allclose(counts / 64, task.fractions, atol=0.17)
        np.testing.assert_array_equal(pixels[kinds == 0], extra[kinds == 0])
        distance = np.abs(pixels - extra).mean(axis=(1, 2, 3))
        assert (distance[kinds > 0] > 0).mean() > 0.9, name
        if name == "rotation":
            for image, before, kind in zip(pixels, extra, kinds, strict=True):
                np.testing.assert_array_equal(image, np.rot90(before, kind))
        if name == "color":
            spread = np.ptp(pixels[..., :3], axis=-1).max(axis=(1, 2))
            np.testing.assert_array_equal(spread < 1e-6, kinds == 1)
        # The size of batches makes no difference.
        again, _ = next(transformations.transformed([(extra, 0)], name, 0))
        np.testing.assert_allclose(again, pixels, atol=1e-6)


def test_classes_are_predicted_only_from_features_that_hold_them():
    random = np.random.RandomState(0)
    kinds = random.randint(4, size=900)
    noise = random.normal(size=(900, 6))
    informative = noise + 3 * np.eye(6)[kinds]
    for rows, low, high in ((informative, 0.85, 1.0), (noise, 0.15, 0.35)):
        scores = transformations.predict(
            rows[:600], kinds[:600], rows[600:], kinds[600:]
        )
        assert low < scores["top1"] < high
        assert scores["chance"] == pytest.approx(0.25, abs=0.06)
        assert scores["predictions"].shape == (300,)
    # A tenth, for early stopping, has an image of each class from 40 on.
    least = transformations.predict(noise[:40], kinds[:40], noise, kinds)
    assert least["predictions"].shape == (900,)
    with pytest.raises(errors.UserError, match="transforms_train=30"):
        Scoring.of(transforms_train=30).validate()


@pytest.mark.slow
def test_transforms():
    context = photographs.context(projection=photographs.head())
    measurement = contexts.measure(
        "transforms", context, transforms_train=80, transforms_test=50
    )
    metrics = measurement["metrics"]
    assert set(metrics) == {
        f"{task}_{name}"
        for task in transformations.TASKS
        for name in ("h", "h_interval", "z", "z_interval", "chance")
    }
    low, high = metrics["noise_z_interval"]
    assert 0 <= low <= metrics["noise_z"] <= high <= 1
    # Edges look different from pixels.
    assert metrics["sobel_h"] > 0.7 > metrics["sobel_chance"]
