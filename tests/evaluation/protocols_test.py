"""Protocols and the commands around them."""

import json

import contexts
import numpy as np
import pytest
import saved_run
import tensorflow as tf
from sklearn import metrics

from tf_contrastive import datasets, embedding, evaluation, exporting, views
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate as evaluate_command
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config.data import Data
from tf_contrastive.config.evaluate import resolve_splits
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation.report import result_row, row_name

_CLASSIFIERS = ["knn", "prototype", "linear"]


def _encoder():
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input([8, 8, 3])
    x = tf.keras.layers.Conv2D(8, 3)(inputs)
    x = tf.keras.layers.BatchNormalization()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Flatten()(tf.nn.relu(x)))


def _digit_batches(split):
    return datasets.evaluation_batches(
        datasets.source("digits", split), views.evaluation(8), batch_size=100
    )


def _subject(encoder, train=None, test=None, **options):
    """An encoder on the digits, by default, at the scale of CPUs."""
    return contexts.make(
        encoder,
        train or datasets.source("digits", "train"),
        test or datasets.source("digits", "test"),
        Evaluate.of(scale="cpu", **options),
        name="random",
    )


def _rows(report):
    """(protocol and variant) -> row of a report's results."""
    return {row_name(row): row for row in report["results"]}


def test_protocols_score_a_frozen_encoder():
    encoder = _encoder()
    before = embedding.checksum(encoder)
    subject = _subject(encoder, knn_k="3,1", linear_epochs=20)
    report = protocols.run(subject, _CLASSIFIERS)
    assert report["checksum"] == before
    assert embedding.checksum(encoder) == before
    results = _rows(report)
    assert list(results) == ["knn k=3", "knn k=1", "prototype", "linear"]
    assert results["knn k=3"]["top5"] is None
    train = embedding.embed(encoder, _digit_batches("train"))
    test = embedding.embed(encoder, _digit_batches("test"))
    for result in results.values():
        assert result["encoder"] == "random"
        assert result["scale"] == "cpu"
        assert result["examples"] == len(test[1])
        low, high = result["top1_interval"]
        assert 0.6 < low < result["top1"] < high
        assert high - low < 0.15  # 360 images.
        if result["top5"]:
            low, high = result["top5_interval"]
            assert low <= result["top5"] <= high
        # The record's hyperparameters are enough to repeat the result.
        given = dict(result["hyperparameters"])
        assert given.pop("preprocessing") == "auto"
        again = contexts.measure(result["protocol"], _subject(encoder), **given)
        if result["protocol"] != "prototype":
            again = again[result["variant"]]
        assert again["top1"] == result["top1"]
    for k in (1, 3):
        classified = evaluation.knn(*train, *test, k=k)
        assert results[f"knn k={k}"]["top1"] == classified["top1"]


def test_projections_are_classified_beside_embeddings():
    encoder = _encoder()
    subject = _subject(encoder, features="h,z", linear_epochs=5, knn_k="3")
    # Keeps a few features only.
    subject = contexts.changed(subject, projection=lambda h, training: h[:, :5])
    results = _rows(protocols.run(subject, ["knn", "linear"]))
    assert list(results) == ["knn k=3", "knn z k=3", "linear", "linear z"]
    train, train_labels, test, labels = subject.labelled_embeddings
    z = train[:, :5], train_labels, test[:, :5], labels
    again = evaluation.knn(*z, k=3)
    assert results["knn z k=3"]["top1"] == again["top1"]
    options = subject.options.linear.hyperparameters()
    for name in ("augmentation", "learning_rates"):
        options.pop(name)
    again = evaluation.linear_probe(*z, **options, seed=0)
    assert results["linear z"]["top1"] == again["top1"]
    assert results["linear"]["top1"] > results["linear z"]["top1"] + 0.1
    assert results["linear"]["hyperparameters"]["features"] == ["h", "z"]
    subject = contexts.changed(subject, projection=None)
    with pytest.raises(errors.UserError, match="features=h,z"):
        protocols.run(subject, ["knn"])


@pytest.mark.parametrize(
    ("protocol", "given", "reason"),
    [
        ("knn", {}, "knn_k=1,5"),
        ("knn", {"knn_k": "4"}, None),
        ("robustness", {"robustness_classifier": "knn"}, "robustness_k=5"),
        ("robustness", {"linear_learning_rates": "1"}, "learning_rates=1"),
        ("robustness", {}, None),
    ],
)
def test_neighbors_and_rates_that_cannot_be_had_are_named(
    protocol, given, reason
):
    images, labels = np.zeros([4, 8, 8, 3], np.uint8), np.arange(4) % 2
    train = datasets.from_arrays(images, labels, split="train")
    missing = protocols.missing(protocol, _subject(_encoder(), train, **given))
    assert (reason or "None") in errors.plain(str(missing))


