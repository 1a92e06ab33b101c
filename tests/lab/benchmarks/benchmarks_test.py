"""Benchmarks: the implementations agree, and differences are reported."""

import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_contrastive import __main__, datasets
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import (
    BENCHMARK_LOSSES,
    BENCHMARKS,
    EVALUATION_TASKS,
    Benchmark,
    Benchmarking,
    LossBenchmark,
)
from tf_contrastive.lab import benchmarks
from tf_contrastive.lab.benchmarks import (
    evaluation,
    input,
    loss,
    measure,
    views,
)


def _case(name, **changed):
    options = {"dimension": 16, "classes": 5, **changed}
    return loss.Case(name, 64, LossBenchmark(**options))


def _main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", *arguments])
    return __main__.main()


# ---- Implementations ---------------------------------------------------------


# With 100 classes the other view is the only positive; low temperatures
# overflow without the maximum taken out.
@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{}, {"classes": 100, "temperature": 0.01}], ids=str
)
@pytest.mark.parametrize("name", BENCHMARK_LOSSES)
def test_dense_losses_equal_ours(name, changed):
    case = _case(name, **changed)
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


def test_config_lists_the_benchmarks_and_losses():
    assert tuple(benchmarks.BENCHMARKS) == BENCHMARKS
    assert tuple(loss.IMPLEMENTATIONS) == BENCHMARK_LOSSES


# ---- The command -------------------------------------------------------------


def _benchmark(monkeypatch, path, *arguments):
    """Runs `benchmark loss`; returns its status and what it wrote."""
    status = _main(
        monkeypatch,
        "benchmark",
        "loss",
        "--repeats=2",
        f"--output={path}",
        *arguments,
    )
    return status, json.loads(path.read_text())


def test_the_command_compares_and_notes_what_it_skips(
    tmp_path, monkeypatch, capsys
):
    # As if it was not installed.
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    status, report = _benchmark(
        monkeypatch,
        tmp_path / "b.json",
        "--losses=supcon",
        "--sizes=64,128",
        "--dense_limit=64",
        "--nomemory",
    )
    assert status == 0
    assert report["benchmark"] == "loss"
    assert report["passed"] is True
    assert report["options"]["sizes"] == "64,128"
    versions = report["environment"]["versions"]
    assert versions["tensorflow"] == tf.__version__
    assert report["environment"]["cpus"] == os.cpu_count()
    rows = {(r["size"], r["implementation"]): r for r in report["results"]}
    assert list(rows) == [
        (size, name)
        for size in (64, 128)
        for name in ("ours", "ours-split", "dense", "pytorch-metric-learning")
    ]
    for size, name in (
        (64, "ours"),
        (64, "ours-split"),
        (64, "dense"),
        (128, "ours"),
        (128, "ours-split"),
    ):
        row = rows[size, name]
        assert row["loss"] == "supcon"
        assert row["repeats"] == 2
        assert row["times_ours"] == pytest.approx(
            row["milliseconds"] / rows[size, "ours"]["milliseconds"]
        )
        assert row["errors"]["gradient"] < 1e-3
        assert not row["note"]
    assert rows[64, "dense"]["errors"]["gradient"] > 0
    assert rows[64, "pytorch-metric-learning"]["note"] == "not installed"
    assert rows[128, "dense"]["note"].startswith("needs about 0.000305 GiB")
    assert rows[128, "dense"]["milliseconds"] is None
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        ["supcon", str(size), name] for size, name in rows
    ]
    assert lines[4][-2:] == ["not", "installed"]
    assert "written: " in shown.err


