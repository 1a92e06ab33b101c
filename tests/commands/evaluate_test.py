"""`evaluate` as a command: records, comparisons, watching a running job."""

import functools
import json
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import contexts
import numpy as np
import PIL.Image
import processes
import pytest
import small
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, embedding, exporting, train
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate as command
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import comparison, figures, finetune, scoring
from tf_contrastive.evaluation.context import Data
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
    for number, example in enumerate(datasets.load("digits", "train")[0]):
        folder = tmp_path / "images" / str(example["label"].numpy())
        folder.mkdir(parents=True, exist_ok=True)
        image = PIL.Image.fromarray(example["image"].numpy())
        image.save(folder / f"{number}.png")
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
        with pytest.raises(errors.UserError, match="287 image"):
            scoring.open_setting(options, tf.distribute.get_strategy(), learned)
    _evaluate(**given, untrained=False)
    stored = np.load(run / "evaluation" / "trained-knn.npz")
    right, *_ = (stored[name] for name in stored if name.endswith("correct"))
    assert len(right) == pytest.approx(1437 / 5, abs=5)
    assert right.mean() > 0.5
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


def _stub(monkeypatch, name, *measurements):
    """Lets a protocol have these variants' measurements, or raise them."""

    def measured(result):
        if isinstance(result, BaseException):
            raise result
        return result

    def measure(context, **_):
        for variant, result in measurements:
            yield variant, functools.partial(measured, result)

    # The function is found from the declaration.
    monkeypatch.setattr(sys.modules[__name__], "stub", measure, raising=False)
    path = f"{__name__}:stub"
    monkeypatch.setattr(PROTOCOLS[name], "implementation", path)


@pytest.mark.slow
def test_results_are_kept_when_a_later_one_is_killed(run, monkeypatch):
    hits = {"top1": 1.0, "correct": np.ones([360], bool)}
    killed = ("", KeyboardInterrupt())
    _stub(monkeypatch, "finetune", ("1%", hits), ("10%", hits), killed)
    with pytest.raises(KeyboardInterrupt):
        _evaluate(workdir=str(run), protocols="prototype,finetune")
    names = [row_name(row) for row in _report(run)["results"]]
    assert names == ["prototype", "finetune 1%", "finetune 10%"]
    (entry,) = _report(run)["history"]
    assert "trained/finetune/10%/top1" in entry["metrics"]
    # `watch` measures it again.
    assert list(entry["protocols"]) == ["prototype@1"]
    stored = np.load(run / "evaluation" / "trained-finetune.npz")
    assert {"1%.correct", "10%.correct"} < set(stored.files)


@pytest.mark.slow
def test_a_divergence_is_reported_after_the_other_results(
    run, monkeypatch, capsys
):
    train = finetune.train

    def diverging(context, rows, recipe, *, trained):
        if len(rows) == 10:
            raise errors.DivergedError("diverged")
        return train(context, rows, recipe, trained=trained)

    monkeypatch.setattr(finetune, "train", diverging)
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
    subject = _Labelled(name="mine")
    _add(tmp_path, subject, {"": part}, "picture", 7)
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
    images = np.random.default_rng(0).integers(0, 256, [30, 8, 8, 3], np.uint8)
    (tmp_path / "flat").mkdir()
    for number, pixels in enumerate(images):
        image = PIL.Image.fromarray(pixels)
        image.save(tmp_path / "flat" / f"{number}.png")
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
    with pytest.raises(errors.UserError, match="144 image") as caught:
        _evaluate(
            workdir=str(trained),
            protocols="knn",
            train_split="test",
            test_split="train[90%:]",
        )
    assert "such as split=train[:90%]" in str(caught.value)


# ---- Comparing ---------------------------------------------------------------


class _Labelled:
    """The part of a subject that records look at."""

    def __init__(self, split="test", value=0.0, name="trained", train=None):
        images = np.zeros([60, 8, 8, 3], np.uint8)
        labels = np.arange(60) % 4
        test = datasets.from_arrays(images, labels, split=split)
        of_train = {"split": "train", "labels": labels} | (train or {})
        shown = images[: len(of_train["labels"])]
        self.data = Data(datasets.from_arrays(shown, **of_train), test)
        encoder = tf.Module()
        encoder.weight = tf.Variable(value)
        self.subject = Subject(encoder, name=name)


def _add(folder, context, parts, protocol="knn", step=1):
    """Adds parts of a protocol, by variant, to a new report."""
    facts = {"dataset": "d", "train_split": "a", "test_split": "b"}
    report = Report(str(folder), facts | {"scale": "cpu", "step": step})
    facts = {"protocol": protocol, "version": "1", "hyperparameters": {}}
    report.begin(embedding.checksum(context.subject.encoder), {})
    for variant, part in parts.items():
        report.add(context, facts | {"variant": variant}, part, 1.0)


