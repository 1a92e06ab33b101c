"""`evaluate` as a command: records, comparisons, watching a running job."""

import json
import shutil
import signal
from pathlib import Path

import contexts
import numpy as np
import PIL.Image
import processes
import pytest
import small
import tensorflow as tf
from dataset_helpers import class_folders

from tf_contrastive import checkpoints, datasets, embedding, exporting, train
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate as command
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.evaluation import comparison, figures, finetune, scoring
from tf_contrastive.evaluation.report import Report, row_name
from tf_contrastive.evaluation.subject import Subject

_RUN = {"batch_size": 256, "keep_checkpoints": 9, "epochs": 3}


def _options(**values):
    options = Evaluate.of(**{"scale": "cpu", **values})
    options.validate()
    return options


def _evaluate(**values):
    assert command.run(_options(**values)) == 0


def _report(folder):
    return json.loads((Path(folder) / "evaluation.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three epochs on the digits, with a checkpoint of each."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    train.pretrain(small.run(workdir=str(workdir), split="train", **_RUN))
    return workdir


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, not evaluated yet."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


# ---- What it leaves behind ---------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """A copy of it, evaluated by two protocols."""
    workdir = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained, workdir)
    _evaluate(workdir=str(workdir), protocols="knn,prototype")
    return workdir


@pytest.mark.slow
def test_a_folder_without_a_test_split_needs_a_fraction(run, tmp_path):
    class_folders(tmp_path / "images", per_class=50)
    name = f"folder:{tmp_path}/images"
    given = {"workdir": str(run), "dataset": name, "protocols": "knn"}
    with pytest.raises(errors.AbsentSplitError, match="test_fraction"):
        _evaluate(**given)
    given["test_fraction"] = 0.2
    # A run that learned the labels of all of them.
    config = checkpoints.load_run(str(run)).config
    learned = checkpoints.Run(fields.replace(config, dataset=name), {}, "", 0)
    (tmp_path / "link").symlink_to(tmp_path / "images")
    for spelled in (name, f"{name}/", f"folder:{tmp_path}/link"):
        options = _options(**given | {"dataset": spelled})
        with pytest.raises(errors.UserError, match="20 image"):
            scoring.open_setting(options, tf.distribute.get_strategy(), learned)
    _evaluate(**given, untrained=False)
    stored = np.load(run / "evaluation" / "trained-knn.npz")
    right, *_ = (stored[name] for name in stored if name.endswith("correct"))
    assert len(right) == 20
    # The curves of the run are those of its own dataset.
    tags = contexts.points(run / "events" / "evaluation")
    assert tags and all(tag.startswith(f"{name}/trained/") for tag in tags)


@pytest.mark.slow
def test_numbers_are_in_tensorboard_under_tags_of_their_own(evaluated):
    report = _report(evaluated)
    points = contexts.points(evaluated / "events" / "evaluation")
    step = checkpoints.load_run(str(evaluated)).step
    accuracies = ("knn/k=1", "knn/k=5", "prototype")
    assert set(points) == {
        f"{encoder}/{name}/{metric}"
        for encoder in ("trained", "untrained")
        for name in accuracies
        for metric in ("top1", "top5", "balanced_accuracy")
        if metric != "top5" or name == "prototype"
    }
    rows = {(r["encoder"], r["variant"]): r for r in report["results"]}
    top1 = [(step, pytest.approx(rows["trained", "k=1"]["top1"]))]
    assert points["trained/knn/k=1/top1"] == top1
    # The columns of the HParams page.
    columns = contexts.points(evaluated / "events" / "hparams")
    assert {*columns} >= {"last/loss", "last/prototype", "last/knn k=5"}
    assert columns["last/knn k=1"] == top1


def _let_fine_tuning_raise(monkeypatch, error):
    """With ten labels, one of each class; with more it trains."""
    train = finetune.train

    def raising(context, rows, recipe, *, trained):
        if len(rows) == 10:
            raise error
        return train(context, rows, recipe, trained=trained)

    monkeypatch.setattr(finetune, "train", raising)


@pytest.mark.slow
def test_results_are_kept_when_a_later_one_is_killed(run, monkeypatch):
    _let_fine_tuning_raise(monkeypatch, KeyboardInterrupt())
    few = {"finetune_fractions": "0.1,0.001", "finetune_epochs": "1"}
    few |= {"finetune_scratch": False, "protocols": "prototype,finetune"}
    with pytest.raises(KeyboardInterrupt):
        _evaluate(workdir=str(run), **few)
    names = [row_name(row) for row in _report(run)["results"]]
    assert names == ["prototype", "finetune 10%"]
    (entry,) = _report(run)["history"]
    assert "trained/finetune/10%/top1" in entry["metrics"]
    # `watch` measures it again.
    assert list(entry["protocols"]) == ["prototype@1"]
    stored = np.load(run / "evaluation" / "trained-finetune.npz")
    assert "10%.correct" in stored.files


@pytest.mark.slow
def test_a_divergence_is_reported_after_the_other_results(
    run, monkeypatch, capsys
):
    _let_fine_tuning_raise(monkeypatch, errors.DivergedError("diverged"))
    few = {"finetune_fractions": "0.001,0.1", "finetune_epochs": "1"}
    few |= {"finetune_scratch": True, "protocols": "finetune,prototype"}
    with pytest.raises(
        errors.DivergedError, match=r"trained .*0.1% scratch: .*; untrained "
    ):
        _evaluate(workdir=str(run), **few)
    names = [(row["encoder"], row_name(row)) for row in _report(run)["results"]]
    assert names == [
        ("trained", "finetune 10%"),
        ("trained", "finetune 10% scratch"),
        ("trained", "prototype"),
        ("untrained", "finetune 10%"),
        ("untrained", "prototype"),
    ]
    assert "finetune 10%" in capsys.readouterr().out
    (entry,) = _report(run)["history"]
    assert set(entry["protocols"]) == {"finetune@1-cpu", "prototype@1"}


def test_figures_and_arrays_of_a_protocol_are_kept(tmp_path):
    names = ("_hidden", "$a_$", "tab")
    figure = figures.maps({"$": np.zeros([3, 2])}, np.arange(3), names)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*names]
    part = {
        "metrics": {"number": 2.5, "list": [1, 2]},
        "plots": {"curve": figure},
        "arrays": {"points": np.arange(3)},
    }
    context = contexts.changed(_labelled(), name="mine")
    _add(tmp_path, context, {"": part}, "picture", 7)
    with PIL.Image.open(
        tmp_path / "evaluation/mine-picture-curve.png"
    ) as image:
        assert min(image.size) > 100
    stored = np.load(tmp_path / "evaluation/mine-picture.npz")
    assert stored["points"].tolist() == [0, 1, 2]
    points = contexts.points(tmp_path / "events/evaluation")
    assert points == {"mine/picture/number": [(7, 2.5)]}


