"""Step, input and kNN beside lightly, whose interpreter is a fake one."""

import collections
import json
import sys

import pytest

from lab.benchmarks import peer
from lab.commands import benchmark as command
from tf_contrastive import __main__, flags

# Runs the program of lightly with a task of a test instead of its own.
_FAKE = """#!{python}
import importlib.metadata, json, os, sys
if sys.argv[1] == "-c":
    print("{missing}")
    sys.exit()
importlib.metadata.version = lambda name: "9.9"
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import peer_program

def task(**case):
    print("a line of a package, on stdout")
    with open({folder!r} + "/case.json", "w") as file:
        json.dump(case, file)
    z = case.get("projections", [[], []])
    {start}
    return about, turn

TURNS = []

def turn():
    {turn}
    with open({folder!r} + "/turns", "a") as file:
        file.write("lightly ")
    return 50.0

peer_program.TASKS = dict.fromkeys(("step", "views", "knn"), task)
del sys.argv[0]
peer_program.main()
"""
_ABOUT = "about = {'settings': '3 gears', 'parameters': 12, 'loss': 0.5}"
_STEP = "step, one of the test"


@pytest.fixture
def python(tmp_path):
    """Makes an interpreter that `start` and `turn` describe."""

    def make(start=_ABOUT, turn="pass", missing=""):
        path = tmp_path / "python"
        text = _FAKE.format(
            python=sys.executable,
            folder=str(tmp_path),
            missing=missing,
            start=start,
            turn=turn,
        )
        path.write_text(text)
        path.chmod(0o755)
        return f"--peer_python={path}"

    return make


@pytest.fixture
def one_case(tmp_path, monkeypatch):
    """One case, whose own part is a number; returns what took turns."""

    def ours():
        with open(tmp_path / "turns", "a") as file:
            file.write("ours ")
        return 100.0

    facts = {"parameters": 12, "loss": 0.5}
    case = peer.Case(_STEP, {"ours": (ours, "usual")}, facts, {"task": "step"})
    monkeypatch.setattr(peer, "cases", lambda *_: [case])
    return tmp_path / "turns"


def _refused(words, monkeypatch, capsys):
    words = ["tf_contrastive", "benchmark", *words]
    monkeypatch.setattr(sys, "argv", words)
    assert __main__.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (None, ("torch, torchvision, lightly", "-m venv")),
        ("#!/bin/sh\nexit 3\n", ("does not run", "-m venv")),
        ("\x7fELF", ("does not run", "-m venv")),
        ("#!/bin/sh\necho torchvision\n", ("no torchvision:", "-m pip")),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_one_line(
    script, named, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "python"
    if script:
        path.write_text(script)
        path.chmod(0o755)
    for words in (["peer"], ["all"]):
        words = [*words, f"--peer_python={path}"]
        line = _refused(words, monkeypatch, capsys)
        assert f"--peer_python={path}" in line
        assert "install torch torchvision lightly" in line
        assert all(name in line for name in named)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("peer", "--peer_python: must be a Python with"),
        # Not without an interpreter.
        ("all --peer_seconds=1", "--peer_seconds=1"),
        ("peer --peer_steps=resnet10:32:4", "--peer_steps=resnet10:32:4"),
        ("peer --peer_steps=resnet18:32:4,", "--peer_steps=resnet18:32:4,"),
        ("peer --peer_steps=resnet18:7:2", "8 pixels"),
        ("peer --peer_steps=resnet18:8:1", "2 images"),
        ("peer --peer_tasks=step,vote", "--peer_tasks=step,vote"),
        ("peer --peer_embeddings=10:5", "50000:10000:2048"),
    ],
)
def test_options_are_checked(words, named, monkeypatch, capsys):
    assert named in _refused(words.split(), monkeypatch, capsys)


def test_all_includes_it_with_an_interpreter(python):
    for words, included in (([], False), ([python()], True)):
        words = ["--benchmark=all", *words]
        names = flags.parse(command.Benchmark, words).names
        assert ("peer" in names) is included and "input" in names


def test_both_take_turns(benchmark, python, one_case, capsys):
    about = _ABOUT.replace("0.5", "0.500004")
    status, report = benchmark("peer", python(about), "--repeats=3")
    assert status == 0
    assert one_case.read_text() == 3 * "ours lightly "
    assert report["ratios"] == {f"{_STEP}, ours: lightly": 2.0}
    ours, lightly = report["results"]
    assert (ours["images_per_second"], ours["settings"]) == (100.0, "usual")
    assert lightly["images_per_second"] == 50.0
    assert lightly["settings"] == "3 gears"
    assert lightly["versions"]["torch"] == "9.9"
    shown = capsys.readouterr().out
    about, versions = shown.splitlines()[:2]
    assert about.startswith(f"{ours['cores']} cores; load average ")
    assert "tensorflow 2." in versions and "lightly 9.9" in versions
    (line,) = [x for x in shown.splitlines() if "usual" in x]
    assert line.split("  ")[0] == _STEP and " 2.00 " in line