def _record(folder, *, protocol="knn", part=None, subject=None, **hits):
    """Writes one protocol's record, of variants and what each had right."""
    parts = {
        name: {"correct": np.array(right), **(part or {})}
        for name, right in hits.items()
    }
    _add(folder, subject or _Labelled(), parts, protocol)
    return str(folder)


def test_comparison_finds_better_worse_and_tied(tmp_path, capsys):
    weak = [True] * 30 + [False] * 30
    strong = [True] * 50 + [False] * 10
    # 10 examples that a alone has right, 3 that b alone has (SimCLR, B.8).
    near = [True] * 17 + [False] * 10 + [True] * 3 + [False] * 30
    far = [True] * 17 + [True] * 10 + [False] * 3 + [False] * 30
    a = _record(tmp_path / "a", up=strong, down=weak, even=weak, near=far)
    b = _record(tmp_path / "b", up=weak, down=strong, even=weak, near=near)
    options = _options(compare=f"{a},{b}", output_dir=str(tmp_path))
    assert command.run(options) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "comparison.json").read_text())
    rows = {r["variant"]: r for r in report["results"]}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    outcomes = {"up": "better", "down": "worse", "even": "tied", "near": "tied"}
    assert verdicts == outcomes
    up, down = rows["up"], rows["down"]
    assert up["difference"] == pytest.approx(20 / 60)
    assert up["difference"] == pytest.approx(up["top1_a"] - up["top1_b"])
    assert 0 < up["low"] < up["difference"] < up["high"]
    assert down["difference"] == -up["difference"]
    assert up["p_value"] < 0.001 and rows["even"]["p_value"] == 1.0
    # Within 4 standard errors of 100,000 draws.
    assert rows["near"]["p_value"] == pytest.approx(0.0922851563, abs=0.0037)
    assert f"A: {a}" in out and "better" in out and "worse" in out


def test_what_results_are_of_decides_whether_they_compare(tmp_path):
    """Their dataset's split, not the run's; and how it was corrupted."""
    hits = {"only": [True] * 30 + [False] * 30}
    dtd = {"part": {"dataset": "dtd"}, **hits}
    a, b = (
        _record(tmp_path / split, subject=_Labelled(split), **dtd)
        for split in ("test", "validation")
    )
    (row,) = comparison.compare(a, b)["results"]
    assert row["dataset"] == "dtd"
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
        others = _Labelled(train=train)
        a = _record(tmp_path / f"a{number}", **hits)
        b = _record(tmp_path / f"b{number}", subject=others, **hits)
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
        subject = _Labelled(value=value)
        _record(folder, protocol="prototype", subject=subject, only=hits)
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
    same = comparison.compare(str(evaluated), str(evaluated))
    assert {r["verdict"] for r in same["results"]} == {"tied"}


@pytest.mark.slow
def test_incomparable_results_are_left_out_with_a_reason(evaluated, run):
    options = {"workdir": str(run), "protocols": "knn,prototype"}
    options |= {"knn_k": "1,3", "untrained": False}
    _evaluate(**options, test_split="test[:200]")
    with pytest.raises(errors.UserError, match="no result in common") as told:
        comparison.compare(str(evaluated), str(run))
    assert "split test of" in str(told.value)
    _evaluate(**options)
    report = comparison.compare(str(evaluated), str(run))
    assert [row_name(r) for r in report["results"]] == ["prototype"]
    reasons = {r["variant"]: r["reason"] for r in report["left_out"]}
    assert "hyperparameters {'k': [1, 5]" in reasons["k=1"]
    assert "not measured for" in reasons["k=3"]


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
    error = errors.DivergedError("1% diverged")
    with monkeypatch.context() as patch:
        _stub(patch, "finetune", ("1%", error))
        options = _watch(run, protocols="finetune,prototype")
        assert command.run(options) == 0
    assert _steps(run) == [5, 10, 15]
    said = capsys.readouterr()
    assert "the run has ended: 3 checkpoint(s) scored" in said.err
    assert said.err.count("1% diverged") >= 3
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
    away = run / "away"
    away.mkdir()
    for path in (run / "checkpoints").glob("ckpt-15*"):
        shutil.move(path, away)
    load = Subject.of_run

    def deleted_meanwhile(found, **kwargs):
        if found.step == 10:
            for path in (run / "checkpoints").glob("ckpt-10*"):
                path.unlink()
        return load(found, **kwargs)

    monkeypatch.setattr(Subject, "of_run", deleted_meanwhile)

    def finish():
        while _steps_or_none(run) != [5]:
            time.sleep(0.05)
        time.sleep(0.5)
        for path in sorted(away.iterdir(), key=lambda p: p.suffix == ".index"):
            shutil.move(path, run / "checkpoints")

    thread = threading.Thread(target=finish)
    thread.start()
    assert command.run(_watch(run, untrained=False)) == 0
    thread.join()
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