@pytest.mark.parametrize(
    ("factors", "name"), [((1, 1.01), "gradient"), ((np.nan, 1), "value")]
)
def test_a_different_implementation_fails_the_command(
    factors, name, tmp_path, monkeypatch, capsys
):
    def wrong(case):
        call = loss.dense(case)
        return lambda: [x * f for x, f in zip(call(), factors, strict=True)]

    monkeypatch.setitem(loss.IMPLEMENTATIONS["sincere"], "dense", wrong)
    status, report = _benchmark(
        monkeypatch,
        tmp_path / "b.json",
        "--losses=sincere",
        "--sizes=64",
        "--nomemory",
    )
    assert status == 1
    assert report["passed"] is False
    ours, _, dense = report["results"]
    assert dense["failed"]
    assert f"differs from ours: {name} by" in dense["note"]
    assert dense["milliseconds"] is None
    assert not ours["failed"]
    assert ours["milliseconds"] > 0
    assert dense["note"] in capsys.readouterr().out


# ---- Measuring ---------------------------------------------------------------


def _allocate(mib):
    return lambda: np.ones(mib * 2**20, np.uint8)[:1]


def _die(mib):
    del mib
    return lambda: os._exit(9)


def _compare(makers, case):
    options = Benchmarking(repeats=1, memory=True)
    return measure.compare("", makers, case, options, lambda outputs, ours: {})


@pytest.mark.slow
def test_peak_memory_is_that_of_the_call():
    # This process holds more than the measured one ever will.
    _allocate(600)()
    makers = {"ours": _allocate, "killed": _die}
    row, killed = _compare(makers, 200)
    assert 195 < row["peak_growth_mib"] < 260
    assert row["peak_total_mib"] > row["peak_growth_mib"]
    assert killed["failed"]
    assert killed["note"] == "out of memory, or killed"
    assert killed["milliseconds"] is None


# ---- All, and two files ------------------------------------------------------


def _report(ratio):
    row = {"size": 64, "milliseconds": 1.0}
    return measure.Report([row], ["-"], {"dense": ratio})


def _write_all(monkeypatch, output, ratio, *arguments):
    reports = {name: lambda _: _report(ratio) for name in BENCHMARKS}
    monkeypatch.setattr(benchmarks, "BENCHMARKS", reports)
    return _main(
        monkeypatch, "benchmark", "all", f"--output={output}", *arguments
    )


def test_all_benchmarks_are_one_table_and_one_file(
    tmp_path, monkeypatch, capsys
):
    output = tmp_path / "all.json"
    options = "--quick", "--repeats=5"
    assert _write_all(monkeypatch, output, 2.5, *options) == 0
    content = json.loads(output.read_text())
    # `views` is a picture.
    expected = {f"{name}: dense": 2.5 for name in BENCHMARKS if name != "views"}
    assert content["ratios"] == expected
    assert {row["benchmark"] for row in content["results"]} == {*BENCHMARKS} - {
        "views"
    }
    shown = capsys.readouterr().out
    assert all(f"{case} " in shown for case in expected)
    assert shown.count("2.50") == len(expected)
    # What is set is kept; the rest is that of --quick.
    assert content["options"]["repeats"] == 5
    assert content["options"]["memory"] is False


def test_two_files_are_compared(tmp_path, monkeypatch, capsys):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, ratio in zip(files, (2.0, 3.0), strict=True):
        assert _write_all(monkeypatch, file, ratio) == 0
    capsys.readouterr()
    content = json.loads(files[1].read_text())
    content["environment"]["versions"]["tensorflow"] = "9.9"
    del content["ratios"]["step: dense"]
    files[1].write_text(json.dumps(content))
    words = ["benchmark", "--compare", *map(str, files)]
    assert _main(monkeypatch, *words) == 0
    about_a, about_b, _, heading, *rows = capsys.readouterr().out.splitlines()
    assert f"tensorflow {tf.__version__}" in about_a
    assert "tensorflow 9.9" in about_b and "numpy" not in about_b
    assert heading.split()[-2:] == ["/", "first"]
    names = ("loss", "input", "evaluation", "serving")
    assert [row.split() for row in rows if row.strip(" -")] == [
        [f"{name}:", "dense", "2.00", "3.00", "1.50"] for name in names
    ]
    # Nothing in common.
    content["ratios"] = {}
    files[1].write_text(json.dumps(content))
    assert _main(monkeypatch, *words) != 0
    assert "no comparison in common" in capsys.readouterr().err