@pytest.mark.slow
def test_all_leaves_out_protocols_without_data(trained, tmp_path, capsys):
    """An export of unlabelled data: what needs no labels is left."""
    class_folders(tmp_path, ["flat"], per_class=30)
    exporting.export(str(trained), str(tmp_path / "export"))
    _evaluate(
        saved_model=str(tmp_path / "export"),
        dataset=f"folder:{tmp_path}/flat",
        train_split="train[:50%]",
        test_split="train[50%:]",
        output_dir=str(tmp_path / "out"),
        protocols="all",
    )
    out = capsys.readouterr().out
    assert "left out: knn (" in out and "set train_split=NAME" in out
    report = _report(tmp_path / "out")
    assert {"knn", "linear", "logistic", "kmeans"} <= set(report["left_out"])
    assert "tsne" in {row["protocol"] for row in report["results"]}
    assert list((tmp_path / "out/evaluation").glob("trained-tsne*.png"))
    # Nothing is written where the export stands.
    assert not (tmp_path / "export" / "evaluation.json").exists()


def test_images_whose_labels_the_run_has_learned_are_refused(trained):
    config = checkpoints.load_run(str(trained)).config
    joint = fields.replace(config, loss="ntxent", cross_entropy_weight=1.0)
    options = _options(
        workdir=str(trained),
        protocols="knn",
        train_split="test",
        test_split="train[90%:]",
    )
    for learned in (config, joint):
        run = checkpoints.Run(learned, {}, "", 0)
        with pytest.raises(errors.UserError, match="144 image") as caught:
            scoring.open_setting(options, tf.distribute.get_strategy(), run)
        assert "such as split=train[:90%]" in str(caught.value)


