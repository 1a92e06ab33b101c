"""Protocols and the commands around them."""

import contextlib
import io
import json

import contexts
import pytest
import saved_run
import tensorflow as tf

from tf_contrastive import datasets, embedding, evaluation, exporting, views
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate as evaluate_command
from tf_contrastive.commands import export as export_command
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.export import Export
from tf_contrastive.config.data import Data
from tf_contrastive.config.evaluate import resolve_splits
from tf_contrastive.config.export import Exporting
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation.report import row_name

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
    assert results["knn k=3"]["hyperparameters"] == {
        "k": [3, 1],
        "features": ["h"],
        "preprocessing": "auto",
    }
    assert results["knn k=3"]["top5"] is None
    assert results["linear"]["hyperparameters"] == {
        "epochs": 20,
        "batch_size": 256,
        "label_smoothing": 0.0,
        "optimizer": "sgd",
        "optimizer_options": {
            "weight_decay": 0.0,
            "decay_all": False,
            "momentum": 0.9,
            "momentum_style": "classic",
            "nesterov": True,
        },
        "learning_rate": 0.1,
        "schedule": "cosine",
        "schedule_options": {},
        "warmup_epochs": 0.0,
        "learning_rates": [],
        "augmentation": "none",
        "validation_fraction": 0.1,
        "seed": 0,
        "features": ["h"],
        "normalize_features": False,
        "starts_at_zero": True,
        "preprocessing": "auto",
    }
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


def test_splits_are_those_of_the_run():
    run = Data(dataset="cifar10", split="train[:100]", test_split="x")

    def splits(run, **given):
        e = resolve_splits(Evaluate.of(**given), run).evaluation
        return e.train_split, e.test_split

    assert splits(run) == ("train[:100]", "x")
    assert splits(run, dataset="cifar10") == ("train[:100]", "x")
    assert splits(run, test_split="test") == ("train[:100]", "test")
    assert splits(run, dataset="cifar100") == ("train", "test")
    assert splits(None, dataset="cifar10") == ("train", "test")


def test_a_scale_is_a_version_of_its_own():
    paper, cpu = Evaluate(), Evaluate.of(scale="cpu")
    for name in PROTOCOLS:
        # Where the scale changes nothing the results do compare.
        equal = paper.hyperparameters(name) == cpu.hyperparameters(name)
        version = paper.version_of(name)
        assert cpu.version_of(name) == version + "-cpu" * (not equal), name
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


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run on digits whose encoder's statistics differ from initial ones."""
    folder = str(tmp_path_factory.mktemp("run"))
    saved_run.make(folder)
    return folder


def _evaluate(**values):
    options = Evaluate.of(**{"scale": "cpu", **values})
    options.validate()
    return evaluate_command.run(options)


@pytest.fixture(scope="module")
def evaluated(workdir):
    """What `evaluate` says of the run on stdout, on stderr and as JSON."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert _evaluate(workdir=workdir, linear_epochs=5) == 0
    with open(f"{workdir}/evaluation.json") as file:
        return out.getvalue(), err.getvalue(), json.load(file)


@pytest.mark.slow
def test_an_export_scores_as_its_run_does(workdir, evaluated, tmp_path, capsys):
    command = Export(Exporting(workdir, str(tmp_path)))
    assert export_command.run(command) == 0
    out = capsys.readouterr().out
    assert f"exported: {tmp_path}/1" in out
    assert "signatures: serving_default" in out
    details = exporting.details(f"{tmp_path}/1")
    assert details["label_names"] == [str(digit) for digit in range(10)]
    _evaluate(
        saved_model=str(tmp_path), dataset="digits", protocols="knn,prototype"
    )
    of_export, _ = capsys.readouterr()
    of_run = evaluated[0]

    def without_seconds(lines):
        return [line.split()[:-1] for line in lines]

    exported = of_export.splitlines()
    run = of_run.splitlines()
    assert without_seconds(exported[:4]) == without_seconds(run[:4])
    assert exported[-1] == run[-1]  # The checksum.


@pytest.mark.slow
def test_two_replicas_score_what_one_does(workdir, evaluated, tmp_path):
    exported = exporting.export(workdir, str(tmp_path / "export"))
    given = {"virtual_devices": 2, "linear_epochs": 5}
    run, export = str(tmp_path / "run"), str(tmp_path / "of_export")
    _evaluate(workdir=workdir, output_dir=run, **given)
    _evaluate(
        saved_model=exported,
        dataset="digits",
        protocols="knn,prototype",
        output_dir=export,
        **given,
    )
    expected = {
        (row["encoder"], row["protocol"], row["variant"]): row["top1"]
        for row in evaluated[2]["results"]
    }
    for folder, count in ((run, len(expected)), (export, 3)):
        with open(f"{folder}/evaluation.json") as file:
            rows = json.load(file)["results"]
        assert len(rows) == count
        for row in rows:
            name = "trained", row["protocol"], row["variant"]
            if row["encoder"] == "untrained":
                name = "untrained", *name[1:]
            # Sums of floats in another order move few images.
            assert row["top1"] == pytest.approx(expected[name], abs=0.01)


@pytest.mark.slow
def test_augmented_images_train_the_probe_and_leave_the_encoder():
    encoder = _encoder()
    before = embedding.checksum(encoder)

    def top1(augmentation, seed=0):
        given = {"linear_augmentation": augmentation, "seed": seed}
        given |= {"linear_epochs": 12, "linear_batch_size": 64}
        report = protocols.run(_subject(encoder, **given), ["linear"])
        (row,) = report["results"]
        assert row["hyperparameters"]["augmentation"] == augmentation
        return row["top1"]

    augmented = top1("randaugment")
    assert embedding.checksum(encoder) == before
    assert 0.5 < augmented < top1("none")
    # The same seed gives the same views, another one others.
    assert top1("randaugment") == augmented != top1("randaugment", seed=1)
