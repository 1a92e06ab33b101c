"""Benchmarks: the implementations agree, and differences are reported."""

import importlib
import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_contrastive import __main__, datasets
from tf_contrastive.lab.benchmarks import (
    evaluation,
    input,
    loss,
    measure,
    options,
    views,
)


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Runs `benchmark NAME`; returns its status and what it wrote."""

    def run(*words):
        output = tmp_path / "output.json"
        words = ["benchmark", *words, f"--output={output}"]
        monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
        status = __main__.main()
        return status, json.loads(output.read_text())

    return run


# ---- Implementations ---------------------------------------------------------


# With 100 classes the other view is the only positive; low temperatures
# overflow without the maximum taken out.
@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{}, {"classes": 100, "temperature": 0.01}], ids=str
)
@pytest.mark.parametrize("name", loss.LOSSES)
def test_dense_losses_equal_ours(name, changed):
    chosen = {"dimension": 16, "classes": 5, **changed}
    case = loss.Case(name, 64, options.Loss(**chosen))
    value, gradient = loss.ours(case)()
    assert gradient.shape == (32, 2, 16)
    assert np.linalg.norm(gradient) > 1e-3
    others = [loss.dense]
    if name == "ntxent" and not changed:
        others.append(loss.keras_cv)
    for other in others:
        other_value, other_gradient = other(case)()
        np.testing.assert_allclose(other_value, value, rtol=1e-5)
        np.testing.assert_allclose(
            other_gradient, gradient, rtol=1e-3, atol=1e-6
        )


def test_the_command_compares_and_notes_what_it_skips(
    benchmark, monkeypatch, capsys
):
    # As if it was not installed.
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    status, report = benchmark(
        "loss",
        "--repeats=2",
        "--losses=supcon",
        "--sizes=64,128",
        "--dense_limit=64",
        "--nomemory",
    )
    assert status == 0 and report["passed"] is True
    assert report["benchmark"] == "loss"
    assert report["options"]["sizes"] == "64,128"
    versions = report["environment"]["versions"]
    assert versions["tensorflow"] == tf.__version__
    assert report["environment"]["cpus"] == os.cpu_count()
    rows = {(r["size"], r["implementation"]): r for r in report["results"]}
    peer = "pytorch-metric-learning"
    assert list(rows) == [
        (size, name)
        for size in (64, 128)
        for name in ("ours", "ours-split", "dense", peer)
    ]
    for (size, _), row in rows.items():
        assert row["loss"] == "supcon"
        if row["note"]:
            assert row["milliseconds"] is None
            continue
        assert row["repeats"] == 2
        ratio = row["milliseconds"] / rows[size, "ours"]["milliseconds"]
        assert row["times_ours"] == pytest.approx(ratio)
        assert row["errors"]["gradient"] < 1e-3
    assert rows[64, "dense"]["errors"]["gradient"] > 0
    assert rows[64, peer]["note"] == "not installed"
    assert rows[128, "dense"]["note"].startswith("needs about 0.000305 GiB")
    assert sum(bool(row["note"]) for row in rows.values()) == 3
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        ["supcon", str(size), name] for size, name in rows
    ]
    assert lines[4][-2:] == ["not", "installed"]


@pytest.mark.parametrize(
    "factors,name", [((1, 1.01), "gradient"), ((np.nan, 1), "value")]
)
def test_a_different_implementation_fails_the_command(
    factors, name, benchmark, monkeypatch, capsys
):
    def wrong(case):
        call = loss.dense(case)
        return lambda: [x * f for x, f in zip(call(), factors, strict=True)]

    compared = loss.LOSSES["sincere"]._replace(peers={"wrong": wrong})
    monkeypatch.setitem(loss.LOSSES, "sincere", compared)
    status, report = benchmark(
        "loss", "--repeats=1", "--losses=sincere", "--sizes=64", "--nomemory"
    )
    assert status == 1 and report["passed"] is False
    ours, _, dense, other = report["results"]
    assert other["failed"] and other["milliseconds"] is None
    assert f"differs from ours: {name} by" in other["note"]
    assert not ours["failed"] and not dense["failed"]
    assert ours["milliseconds"] > 0
    assert other["note"] in capsys.readouterr().out


@pytest.mark.parametrize(
    "words,named",
    [
        ("loss --losses=supcon,triplet", "'triplet'"),
        ("evaluation --tasks=svm", "'svm'"),
        # Options of another benchmark.
        ("input --sizes=64", "--sizes=64"),
        ("step --quick --queries=10", "--queries=10"),
    ],
)
def test_what_is_not_measured_is_refused(words, named, monkeypatch, capsys):
    words = ["tf_contrastive", "benchmark", *words.split()]
    monkeypatch.setattr(sys, "argv", words)
    assert __main__.main() == 2
    assert named in capsys.readouterr().err


# ---- Measuring ---------------------------------------------------------------


def _allocate(mib):
    return lambda: np.ones(mib * 2**20, np.uint8)[:1]


def _die(mib):
    del mib
    return lambda: os._exit(9)


@pytest.mark.slow
def test_peak_memory_is_that_of_the_call():
    # This process holds more than the measured one ever will.
    _allocate(600)()
    row, killed = measure.compare(
        "",
        {"ours": _allocate, "killed": _die},
        200,
        options.Common(repeats=1),
        lambda outputs, ours: {},
    )
    assert 195 < row["peak_growth_mib"] < 260
    assert row["peak_total_mib"] > row["peak_growth_mib"]
    assert killed["failed"]
    assert killed["note"] == "out of memory, or killed"
    assert killed["milliseconds"] is None


# ---- All, and two files ------------------------------------------------------

_COMPARING = ("step", "loss", "input", "evaluation", "serving")


def _fake(monkeypatch, ratio):
    """Gives each benchmark a table of one ratio."""
    row = {"size": 64, "milliseconds": 1.0}
    report = measure.Report([row], ["-"], {"dense": ratio})
    for name in options.BENCHMARKS:
        module = importlib.import_module(
            f"tf_contrastive.lab.benchmarks.{name}"
        )
        monkeypatch.setattr(module, "run", lambda *_: report)


def test_all_benchmarks_are_one_table_and_one_file(
    benchmark, monkeypatch, capsys
):
    _fake(monkeypatch, 2.5)
    status, content = benchmark("all", "--quick", "--repeats=5")
    assert status == 0
    # `views` is a picture.
    expected = {f"{name}: dense": 2.5 for name in _COMPARING}
    assert content["ratios"] == expected
    names = [row["benchmark"] for row in content["results"]]
    assert names == list(_COMPARING)
    shown = capsys.readouterr().out
    assert all(f"{case} " in shown for case in expected)
    assert shown.count("2.50") == len(expected)
    # What is set is kept; the rest is that of --quick.
    assert content["options"]["repeats"] == 5
    assert content["options"]["memory"] is False
    assert content["options"]["sizes"] == "1024,4096"


def test_two_files_are_compared(benchmark, tmp_path, monkeypatch, capsys):
    contents = []
    for ratio in (2.0, 3.0):
        _fake(monkeypatch, ratio)
        contents.append(benchmark("all")[1])
    contents[1]["environment"]["versions"]["tensorflow"] = "9.9"
    del contents[1]["ratios"]["step: dense"]

    def compare():
        files = [tmp_path / "a.json", tmp_path / "b.json"]
        for file, content in zip(files, contents, strict=True):
            file.write_text(json.dumps(content))
        words = ["benchmark", "--compare", *map(str, files)]
        monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
        capsys.readouterr()
        return __main__.main(), capsys.readouterr()

    status, shown = compare()
    assert status == 0
    about_a, about_b, _, heading, *rows = shown.out.splitlines()
    assert f"tensorflow {tf.__version__}" in about_a
    assert "tensorflow 9.9" in about_b and "numpy" not in about_b
    assert heading.split()[-2:] == ["/", "first"]
    assert [row.split() for row in rows if row.strip(" -")] == [
        [f"{name}:", "dense", "2.00", "3.00", "1.50"] for name in _COMPARING[1:]
    ]
    contents[1]["ratios"] = {}
    status, shown = compare()
    assert status != 0
    assert "no comparison in common" in shown.err


# ---- Input and views ---------------------------------------------------------


def test_input_is_compared_with_the_floor(benchmark, capsys):
    status, report = benchmark(
        "input",
        "--policies=crop,simclr",
        "--image_sizes=16",
        "--input_batch_size=4",
        "--seconds=0.01",
        "--repeats=1",
        "--only_ours",
    )
    assert status == 0
    results = report["results"]
    assert [(row["policy"], row["implementation"]) for row in results] == [
        ("crop", "crop"),
        ("simclr", "crop"),
        ("simclr", "ours"),
        ("simclr", "ours, linear colours"),
        ("simclr", "ours, host part of device"),
    ]
    for row in results:
        assert row["examples_per_second"] > 0
        if row["implementation"] == "crop":
            assert row["of_floor"] == 1.0
    assert "of the floor" in capsys.readouterr().out


@pytest.mark.slow
def test_alternatives_make_as_many_views():
    case = input.Case("simclr", 32, 16)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, [32, 40, 40, 3]).astype(np.uint8)
    source = datasets.from_arrays(images, np.arange(32) % 2)
    for name, (make, _) in input.implementations(case, only_ours=False).items():
        pixels = next(iter(make(source, case)))[0]
        if name == input.HOST_PART:
            pixels = pixels[0]
        assert int(np.prod(pixels.shape)) == 16 * 2 * 32 * 32 * 3, name


def test_large_views_are_made_from_files(tmp_path):
    source = input._source(80, str(tmp_path))
    assert source.info.num_examples == 512
    case = input.Case("crop", 80, 4)
    (floor,) = input.implementations(case, only_ours=True).values()
    batches = floor.make(source, case)
    assert next(iter(batches))[0].shape == (4, 2, 80, 80, 3)


def test_a_contact_sheet_has_a_row_per_policy(benchmark, tmp_path, monkeypatch):
    three = {name: views.POLICIES[name] for name in ("simclr", "crop", "none")}
    monkeypatch.setattr(views, "POLICIES", three)
    monkeypatch.setattr(views, "OPERATIONS", ("noise",))
    plot = tmp_path / "views.png"
    status, report = benchmark("views", f"--plot={plot}", "--sheet_size=16")
    assert status == 0
    (row,) = report["results"]
    assert row["policies"] == ["simclr", "crop", "ablation:noise"]
    width, height = Image.open(plot).size
    assert height / width == pytest.approx(3 / 8, rel=0.02)


# ---- Evaluation --------------------------------------------------------------

_EVALUATION = (
    "evaluation",
    "--repeats=1",
    "--nomemory",
    "--queries=60",
    "--bank=300",
    "--bank_dimension=32",
    "--bank_classes=5",
    "--path_examples=300",
    "--path_dimension=12",
    "--path_classes=3",
    "--path_penalties=5",
    "--path_steps=10000",
)


def test_evaluation_compares_with_scikit_learn(benchmark, capsys):
    status, report = benchmark(*_EVALUATION)
    assert status == 0
    rows = {(r["task"], r["implementation"]): r for r in report["results"]}
    assert list(rows) == [
        (task, name)
        for task in ("knn", "logistic")
        for name in ("ours", "scikit-learn")
    ]
    assert rows["knn", "scikit-learn"]["errors"]["predictions"] < 1e-3
    assert rows["logistic", "scikit-learn"]["errors"]["objective"] < 1e-4
    assert rows["knn", "scikit-learn"]["times_ours"] > 0
    shown = capsys.readouterr().out
    assert "5NN of 60 against 300 embeddings of 32" in shown
    assert "5 penalties on 300 embeddings of 12, 3 classes" in shown


def test_wrong_neighbours_and_objectives_fail(benchmark, monkeypatch):
    def changed(make, change):
        def wrong(case):
            call = make(case)
            return lambda: change(call())

        return {"ours": make, "wrong": wrong}

    for task, makers in (
        ("knn", changed(evaluation.our_neighbors, lambda x: np.roll(x, 1))),
        ("logistic", changed(evaluation.our_path, lambda x: x / 1.001)),
    ):
        wrong = evaluation.TASKS[task]._replace(implementations=makers)
        monkeypatch.setitem(evaluation.TASKS, task, wrong)
    status, report = benchmark(*_EVALUATION)
    assert status == 1
    notes = [row["note"] for row in report["results"]]
    assert "differs from ours: predictions by" in notes[1]
    assert "differs from ours: objective by 1.0e-03" in notes[3]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