@pytest.mark.parametrize(
    ("fake", "named"),
    [
        ({"start": "raise ValueError('one reason')"}, "ValueError: one reason"),
        ({"turn": "raise ValueError('one reason')"}, "ValueError: one reason"),
        # After the first turn.
        (
            {"turn": "TURNS and os.kill(os.getpid(), 9); TURNS.append(1)"},
            "SIGKILL",
        ),
        ({"start": _ABOUT.replace("12", "13")}, "parameters (ours: 12)"),
        ({"start": _ABOUT.replace("0.5", "0.50001")}, "loss (ours: 0.5)"),
        ({"start": _ABOUT.replace("0.5", "float('nan')")}, "loss (ours: 0.5)"),
    ],
    ids=str,
)
def test_a_failure_is_a_note(fake, named, benchmark, python, one_case, capsys):
    status, report = benchmark("peer", python(**fake), "--repeats=3")
    assert status == 1 and report["passed"] is False
    lightly = report["results"][-1]
    assert lightly["failed"] and named in lightly["note"]
    assert lightly["images_per_second"] is None
    assert report["ratios"] == {}
    assert named in capsys.readouterr().out


# Of 2 seconds of others' work in 4, or a little more.
@pytest.mark.parametrize("seconds,busy", [(1.99, False), (2.01, True)])
def test_other_work_is_reported(
    seconds, busy, benchmark, python, one_case, monkeypatch, capsys
):
    clock = iter([100.0, 104.0])
    others = iter([30.0, 30.0 + seconds])
    monkeypatch.setattr(peer.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(peer, "_seconds_of_others", lambda: next(others))
    _, report = benchmark("peer", python(), "--repeats=1", "--only_ours")
    (row,) = report["results"]
    assert row["load_of_others"] == pytest.approx(seconds / 4)
    assert ("do not trust" in capsys.readouterr().out) is busy
    assert not (one_case.parent / "case.json").exists()


def test_idle_time_and_own_work_are_not_that_of_others(monkeypatch):
    names = "user nice system idle iowait irq softirq steal guest"
    times = collections.namedtuple("times", names)
    busy = times(10.0, 1.0, 2.0, 400.0, 50.0, 0.25, 0.25, 3.0, 6.0)
    monkeypatch.setattr(peer.psutil, "cpu_times", lambda: busy)
    # Of this process and of those that it has started.
    monkeypatch.setattr(peer.os, "times", lambda: (4.0, 1.0, 5.0, 2.0, 99.0))
    assert peer._seconds_of_others() == 4.5


@pytest.mark.slow
def test_both_have_the_same_work(benchmark, python, tmp_path):
    # Weights of a ResNet-18 with a stem for small images: those of torchvision
    # without its classifier, 3 x 3 instead of 7 x 7 pixels, and the head.
    weights = 11_689_512 - 513_000 - 64 * 3 * (49 - 9)
    weights += 512 * 512 + 2 * 512 + 512 * 128 + 2 * 128
    loss = "sum(-math.log(e[i][p(i)] / sum(e[i])) for i in r) / len(r)"
    start = f"""import math
    z = [*z[0], *z[1]]
    r, half = range(len(z)), len(z) // 2
    p = lambda i: (i + half) % len(z)
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    e = [[0.0 if i == j else math.exp(dot(z[i], z[j]) / 0.5 /
         math.sqrt(dot(z[i], z[i]) * dot(z[j], z[j]))) for j in r] for i in r]
    loss = {loss} if z else 0.0
    about = dict(settings="", parameters={weights}, loss=loss)"""
    words = [
        python(start),
        "--peer_tasks=step,input",
        "--peer_steps=resnet18:8:2",
        "--peer_precisions=mixed_bfloat16",
        "--peer_image_sizes=16",
        "--peer_seconds=0.01",
        "--repeats=1",
    ]
    status, report = benchmark("peer", *words)
    assert [row["note"] for row in report["results"]] == [""] * 5
    assert status == 0
    assert all(row["images_per_second"] > 0 for row in report["results"])
    assert [row["parameters"] for row in report["results"][:2]] == [weights] * 2
    # Of the last case.
    case = json.loads((tmp_path / "case.json").read_text())
    assert case.pop("path").endswith("16.npy")
    assert case.pop("workers") >= 1
    assert case == {
        "side": 16,
        "strength": 0.5,
        "blur": False,
        "min_crop_area": 0.08,
        "batch_size": 512,
        "seconds": 0.01,
    }


def test_both_classify_equally(benchmark, python, tmp_path):
    start = """import numpy as np
    x = np.load(case["path"])
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True)
            for v in (x["queries"], x["bank"])]
    cosines = unit[0] @ unit[1].T
    correct = []
    for row, label in zip(cosines, x["classes"]):
        near = np.argsort(-row)[:case["neighbors"]]
        votes = np.bincount(x["labels"][near], np.exp(row[near] / 0.1))
        correct.append(votes.argmax() == label)
    about = dict(settings="", correct=float(np.mean(correct)))"""
    words = ["--peer_tasks=knn", "--repeats=2"]
    size = "--peer_embeddings=600:150:12"
    status, report = benchmark("peer", python(start), size, *words)
    assert [row["note"] for row in report["results"]] == ["", ""]
    assert status == 0
    case = json.loads((tmp_path / "case.json").read_text())
    assert (case["neighbors"], case["temperature"]) == (200, 0.1)
    wrong = start.replace("/ 0.1", "* 0")
    status, report = benchmark("peer", python(wrong), size, *words)
    assert status == 1 and "correct (ours" in report["results"][-1]["note"]
