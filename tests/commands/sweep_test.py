"""Grids of runs: values, folders, failures, resuming, tables."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import processes as running
import pytest
import saved_run
import small
from PIL import Image

from tf_contrastive.base import errors, processes
from tf_contrastive.commands import sweep
from tf_contrastive.config import own

_GRID = ("--learning_rate=0.1,0.3", "--temperature=0.2,0.5")


class _Commands:
    """Stands for the processes: records commands, and writes results."""

    def __init__(self):
        self.calls, self.checks = [], []
        self.checked = 0  # The status of the check before the runs.
        # Part of a command -> what `processes.run` returns for it.
        self.ends = {}
        self.scores = itertools.count(1)
        self.losses = itertools.repeat(None)
        self.protocol, self.variants = "knn", ("k=1", "k=5")

    def __call__(self, words):
        if words[0] == "sweep":
            self.checks.append(words)
            return self.checked, ""
        self.calls.append(words)
        for part, ended in self.ends.items():
            if part in " ".join(words):
                return ended
        folder = Path(words[-1].partition("=")[2])
        if words[0] == "pretrain":
            result = {"steps": 8, "seconds": 1.0, "loss": 1.5}
            result["val_loss"] = next(self.losses)
            (folder / "pretrain.json").write_text(json.dumps(result))
            return 0, ""
        rows = [
            saved_run.score(
                encoder, self.protocol, variant, next(self.scores) / 100
            )
            for encoder in ("trained", "untrained")
            for variant in self.variants
        ]
        report = {"results": rows, "history": []}
        (folder / "evaluation.json").write_text(json.dumps(report))
        return 0, ""

    def take(self):
        """Returns the commands since the last call, as command and swept."""
        calls, self.calls = self.calls, []
        return [(x[0], Path(x[-1]).name.rpartition("-")[0]) for x in calls]


@pytest.fixture
def commands(monkeypatch):
    stub = _Commands()
    monkeypatch.setattr(processes, "run", stub)
    return stub


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(own, "allowed", set())

    def call(*words):
        return small.command("sweep", f"--workdir={tmp_path / 's'}", *words)

    return call


def _table(folder):
    return json.loads((folder / sweep.TABLE).read_text())


@pytest.mark.parametrize(
    ("words", "flag", "values"),
    [
        (["--learning_rate=0.1,0.3"], "learning_rate", ["0.1", "0.3"]),
        (["--learning_rate=0.1;0.3"], "learning_rate", ["0.1", "0.3"]),
        (["--learning_rate", "0.1, 0.3"], "learning_rate", ["0.1", "0.3"]),
        (["--learning_rate=auto,0.3"], "learning_rate", ["auto", "0.3"]),
        (["--loss=supcon,ntxent"], "loss", ["supcon", "ntxent"]),
        (["--flip=true,false"], "flip", ["true", "false"]),
        # The last holds, as always.
        (["--seed=0,1", "--seed=7"], "seed", ["7"]),
        # Values with commas.
        (["--profile_steps=1,2"], "profile_steps", ["1,2"]),
        (["--profile_steps=1,2;3,4"], "profile_steps", ["1,2", "3,4"]),
        (["--init_from=a;b"], "init_from", ["a", "b"]),
        (["--init_from=;b"], "init_from", ["", "b"]),
        (["--init_from=a,b"], "init_from", ["a,b"]),
        # Of families, whose options are separated by commas.
        (
            ["--loss=supcon", "--loss_options=positives_cap=1;positives_cap=2"],
            *("loss_options", ["positives_cap=1", "positives_cap=2"]),
        ),
        (
            [
                "--loss=supcon",
                "--loss_options=denominator=all,positives_cap=1",
            ],
            *("loss_options", ["denominator=all,positives_cap=1"]),
        ),
    ],
)
def test_values_of_a_flag(run, capsys, words, flag, values):
    assert run("--print=commands", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    trained = [line for line in lines if " pretrain " in line]
    given = [re.findall(rf"--{flag}='?([^ ']*)", line) for line in trained]
    assert given == [[value] for value in values]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["no flags of pretrain"]),
        (["--learning_rate=0.1,x"], ["--learning_rate=x"]),
        (["--temprature=0.1,0.2"], ["--temprature"]),
        (["--seed=0,"], ["--seed"]),
        (["--learning_rate=0.1,0.10"], ["learning_rate=0.10", "equal run"]),
        # A pair of values that do not go together, of several that do.
        (
            ["--batch_size=64,8", "--loss=ntxent,moco", "--queue_size=32"],
            ["batch_size=64, loss=moco", "--queue_size=32"],
        ),
        (["--seed=0,1", "--run=2"], ["--run=2"]),
        (["--seed=1", "--evaluate_protocls=knn"], ["--protocls"]),
        (["--seed=1", "--evaluate_knn_k=0"], ["--knn_k=0"]),
        (["--seed=1", "--noevaluate", "--evaluate_bogus=1"], ["--bogus"]),
        (["--seed=1", "--evaluate_protocols=knn,knn"], ["--protocols=knn,knn"]),
        (["--seed=1", "--evaluate_output_dir=x"], ["--evaluate_output_dir"]),
        # Each key is one option: no comma makes two runs of it.
        (
            ["--loss=supcon", "--loss_options=positives_cap=1,2"],
            ["--loss_options=positives_cap=1,2"],
        ),
        (["--seed=1", "--flagfile=GRID"], ["--learning_rate=0.1,0.3"]),
        # A flagfile's parts are not allowed.
        (["--seed=0,1", "--flagfile=PARTS"], ["--own_modules=my_parts"]),
    ],
)
def test_a_grid_that_cannot_work_runs_nothing(
    run, commands, capsys, tmp_path, words, parts
):
    for name, text in (
        ("GRID", "--learning_rate=0.1,0.3"),
        ("PARTS", "--encoder=my_parts:network"),
    ):
        (tmp_path / name).write_text(text)
        words = [word.replace(name, str(tmp_path / name)) for word in words]
    assert run(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line
    assert not commands.calls
    assert not (tmp_path / "s").exists()


def test_the_last_value_of_a_flag_comes_after_a_flagfile(run, capsys, tmp_path):
    (tmp_path / "FLAGS").write_text("--epochs=50")
    words = ["--epochs=5", f"--flagfile={tmp_path / 'FLAGS'}", "--epochs=7"]
    assert run("--print=commands", *words) == 0
    command = capsys.readouterr().out.splitlines()[0]
    assert command.index("--flagfile") < command.index("--epochs=7")
    assert "--epochs=5 " not in command


def test_every_combination_is_trained_and_scored(run, commands, tmp_path):
    assert run(*_GRID, "--dataset=digits", "--noevaluate_untrained") == 0
    pretrain, evaluate = commands.calls[:2]
    flags = ["--learning_rate=0.1", "--temperature=0.2", "--dataset=digits"]
    assert pretrain[:-1] == ["pretrain", *flags]
    flags = ["--protocols=knn", "--nountrained", "--nountrained"]
    assert evaluate[:-1] == ["evaluate", *flags]
    assert pretrain[-1] == evaluate[-1]
    names = [
        f"learning_rate={rate},temperature={temperature}"
        for rate in ("0.1", "0.3")
        for temperature in ("0.2", "0.5")
    ]
    done = [(c, name) for name in names for c in ("pretrain", "evaluate")]
    assert commands.take() == done
    # The last had the highest numbers.
    report = _table(tmp_path / "s")
    assert report["metric"] == "knn/k=5/top1"
    rows = report["runs"]
    assert [row["name"].rpartition("-")[0] for row in rows] == names[::-1]
    accuracies = [row["metrics"]["knn/k=5/top1"] for row in rows]
    assert accuracies == [0.14, 0.10, 0.06, 0.02]
    assert {row["status"] for row in rows} == {"finished"}
    assert rows[0]["options"]["temperature"] == "0.5"
    values = [["learning_rate", "0.3"], ["temperature", "0.5"]]
    assert rows[0]["values"] == values


def test_what_is_finished_is_not_repeated(run, commands, tmp_path):
    rates = ("--learning_rate=0.1,0.3", "--dataset=digits")
    assert run(*rates) == 0
    assert len(commands.take()) == 4
    before = _table(tmp_path / "s")["runs"]
    # Results of another evaluation of a run do not rank it.
    (other,) = (tmp_path / "s").glob("learning_rate=0.1*/evaluation.json")
    other.write_text('{"results": [], "history": []}')
    assert run(*rates) == 0
    assert commands.take() == []
    assert _table(tmp_path / "s")["runs"] == before
    # A value is added.
    more = ("--learning_rate=0.1,0.3,0.5", "--dataset=digits")
    assert run(*more) == 0
    added = "learning_rate=0.5"
    assert commands.take() == [("pretrain", added), ("evaluate", added)]
    assert len(_table(tmp_path / "s")["runs"]) == 3
    # Only the scoring has changed, and then how often it logs.
    again = (*rates, "--evaluate_knn_k=3")
    assert run(*again) == 0
    assert [name for name, _ in commands.take()] == ["evaluate"] * 2
    assert run(*again, "--log_every_steps=1") == 0
    assert [name for name, _ in commands.take()] == ["pretrain", "evaluate"] * 2


def test_a_failure_is_named_and_stops_no_other(run, commands, tmp_path, capsys):
    why = "tf_contrastive: the loss is not finite"
    commands.ends = {"--learning_rate=0.1 --temperature=0.2": (2, why)}
    assert run(*_GRID) == 1
    assert len(commands.take()) == 7
    output = capsys.readouterr().out
    assert "pretrain: the loss is not finite (status 2)" in output
    last = _table(tmp_path / "s")["runs"][-1]
    assert (last["status"], last["metrics"]) == ("failed", {})
    # It is tried again, and the others are not.
    commands.ends = {}
    assert run(*_GRID) == 0
    assert len(commands.take()) == 2
    # A failed evaluation does not repeat the training, nor show old numbers.
    commands.ends = {"evaluate": (2, "no labels")}
    assert run(*_GRID, "--evaluate_knn_k=3") == 1
    assert {name for name, _ in commands.take()} == {"evaluate"}
    for row in _table(tmp_path / "s")["runs"]:
        assert row["metrics"] == {"loss": 1.5}
        assert row["status"] == "failed"
    assert run(*_GRID, "--noevaluate") == 0
    assert commands.take() == []


def test_an_interrupted_sweep_resumes(run, commands, tmp_path):
    saved = (errors.EXIT_RESUME, "saved")
    commands.ends = {"--learning_rate=0.3 --temp": saved}
    assert run(*_GRID) == errors.EXIT_RESUME
    assert len(commands.take()) == 5
    commands.ends = {}
    assert run(*_GRID) == 0
    assert [name for name, _ in commands.take()] == ["pretrain", "evaluate"] * 2


def test_without_accuracies_the_smallest_loss_is_best(run, commands, tmp_path):
    """A run without results is last."""
    commands.losses = iter([0.5, 0.3, 0.4])
    commands.ends = {"--learning_rate=0.1 --temperature=0.2": (2, "")}
    assert run(*_GRID, "--noevaluate") == 1
    report = _table(tmp_path / "s")
    assert report["metric"] == "val_loss"
    losses = [row["metrics"].get("val_loss") for row in report["runs"]]
    assert losses == [0.3, 0.4, 0.5, None]


def test_networks_that_did_not_start_from_the_run_do_not_rank_it(
    run, commands, tmp_path
):
    commands.protocol = "finetune"
    commands.variants = "100%", "100% scratch"
    assert run("--learning_rate=0.1,0.3") == 0
    assert _table(tmp_path / "s")["metric"] == "finetune/100%/top1"


def test_own_parts_are_allowed_in_the_evaluation(run, commands):
    assert run("--learning_rate=0.1", "--own_modules=mine,others") == 0
    assert len(commands.calls) == 2
    assert all("--own_modules=mine,others" in x for x in commands.calls)


def test_what_would_end_a_run_is_found_before_the_first(run, commands, capsys):
    commands.checked = 2
    assert run(*_GRID, "--run=1") == 2 and not commands.calls
    assert len(commands.checks) == 1
    capsys.readouterr()
    commands.checked = -9
    assert run(*_GRID, "--run=1") and not commands.calls
    assert "check" in capsys.readouterr().err.splitlines()[-1]
    commands.checked = 0
    assert run(*_GRID) == 0
    commands.checks.clear()
    # Nothing is missing now.
    assert run(*_GRID) == 0 and not commands.checks


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--dataset=digits,folder:/nowhere"], ["folder:/nowhere"]),
        (["--dataset=imagenet2012", "--data_dir=/nowhere"], ["imagenet2012"]),
        (["--dataset=digits", "--init_from=/nowhere"], ["/nowhere"]),
        (["--dataset=digits", "--batch_size=4,4096"], ["batch_size=4096:"]),
        (
            ["--dataset=digits", "--evaluate_dataset=folder:/nowhere"],
            ["folder:/nowhere"],
        ),
        (["--dataset=digits", "--evaluate_test_split=nope"], ["nope"]),
        (["--dataset=FOLDER", "--loss=ntxent"], ["--test_fraction="]),
        (["--dataset=FOLDER", "--loss=supcon,ntxent"], ["loss=supcon"]),
        # All is there.
        (["--dataset=digits", "--learning_rate=0.1,0.3"], None),
    ],
)
def test_data_are_opened_before_the_first_run(
    run, commands, capsys, tmp_path, words, parts
):
    images = tmp_path / "images"
    images.mkdir()
    for number in range(8):
        pixels = np.full([8, 8, 3], number, np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.png")
    grid = [word.replace("FOLDER", f"folder:{images}") for word in words]
    small = ("--encoder=convnet", "--image_size=8", "--batch_size=4")
    status = run(*small, *grid, "--print=check")
    out, err = capsys.readouterr()
    assert status == 2 * (parts is not None) and not out
    assert all(part in err.splitlines()[-1] for part in parts or ()), err
    assert not commands.calls and not (tmp_path / "s").exists()


def test_a_task_of_an_array_does_one_run(run, commands, tmp_path):
    assert run(*_GRID, "--run=2") == 0
    name = "learning_rate=0.3,temperature=0.2"
    assert commands.take() == [("pretrain", name), ("evaluate", name)]
    (check,) = commands.checks
    assert {"--print=check", "--run=2", *_GRID} <= {*check}
    assert not (tmp_path / "s" / sweep.TABLE).exists()


@pytest.mark.slow
def test_a_killed_sweep_of_digits_resumes(run, tmp_path, capfd):
    words = (
        *("--dataset=digits", "--encoder=convnet", "--split=train[:256]"),
        *("--batch_size=64", "--epochs=10", "--augmentation=crop"),
        *("--evaluate_protocols=knn", *small.FLAGS, "--seed=0"),
    )
    command = running.main("sweep", f"--workdir={tmp_path / 's'}", *words)
    with running.start(command) as sweeping:
        saved = "s/*/checkpoints/*.index"
        running.wait_for(lambda: [*tmp_path.glob(saved)], sweeping)
    assert run(*words) == 0
    assert "resumed at step" in capfd.readouterr().err
    (row,) = _table(tmp_path / "s")["runs"]
    assert row["status"] == "finished"
    assert row["metrics"]["knn/k=5/top1"] > 0.3
