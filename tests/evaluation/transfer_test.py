"""Transfer to other datasets, by their rules."""

import contexts
import digit_networks
import numpy as np
import pytest
import tensorflow as tf
from image_helpers import write_prepared
from sklearn import linear_model

from tf_contrastive import datasets, embedding, evaluation
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import logistic, protocols
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import result_row


def _only(monkeypatch, there):
    """Prepared datasets are those of `there`: (name, split) -> source."""

    def source(scored, name, split, label_feature=None):
        return there.get((name, split))

    monkeypatch.setattr(EvaluationContext, "prepared", source)


@pytest.mark.parametrize(
    ("suite", "chosen", "expected"),
    [
        ("simclr", "auto", ["shorter_side", "center_crop"]),
        ("sincere", "auto", ["squash", "squash"]),
        ("simclr", "squash_crop", ["squash_crop", "squash_crop"]),
    ],
)
def test_transfer_has_the_preprocessing_of_its_paper(
    suite, chosen, expected, monkeypatch
):
    images = {
        ("food101", s): digit_networks.source(slice(50))
        for s in ("train", "validation")
    }
    _only(monkeypatch, images)
    used, on = [], EvaluationContext.on

    def spy(*arguments):
        other = on(*arguments)
        used.append(other.options.evaluation.preprocessing)
        return other

    monkeypatch.setattr(EvaluationContext, "on", spy)
    scored = digit_networks.subject(preprocessing=chosen)
    given = scored.options.hyperparameters("transfer") | {"suite": suite}
    assert list(protocols.measure(scored, "transfer", **given))
    assert used == expected  # Of linear, and of fine-tuning.


@pytest.mark.slow
def test_each_prepared_dataset_is_scored_by_its_rules(monkeypatch):
    said = []
    scored = digit_networks.subject(test=digit_networks.source(slice(0, 30)))
    scored = contexts.changed(scored, log=said.append)
    _only(
        monkeypatch,
        {
            ("cifar10", "train"): digit_networks.source(slice(800, 1100)),
            ("cifar10", "test"): digit_networks.source(slice(1300, 1500)),
            ("dtd", "train"): digit_networks.source(slice(800, 1000), "train"),
            ("dtd", "validation"): digit_networks.source(
                slice(1000, 1100), "validation"
            ),
            ("dtd", "train+validation"): digit_networks.source(
                slice(800, 1100)
            ),
            ("dtd", "test"): digit_networks.source(slice(1300, 1400)),
        },
    )
    before = embedding.checksum(scored.subject.encoder)
    small = {"steps": 12, "learning_rates": [0.05], "weight_decays": [0.0]}
    parts = contexts.measure(
        "transfer",
        scored,
        methods=["linear", "finetune", "scratch"],
        grid=small,
        scratch_grid=small,
        batch_size=64,
    )
    assert list(parts) == [
        f"{name} {method}"
        for name in ("cifar10", "dtd")
        for method in ("linear", "finetune", "scratch")
    ]
    assert parts["dtd linear"]["dataset"] == "dtd"
    assert parts["cifar10 linear"]["top1"] > 0.9
    assert parts["cifar10 finetune"]["top1"] > parts["cifar10 scratch"]["top1"]
    # The official part of train is what the penalty is chosen on.
    train, test = (
        scored.subject.embed(scored.images(digit_networks.source(rows)))
        for rows in (slice(800, 1100), slice(1300, 1400))
    )
    expected = logistic.logistic_regression(
        *train, *test, validation=np.arange(200, 300)
    )
    metrics = parts["dtd linear"]["metrics"]
    assert metrics["penalty"] == expected["penalty"]
    assert metrics["score"] == expected["top1"]
    assert any("left out: not prepared" in line for line in said)
    assert embedding.checksum(scored.subject.encoder) == before


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    """Two digits side by side: a folder, the classes shown, and plain ones.

    Examples 0 to 199 are of train, to 279 of validation, and from 300 of test.
    """
    images, labels = digit_networks.digits()
    # Digits 0 to 4 alone, so that each class has many.
    images, labels = images[labels < 5], labels[labels < 5]
    pictures = np.concatenate([images[:450], images[300:750]], axis=2)
    shown = np.eye(5)[labels[:450]] + np.eye(5)[labels[300:750]] > 0
    plain = shown & (np.random.default_rng(0).random(shown.shape) < 0.9)

    def columns(rows):
        both = (map(np.flatnonzero, x[rows]) for x in (shown, plain))
        some, fewer = (tf.ragged.constant([*x], tf.int64) for x in both)
        rgb = np.repeat(pictures[rows, ..., None], 3, -1)
        return {"image": rgb, "labels": some, "labels_no_difficult": fewer}

    def features(kinds):
        classes = kinds.Sequence(kinds.ClassLabel(num_classes=5))
        image = kinds.Image(shape=(8, 16, 3))
        named = {"labels": classes, "labels_no_difficult": classes}
        return {"image": image, **named}

    folder = tmp_path_factory.mktemp("tfds")
    splits = {
        "train": columns(slice(0, 200)),
        "validation": columns(slice(200, 280)),
        "test": columns(slice(300, 450)),
    }
    write_prepared(folder, features, splits, "voc", config="2007")
    return str(folder), shown, plain


