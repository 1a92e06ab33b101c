"""What encoders lose by corruptions."""

import contexts
import digit_networks
import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.base.errors import UserError
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.evaluation import classification, corruptions, protocols
from tf_contrastive.evaluation.classification_metrics import SEVERITIES
from tf_contrastive.evaluation.context import EvaluationContext


def _encoder():
    inputs = tf.keras.Input([8, 8, 3])
    x = tf.keras.layers.Flatten()(inputs[..., :1])
    return tf.keras.Model(inputs, x)


def _digits(rows, name="arrays", split="test"):
    images, labels = (array[rows] for array in digit_networks.digits())
    return datasets.from_arrays(images, labels, name=name, split=split)


def _subject(name="arrays", split="test", **options):
    return contexts.make(
        _encoder(),
        _digits(slice(0, 1000)),
        _digits(slice(1000, 1200), name, split),
        Scoring.of(
            scale="cpu", linear_epochs=20, embedding_batch_size=64, **options
        ),
    )


def _images(scored):
    test = scored.data.test
    return np.stack([x["image"] for x in test.examples()]), test.labels()


def _rows(pixels):
    return pixels[..., 0].reshape(len(pixels), -1).astype(np.float32) / 255


def _hyperparameters(scored):
    return scored.options.hyperparameters("robustness")["linear"]


_NAMES = ("gaussian_noise", "contrast")


@pytest.fixture(scope="module")
def _measured():
    return contexts.measure("robustness", _subject(), corruptions=_NAMES)


@pytest.mark.slow
def test_errors_are_those_of_each_image_by_itself(_measured):
    scored = _subject()
    model, _ = classification.fit_linear(
        *scored.embeddings("train"), **_hyperparameters(scored), seed=0
    )
    images, labels = _images(scored)

    def error(pixels):
        return np.mean(model.scores(_rows(pixels)).top(1)[:, 0] != labels)

    metrics = _measured["metrics"]
    assert metrics["clean_top1"] == pytest.approx(1 - error(images))
    assert metrics["clean_top1"] > 0.85
    table = np.zeros([2, 5])
    for row, name in enumerate(_NAMES):
        for severity in SEVERITIES:
            made = corruptions.corrupt_batch(images, name, severity, 0)
            table[row, severity - 1] = error(made)
        np.testing.assert_allclose(metrics[f"error_{name}"], table[row])
    np.testing.assert_allclose(metrics["accuracy"], 1 - table.mean(axis=0))
    np.testing.assert_allclose(_measured["arrays"]["errors"], table)
    assert _measured["top1"] == pytest.approx(1 - table.mean())
    assert metrics["mean_error"] == pytest.approx(100 * table.mean())
    assert table[:, 4].sum() > table[:, 0].sum()
    # No baseline for these data: no mCE under that name.
    assert metrics["mce"] is metrics["relative_mce"] is None
    assert metrics["generated"] == list(_NAMES)
    assert metrics["prepared"] == []


def test_calibration_is_of_each_severity_and_few_examples_are_scored(_measured):
    metrics = _measured["metrics"]
    assert len(metrics["ece"]) == 5
    assert 0 < metrics["ece_clean"] < 0.3
    assert _measured["arrays"]["ece"].shape == (2, 5)
    given = {"corruptions": ["contrast"], "examples": 70}
    few = contexts.measure("robustness", _subject(), **given)["metrics"]
    errors = np.array(few["error_contrast"]) * 70
    np.testing.assert_allclose(errors, np.round(errors), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["test", "test[:200]"])
def test_prepared_corruptions_are_used_by_their_own_names(split, monkeypatch):
    asked = []

    def source(scored, name, split):
        asked.append((name, split))
        if "frosted_glass_blur" not in name:
            return None
        # Of severity s the first 20 * s images are black.
        images, labels = _images(scored)
        images[: 20 * int(name[-1])] = 0
        return datasets.from_arrays(images, labels)

    monkeypatch.setattr(EvaluationContext, "prepared", source)
    found = contexts.measure(
        "robustness",
        _subject("cifar10", split),
        corruptions=["glass_blur", "contrast"],
    )
    assert found["resolved"] == {
        "prepared": ["glass_blur"],
        "corruptions": ["glass_blur", "contrast"],
    }
    found = found["metrics"]
    assert ("cifar10_corrupted/frosted_glass_blur_5", split) in asked
    assert found["prepared"] == ["glass_blur"]
    assert found["generated"] == ["contrast"]
    errors = np.array(found["error_glass_blur"])
    clean = 1 - found["clean_top1"]
    # Black images are all called one class, which a tenth of them are.
    expected = clean + np.arange(1, 6) * 0.1 * (0.9 - clean)
    np.testing.assert_allclose(errors, expected, atol=0.03)


@pytest.mark.slow
def test_corruptions_that_nobody_can_make_are_refused_before_the_work():
    scored = _subject("cifar10", robustness_corruptions="frost,contrast")
    with pytest.raises(UserError, match=r"frost.*cifar10_corrupted"):
        protocols.run(scored, ["robustness"])
    assert not scored.cache
    every = contexts.measure("robustness", _subject(), corruptions=())
    assert every["metrics"]["generated"] == [*corruptions.CORRUPTIONS]


@pytest.mark.slow
def test_the_runs_own_head_is_scored():
    scored = _subject()
    model, _ = classification.fit_linear(
        *scored.embeddings("train"), **_hyperparameters(scored), seed=1
    )
    head = tf.keras.layers.Dense(10)
    head.build([None, 64])
    head.set_weights([model.kernel, model.bias])
    scored = contexts.changed(scored, classifier=head)
    names = {"corruptions": ["contrast"]}
    own = contexts.measure("robustness", scored, **names)
    assert own["metrics"]["classifier"] == "head"
    # The same weights as a linear classifier's, and not those of another one.
    same = contexts.measure(
        "robustness", scored, **names, classifier="linear", seed=1
    )
    other = contexts.measure("robustness", scored, **names, classifier="linear")
    assert own["metrics"]["ece"] == pytest.approx(same["metrics"]["ece"])
    assert own["metrics"]["ece"] != pytest.approx(other["metrics"]["ece"])
    with pytest.raises(UserError, match="robustness: only a run of"):
        bare = _subject(robustness_classifier="head")
        protocols.run(bare, ["robustness"])


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 20])
def test_neighbors_of_corrupted_images(k):
    scored = _subject(robustness_classifier="knn", robustness_k=k)
    found = contexts.measure("robustness", scored, corruptions=["contrast"])
    found = found["metrics"]
    images, labels = _images(scored)
    train = scored.embeddings("train")
    for severity in SEVERITIES:
        made = corruptions.corrupt_batch(images, "contrast", severity, 0)
        scores = classification.knn(*train, _rows(made), labels, k)
        error = found["error_contrast"][severity - 1]
        assert error == pytest.approx(1 - scores["top1"])
    assert "ece" not in found
    assert found["neighbors"] == k