# ---- Input and views ---------------------------------------------------------


def test_input_is_compared_with_the_floor(tmp_path, monkeypatch, capsys):
    output = tmp_path / "input.json"
    status = _main(
        monkeypatch,
        "benchmark",
        "input",
        "--policies=crop,simclr",
        "--image_sizes=16",
        "--input_batch_size=4",
        "--seconds=0.01",
        "--repeats=1",
        "--only_ours",
        f"--output={output}",
    )
    assert status == 0
    results = json.loads(output.read_text())["results"]
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
    for name, make in input.implementations(case, only_ours=False).items():
        pixels = next(iter(make(source, case)))[0]
        if name == input.HOST_PART:
            pixels = pixels[0]
        assert int(np.prod(pixels.shape)) == 16 * 2 * 32 * 32 * 3, name


def test_large_views_are_made_from_files(tmp_path):
    source = input._source(80, str(tmp_path))
    assert source.info.num_examples == 512
    case = input.Case("crop", 80, 4)
    batches = input.implementations(case, only_ours=True)["crop"](source, case)
    assert next(iter(batches))[0].shape == (4, 2, 80, 80, 3)


def test_a_contact_sheet_has_a_row_per_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(views, "AUGMENTATIONS", ("simclr", "crop", "none"))
    monkeypatch.setattr(views, "ABLATIONS", ("noise",))
    plot = tmp_path / "views.png"
    status = _main(
        monkeypatch,
        "benchmark",
        "views",
        f"--plot={plot}",
        "--sheet_size=16",
        f"--output={tmp_path / 'views.json'}",
    )
    assert status == 0
    assert "3 policies, 8 views each" in capsys.readouterr().out
    width, height = Image.open(plot).size
    assert height / width == pytest.approx(3 / 8, rel=0.02)


# ---- Evaluation --------------------------------------------------------------

_EVALUATION = (
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


def test_evaluation_compares_with_scikit_learn(tmp_path, monkeypatch, capsys):
    path = tmp_path / "e.json"
    status = _main(
        monkeypatch,
        "benchmark",
        "evaluation",
        "--repeats=1",
        "--nomemory",
        f"--output={path}",
        *_EVALUATION,
    )
    assert status == 0
    report = json.loads(path.read_text())
    rows = {(r["task"], r["implementation"]): r for r in report["results"]}
    assert list(rows) == [
        (task, name)
        for task in EVALUATION_TASKS
        for name in ("ours", "scikit-learn")
    ]
    assert rows["knn", "scikit-learn"]["errors"]["predictions"] < 1e-3
    assert rows["logistic", "scikit-learn"]["errors"]["objective"] < 1e-4
    assert rows["knn", "scikit-learn"]["times_ours"] > 0
    shown = capsys.readouterr().out
    assert "5NN of 60 against 300 embeddings of 32" in shown
    assert "5 penalties on 300 embeddings of 12, 3 classes" in shown


def test_wrong_neighbours_and_objectives_fail(monkeypatch):
    def wrong(case):
        call = evaluation.their_neighbors(case)
        return lambda: np.roll(call(), 1)

    monkeypatch.setitem(
        evaluation.IMPLEMENTATIONS,
        "knn",
        {"ours": evaluation.our_neighbors, "wrong": wrong},
    )

    def lower(case):
        call = evaluation.our_path(case)
        return lambda: call() / 1.001

    monkeypatch.setitem(
        evaluation.IMPLEMENTATIONS,
        "logistic",
        {"ours": evaluation.our_path, "lower": lower},
    )
    options = fields.replace(
        Benchmark(),
        benchmark="evaluation",
        memory=False,
        repeats=1,
        **{
            name: int(value)
            for name, value in (f[2:].split("=") for f in _EVALUATION)
        },
    )
    report = evaluation.run(options)
    assert not report.passed
    notes = [r["note"] for r in report.rows]
    assert "differs from ours: predictions by" in notes[1]
    assert "differs from ours: objective by 1.0e-03" in notes[3]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