def test_classes_have_accuracies_of_their_own():
    context = _subject(_encoder())
    test = np.repeat([0, 1, 2], [10, 5, 5])
    for right, labels, expected in (
        (14, test, [1.0, 0.8, 0.0]),
        # A class without images in the split has none.
        (20, np.where(test == 1, 2, test), [1.0, None, 1.0]),
    ):
        predictions = np.where(np.arange(20) < right, labels, (labels + 1) % 3)
        part = {"predictions": predictions, "correct": predictions == labels}
        facts = {"protocol": "knn", "variant": ""}
        row = result_row(context, facts, part | {"labels": labels}, 1.0)
        assert row["metrics"]["class_accuracies"] == expected
        assert row["metrics"]["balanced_accuracy"] == pytest.approx(
            metrics.balanced_accuracy_score(labels, predictions)
        )


def test_splits_are_those_of_the_run(tmp_path, monkeypatch):
    run = Data(dataset="cifar10", split="train[:100]", test_split="x")

    def splits(run, **given):
        e = resolve_splits(Evaluate.of(**given), run).evaluation
        return e.train_split, e.test_split

    assert splits(run) == ("train[:100]", "x")
    assert splits(run, dataset="cifar10") == ("train[:100]", "x")
    assert splits(run, test_split="test") == ("train[:100]", "test")
    assert splits(run, dataset="cifar100") == ("train", "test")
    assert splits(None, dataset="cifar10") == ("train", "test")
    # A path in any spelling.
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for before in ("folder:", "csv:", "randbit:of=folder:"):
        run = Data(dataset=f"{before}{tmp_path}/a", split="x", test_split="y")
        for path in ("a", "a/", "./b/../a", "link/a", f"{tmp_path}/link/a"):
            assert splits(run, dataset=before + path) == ("x", "y")
        assert splits(run, dataset=f"{before}b") == ("train", "test")


def test_a_scale_is_a_version_of_its_own():
    paper, cpu = Evaluate(), Evaluate.of(scale="cpu")
    for name in PROTOCOLS:
        # Where the scale changes nothing the results do compare.
        equal = paper.hyperparameters(name) == cpu.hyperparameters(name)
        version = paper.version_of(name)
        assert cpu.version_of(name) == version + "-cpu" * (not equal), name
    recorded = Evaluate.of(logistic_penalties=3).recorded("transfer")
    assert recorded["logistic_options"]["penalties"] == 3
    assert cpu.version_of("linear") == "1-cpu"
    assert cpu.version_of("robustness") == "4-cpu"


def test_an_encoder_that_changes_is_an_error():
    inputs = tf.keras.Input([8, 8, 3])
    # Takes the statistics of what it is scored on, as SimCLR's code did.
    x = tf.keras.layers.BatchNormalization()(inputs, training=True)
    moving = tf.keras.Model(inputs, tf.keras.layers.Flatten()(x))
    test = datasets.source("digits", "test")
    with pytest.raises(RuntimeError, match=r"changed .* protocol knn"):
        protocols.run(_subject(moving, test, test), ["knn"])


@pytest.mark.slow
def test_two_replicas_score_a_run_and_its_export_as_one(tmp_path):
    workdir = str(tmp_path / "run")
    saved_run.make(workdir)
    exported = exporting.export(workdir, str(tmp_path / "export"))
    export = {"saved_model": exported, "dataset": "digits"}
    export["protocols"] = "knn,prototype"

    def evaluate(folder, **given):
        output = str(tmp_path / folder)
        options = Evaluate.of(
            **{"scale": "cpu", "linear_epochs": 5, "output_dir": output},
            **given,
        )
        options.validate()
        assert evaluate_command.run(options) == 0
        report = json.loads((tmp_path / folder / "evaluation.json").read_text())
        keys = ("encoder", "protocol", "variant")
        rows = {tuple(row[x] for x in keys): row for row in report["results"]}
        scores = {key: row["top1"] for key, row in rows.items()}
        return scores, report["checksum"]

    expected, checksum = evaluate("one", workdir=workdir)
    for name, source in (("run", {"workdir": workdir}), ("export", export)):
        found, same = evaluate(f"of_{name}", **source, virtual_devices=2)
        assert same == checksum
        assert len(found) == (3 if name == "export" else len(expected))
        for key, top1 in found.items():
            # Sums of floats in another order move few images.
            assert top1 == pytest.approx(expected[key], abs=0.01)