# ---- Comparing ---------------------------------------------------------------


def _labelled(split="test", value=0.0, train=None):
    """A context of blank images, and an encoder with these weights."""
    images = np.zeros([60, 8, 8, 3], np.uint8)
    labels = np.arange(60) % 4
    test = datasets.from_arrays(images, labels, split=split)
    of_train = {"split": "train", "labels": labels} | (train or {})
    shown = images[: len(of_train["labels"])]
    encoder = small.convolutions(filters=(1,))
    weights = encoder.get_weights()
    encoder.set_weights([np.full_like(x, value) for x in weights])
    train = datasets.from_arrays(shown, **of_train)
    return contexts.make(encoder, train, test)


def _add(folder, context, parts, protocol="knn", step=1):
    """Adds parts of a protocol, by variant, to a new report."""
    facts = {"dataset": "d", "train_split": "a", "test_split": "b"}
    report = Report(str(folder), facts | {"scale": "cpu", "step": step})
    facts = {"protocol": protocol, "version": "1", "hyperparameters": {}}
    report.begin(embedding.checksum(context.subject.encoder), {})
    for variant, part in parts.items():
        report.add(context, facts | {"variant": variant}, part, 1.0)


def _record(folder, *, protocol="knn", part=None, context=None, **hits):
    """Writes one protocol's record, of variants and what each had right."""
    parts = {
        name: {"correct": np.array(right), **(part or {})}
        for name, right in hits.items()
    }
    _add(folder, context or _labelled(), parts, protocol)
    return str(folder)


def test_comparison_finds_better_worse_and_tied(tmp_path, capsys):
    weak = [True] * 30 + [False] * 30
    strong = [True] * 50 + [False] * 10
    a = _record(tmp_path / "a", up=strong, down=weak, even=weak, more=weak)
    b = _record(tmp_path / "b", up=weak, down=strong, even=weak)
    options = _options(compare=f"{a},{b}", output_dir=str(tmp_path))
    assert command.run(options) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "comparison.json").read_text())
    rows = {r["variant"]: r for r in report["results"]}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {"up": "better", "down": "worse", "even": "tied"}
    up, down = rows["up"], rows["down"]
    assert up["difference"] == pytest.approx(20 / 60)
    assert up["difference"] == pytest.approx(up["top1_a"] - up["top1_b"])
    assert 0 < up["low"] < up["difference"] < up["high"]
    assert down["difference"] == -up["difference"]
    assert up["p_value"] < 0.001 and rows["even"]["p_value"] == 1.0
    assert f"A: {a}" in out and "better" in out and "worse" in out
    (row,) = report["left_out"]
    assert (row["variant"], row["reason"]) == ("more", f"not measured for {b}")
    assert "left out: knn more" in out


def test_what_results_are_of_decides_whether_they_compare(tmp_path):
    """Their dataset's split, not the run's; and how it was corrupted."""
    hits = {"only": [True] * 30 + [False] * 30}
    dtd = {"part": {"dataset": "dtd"}, **hits}
    a, b = (
        _record(tmp_path / split, context=_labelled(split), **dtd)
        for split in ("test", "validation")
    )
    (row,) = comparison.compare(a, b)["results"]
    assert row["dataset"] == "dtd"
    _record(tmp_path / "validation", context=_labelled("validation"), **hits)
    _record(tmp_path / "test", **hits)
    with pytest.raises(errors.UserError, match=r"common .*split test of"):
        comparison.compare(a, b)
    a, b, c = (
        _record(
            tmp_path / name, part={"resolved": {"prepared": prepared}}, **hits
        )
        for name, prepared in (("a", ["frost"]), ("b", []), ("c", ["frost"]))
    )
    with pytest.raises(errors.UserError, match="prepared"):
        comparison.compare(a, b)
    assert comparison.compare(a, c)["results"]