@pytest.mark.slow
def test_multi_label_are_learned_by_a_sigmoid_each(voc):
    folder, shown, _ = voc

    def network(trained):
        made = digit_networks.network(seed=1)
        if trained:
            made.set_weights(digit_networks.weights())
        inputs = tf.keras.Input([16, 16, 3])
        # Of the enlarged middle both digits are at hand, one above the other.
        halves = tf.concat([inputs[:, ::2, :8], inputs[:, ::2, 8:]], 0)
        left, right = tf.split(made(halves), 2)
        return tf.keras.Model(inputs, tf.concat([left, right], -1))

    scored = contexts.make(
        network(True),
        digit_networks.source(slice(0, 40)),
        digit_networks.source(slice(40, 80)),
        Scoring.of(data_dir=folder),
        run=Pretrain(),
        make_encoder=network,
    )
    small = {"learning_rates": [1e-5, 0.05], "weight_decays": [0.0]}
    small["steps"] = 60
    ((name, part),) = contexts.measure(
        "transfer", scored, methods=["finetune"], grid=small, batch_size=64
    ).items()
    assert name == "voc2007 finetune"
    metrics = part["metrics"]
    assert metrics["metric"] == "mean_average_precision"
    # The rate is chosen on the official validation part.
    assert metrics["learning_rate"] == 0.05
    assert metrics["validation"][1] > metrics["validation"][0] + 0.2
    assert metrics["score"] == pytest.approx(np.mean(metrics["precisions"]))
    assert metrics["score"] > 0.7
    first = part["arrays"]["predictions"]
    np.testing.assert_array_equal(
        part["correct"], shown[np.arange(300, 450), first]
    )
    assert part["top1"] == part["correct"].mean() > 0.7


@pytest.mark.slow
def test_multi_label_are_scored_by_mean_average_precision(voc):
    folder, shown, plain = voc
    inputs = tf.keras.Input([16, 16, 3])
    encoder = tf.keras.Model(
        inputs, tf.keras.layers.Flatten()(inputs[:, ::2, :, 0])
    )
    scored = contexts.make(
        encoder,
        digit_networks.source(slice(0, 40)),
        digit_networks.source(slice(40, 80)),
        Scoring.of(data_dir=folder, logistic_penalties=3),
    )
    assert protocols.missing("transfer", scored) is None
    parts = contexts.measure("transfer", scored)
    assert list(parts) == ["voc2007 linear"]
    part = parts["voc2007 linear"]
    metrics = part["metrics"]
    # Against scikit-learn, one class at a time, at the penalty chosen.
    (h, _), (test, _) = (
        scored.subject.embed(
            scored.images(datasets.source("voc/2007", split, data_dir=folder))
        )
        for split in ("train+validation", "test")
    )
    wanted, shown, plain = shown[:280], shown[300:], plain[300:]
    expected = []
    for c in range(5):
        model = linear_model.LogisticRegression(
            C=1 / metrics["penalty"], tol=1e-8, max_iter=10_000
        ).fit(h, wanted[:, c])
        counts = plain[:, c] | ~shown[:, c]
        assert 0 < counts.sum() < 150
        expected.append(
            evaluation.eleven_point_average_precision(
                model.decision_function(test)[counts],
                shown[counts, c].astype(int),
            )
        )
    np.testing.assert_allclose(metrics["precisions"], expected, atol=0.02)
    assert metrics["score"] == pytest.approx(np.mean(metrics["precisions"]))
    assert metrics["score"] > 0.75
    assert metrics["validation"][0] < max(metrics["validation"])
    assert part["top1"] == part["correct"].mean() > 0.8
    row = result_row(scored, {"protocol": "transfer", "variant": ""}, part, 1.0)
    assert not {"balanced_accuracy", "class_accuracies"} & {*row["metrics"]}
    assert row["examples"] == 150