@pytest.mark.parametrize("train", [{"split": "train[:3%]"}, {"labels": [0, 1]}])
def test_classifiers_of_other_training_images_do_not_compare(train, tmp_path):
    """Unless they have not learnt from these."""
    for number, (protocol, part, is_left_out) in enumerate(
        (
            *((name, None, True) for name in ("knn", "finetune", "robustness")),
            ("robustness", {"learns": False}, False),
            ("head", None, False),
            ("transfer", {"dataset": "dtd"}, False),
        )
    ):
        hits = {"only": [True, False] * 30, "part": part, "protocol": protocol}
        others = _labelled(train=train)
        a = _record(tmp_path / f"a{number}", **hits)
        b = _record(tmp_path / f"b{number}", context=others, **hits)
        if is_left_out:
            with pytest.raises(errors.UserError, match=r"only: .*train_"):
                comparison.compare(a, b)
        else:
            assert comparison.compare(a, b)["results"]


def test_results_of_several_checkpoints_are_reported(tmp_path):
    hits = [True] * 30 + [False] * 30
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for folder, value in ((a, 0.0), (b, 1.0)):
        _record(folder, only=hits)
        context = _labelled(value=value)
        _record(folder, protocol="prototype", context=context, only=hits)
    (line,) = comparison.compare(a, b)["warnings"]
    assert line.startswith(f"{b}: ")


def test_a_run_compares_with_its_untrained_encoder(evaluated):
    report = comparison.compare(str(evaluated), f"{evaluated}:untrained")
    rows = {row_name(r): r for r in report["results"]}
    assert list(rows) == ["knn k=1", "knn k=5", "prototype"]
    top1 = {
        (r["encoder"], row_name(r)): r["top1"]
        for r in _report(evaluated)["results"]
    }
    for name, row in rows.items():
        expected = top1["trained", name] - top1["untrained", name]
        assert row["difference"] == pytest.approx(expected)
        assert row["low"] <= row["difference"] <= row["high"]


# ---- Watching ----------------------------------------------------------------


def _watch(workdir, protocols="prototype", **values):
    return _options(
        workdir=str(workdir),
        protocols=protocols,
        watch=True,
        watch_every_seconds=0.2,
        **values,
    )


def _steps(workdir):
    return [entry["step"] for entry in _report(workdir)["history"]]


@pytest.mark.slow
def test_every_checkpoint_is_scored_once_until_the_run_has_ended(
    run, monkeypatch, capsys
):
    """Also by a protocol that diverges, after the others."""
    _let_fine_tuning_raise(monkeypatch, errors.DivergedError("diverged"))
    few = {"finetune_fractions": "0.001", "finetune_epochs": "1"}
    options = _watch(run, protocols="finetune,prototype", **few)
    assert command.run(options) == 0
    assert _steps(run) == [5, 10, 15]
    said = capsys.readouterr()
    assert "the run has ended: 3 checkpoint(s) scored" in said.err
    assert said.err.count("0.1%: diverged") >= 3
    assert {r["encoder"] for r in _report(run)["results"]} == {"trained"}
    points = contexts.points(run / "events" / "evaluation")
    assert [step for step, _ in points["trained/prototype/top1"]] == [5, 10, 15]
    # What is done stays done.
    assert command.run(_watch(run)) == 0
    assert "0 checkpoint(s) scored" in capsys.readouterr().err
    # With other data it is not done.
    assert command.run(_watch(run, test_split="test[:100]")) == 0
    assert "3 checkpoint(s) scored" in capsys.readouterr().err


@pytest.mark.slow
def test_watch_leaves_out_checkpoints_before_one_that_is_scored(
    evaluated, tmp_path, capsys
):
    run = Path(shutil.copytree(evaluated, tmp_path / "run"))
    assert command.run(_watch(run)) == 0
    assert "0 checkpoint(s) scored" in capsys.readouterr().err
    assert _steps(run) == [15]


@pytest.mark.slow
def test_watch_skips_deleted_checkpoints(run, capsys, monkeypatch):
    load = Subject.of_run

    def deleted_meanwhile(found, **kwargs):
        if found.step == 10:
            for path in (run / "checkpoints").glob("ckpt-10*"):
                path.unlink()
        return load(found, **kwargs)

    monkeypatch.setattr(Subject, "of_run", deleted_meanwhile)

    assert command.run(_watch(run, untrained=False)) == 0
    assert _steps(run) == [5, 15]
    err = capsys.readouterr().err
    assert "step 10: skipped" in err
    assert "the run has ended: 2 checkpoint(s) scored" in err


@pytest.mark.slow
def test_watch_waits_for_the_first_whole_checkpoint(run, monkeypatch):
    files = [*(run / "checkpoints").glob("ckpt-*.data*")]
    whole = {file: file.read_bytes() for file in files}
    for file, content in whole.items():
        file.write_bytes(content[:10])

    def wait(seconds):
        for file, content in whole.items():
            file.write_bytes(content)

    monkeypatch.setattr(command.time, "sleep", wait)
    assert command.run(_watch(run, untrained=False)) == 0
    assert _steps(run) == [5, 10, 15]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_watch_notices_that_the_run_is_another(change, run, monkeypatch):
    for path in (run / "checkpoints").glob("ckpt-1*"):
        path.unlink()

    def wait(seconds):
        file = run / "config.flags"
        text = file.read_text()
        file.unlink()
        if change == "replaced":
            file.write_text(text.replace("--seed=", "--seed=9"))

    monkeypatch.setattr(command.time, "sleep", wait)
    with pytest.raises(errors.UserError, match=str(run)):
        command.run(_watch(run, untrained=False))


def _steps_or_none(workdir):
    try:
        return _steps(workdir)
    except (OSError, ValueError):
        return None


# The command, which looks more often.
_WATCH = """
import sys
from tests import small
from tf_contrastive import flags
from tf_contrastive.base import terminal
from tf_contrastive.commands import evaluate
from tf_contrastive.config import fields
terminal.configure("normal")
options = flags.parse(evaluate.Evaluate, sys.argv[1:])
with small.encoder():
    sys.exit(evaluate.run(fields.replace(options, watch_every_seconds=0.2)))
"""


@pytest.mark.slow
def test_a_live_run_is_watched_to_its_end(tmp_path):
    run = tmp_path / "run"
    words = small.words(
        **{"learning_rate": 0.5, "epochs": 50, "workdir": run},
        checkpoint_every_steps=50,
        runtime_options="keep_checkpoints=9",
    )
    folder = run / "checkpoints"
    watch = processes.python(
        *(_WATCH, "--watch", f"--workdir={run}", "--protocols=prototype"),
        *("--scale=cpu", "--train_split=train[:256]", "--test_split=test"),
    )
    with processes.start(processes.small("pretrain", *words)) as training:
        processes.wait_for((run / "config.flags").exists, training)
        with processes.start(watch) as watching:
            processes.wait_for(lambda: small.newest(run) >= 50, training)
            # It waits for the first result: the watch must be beside it.
            training.kill(signal.SIGSTOP)
            processes.wait_for(lambda: _steps_or_none(run), watching)
            assert training.running()
            early = _steps(run)
            training.kill(signal.SIGCONT)
            assert training.ended() == 0, training.output
            assert watching.ended() == 0, watching.output
            told = watching.output
    steps = [50, 100, 150, 200]
    assert early and early[-1] < steps[-1]
    assert _steps(run) == steps
    assert "the run has ended: 4 checkpoint(s) scored" in told
    assert told.index("step 50:") < told.index("step 200:")
    # Each result is of the weights of its step.
    found = checkpoints.load_run(str(run))
    with small.encoder():
        for entry in _report(run)["history"]:
            at = found.at(str(folder / f"ckpt-{entry['step']}"))
            encoder = checkpoints.load_encoder(at)
            assert embedding.checksum(encoder) == entry["checksum"]
    points = contexts.points(run / "events" / "evaluation")
    found, tops = zip(*points["trained/prototype/top1"], strict=True)
    assert [*found] == steps
    assert len(set(tops)) > 1 and tops[-1] > 0.3
