"""The benchmark's references, its checks, and what the command writes."""

import json
import os
import sys

import numpy as np
import pytest
import small
from PIL import Image

from tf_contrastive import __main__, benchmarks, datasets
from tf_contrastive.benchmarks import (
    evaluation,
    loss,
    measure,
)
from tf_contrastive.benchmarks.input import makers, operations
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import (
    BENCHMARK_LOSSES,
    BENCHMARKS,
    EVALUATION_TASKS,
    Benchmark,
)
from tf_contrastive.config.views import ABLATIONS, AUGMENTATIONS


def _case(name, **changed):
    options = {
        "size": 64,
        "dimension": 16,
        "classes": 5,
        "temperature": 0.1,
        "block_size": 0,
    }
    return loss.Case(name, **{**options, **changed})


def _main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", *arguments])
    return __main__.main()


# ---- The references ----------------------------------------------------------


# Of 100 classes the other view is the only positive; cold logits overflow where
# no maximum is taken out.
@pytest.mark.parametrize(
    "changed", [{}, {"classes": 100, "temperature": 0.01}], ids=str
)
@pytest.mark.parametrize("name", BENCHMARK_LOSSES)
def test_dense_losses_equal_ours(name, changed):
    case = _case(name, **changed)
    value, gradient = loss.ours(case)()
    dense_value, dense_gradient = loss.dense(case)()
    np.testing.assert_allclose(dense_value, value, rtol=1e-5)
    assert gradient.shape == (32, 2, 16)
    assert np.linalg.norm(gradient) > 1e-3
    np.testing.assert_allclose(dense_gradient, gradient, rtol=1e-3, atol=1e-6)


def test_keras_cv_equals_ours():
    case = _case("ntxent")
    value, gradient = loss.ours(case)()
    their_value, their_gradient = loss.keras_cv(case)()
    np.testing.assert_allclose(their_value, value, rtol=1e-5)
    np.testing.assert_allclose(their_gradient, gradient, rtol=1e-3, atol=1e-6)


def test_names_that_users_choose_from_are_the_ones_there_are():
    assert tuple(benchmarks.BENCHMARKS) == BENCHMARKS
    assert tuple(loss.IMPLEMENTATIONS) == BENCHMARK_LOSSES
    assert tuple(loss.DENSE) == BENCHMARK_LOSSES


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


def test_the_command_compares_and_says_what_it_left_out(
    tmp_path, monkeypatch, capsys
):
    # As where it is not installed.
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
    assert set(report) == {
        "benchmark",
        "options",
        "environment",
        "passed",
        "results",
    }
    assert report["benchmark"] == "loss"
    assert report["passed"] is True
    assert report["options"]["sizes"] == "64,128"
    assert report["environment"]["versions"]["tensorflow"].startswith("2.15")
    assert report["environment"]["cpus"] == os.cpu_count()
    rows = {(r["size"], r["implementation"]): r for r in report["results"]}
    assert list(rows) == [
        (size, name)
        for size in (64, 128)
        for name in ("ours", "dense", "pytorch-metric-learning")
    ]
    for size, name in ((64, "ours"), (64, "dense"), (128, "ours")):
        row = rows[size, name]
        assert row["loss"] == "supcon"
        assert row["graph_building_seconds"] >= 0
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
    assert lines[3][-2:] == ["not", "installed"]
    assert "written: " in shown.err


@pytest.mark.slow
def test_memory_is_measured_and_tabulated(tmp_path, monkeypatch, capsys):
    status, report = _benchmark(
        monkeypatch,
        tmp_path / "b.json",
        "--losses=ntxent",
        "--sizes=64",
        "--only_ours",
    )
    assert status == 0
    (row,) = report["results"]
    assert row["implementation"] == "ours"
    # A process with TensorFlow.
    assert 0 < row["peak_growth_mib"] < 200 < row["peak_total_mib"]
    _, memory = capsys.readouterr().out.split("\n\n")
    assert memory.splitlines()[1].split()[:2] == ["ntxent", "64"]


def test_memory_of_each_added_embedding():
    row = {"loss": "supcon", "implementation": "ours", "peak_growth_mib": 10.0}
    rows = loss.growth(
        [
            {**row, "size": 1024},
            {**row, "size": 1024, "implementation": "dense"},
            {**row, "size": 2048, "peak_growth_mib": 12.0},
            {**row, "size": 4096, "peak_growth_mib": None},
            {**row, "size": 1024, "loss": "sincere"},
        ]
    )
    assert [r["kib_per_added"] for r in rows] == [None, 2.0, None]


def _wrong_gradient(case):
    call = loss.dense(case)

    def wrong():
        value, gradient = call()
        return value, 1.01 * gradient

    return wrong


def _not_a_number(case):
    call = loss.dense(case)

    def wrong():
        value, gradient = call()
        return value * np.nan, gradient

    return wrong


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (_wrong_gradient, "differs from ours: gradient by 1.0e-02 (allowed"),
        (_not_a_number, "differs from ours: value by nan (allowed: 1e-04)"),
    ],
)
def test_an_implementation_that_differs_fails_the_command(
    wrong, told, tmp_path, monkeypatch, capsys
):
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
    ours, dense = report["results"]
    assert dense["failed"]
    assert dense["note"].startswith(told)
    assert dense["milliseconds"] is None
    assert not ours["failed"]
    assert ours["milliseconds"] > 0
    assert told in capsys.readouterr().out


# ---- Measuring ---------------------------------------------------------------


def _allocate(mib):
    return lambda: np.ones(mib * 2**20, np.uint8)[:1]


def _die(mib):
    del mib
    return lambda: os._exit(9)


def _side_by_side(makers, case):
    return measure.side_by_side(
        makers,
        case,
        errors=lambda outputs, ours: {},
        skipped={},
        repeats=1,
        memory=True,
        say=lambda line: None,
    )


@pytest.mark.slow
def test_peak_memory_is_the_call_s_alone():
    # More than the other process will have: it must not be taken for its own.
    _allocate(600)()
    (result,) = _side_by_side({"ours": _allocate}, 200)
    assert 195 < result.peak_growth_mib < 260
    assert result.peak_total_mib > result.peak_growth_mib


def test_an_implementation_whose_process_dies_fails_and_is_not_run_here():
    (result,) = _side_by_side({"ours": _die}, 1)
    assert result.failed
    assert result.note == "out of memory, or killed"
    assert result.milliseconds is None


# ---- Input and views ---------------------------------------------------------


@pytest.mark.slow
def test_input_is_compared_with_the_floor(tmp_path, monkeypatch, capsys):
    output = tmp_path / "input.json"
    status = _main(
        monkeypatch,
        "benchmark",
        "input",
        "--policies=autoaugment,simclr",
        "--image_sizes=16,80",
        "--input_batch_size=4",
        "--seconds=0.01",
        "--repeats=1",
        "--only_ours",
        "--profile",
        f"--output={output}",
    )
    assert status == 0
    results = json.loads(output.read_text())["results"]
    rates = [row for row in results if "implementation" in row]
    assert [
        (row["policy"], row["image_size"], row["implementation"])
        for row in rates
    ] == [
        (policy, size, name)
        for size in (16, 80)
        for policy in ("autoaugment", "simclr")
        for name in (
            "crop",
            "ours",
            # What has no colour jitter has one form.
            *(["ours, linear colours"] if policy == "simclr" else []),
            "ours, host share of device",
        )
    ]
    for row in rates:
        assert row["examples_per_second"] > 0
        assert row["first_batch_seconds"] > 0
        if row["implementation"] == "crop":
            assert row["of_floor"] == 1.0
    profiled = [r["operation"] for r in results if "operation" in r]
    assert profiled[:1] == ["AutoAugment"]
    assert {"ColorJitter", "Grayscale", "GaussianBlur"} <= {*profiled}
    assert "first batch s" in capsys.readouterr().out


def test_compiled_colours_are_compared_with_an_encoder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(operations, "_ENCODER", "resnet10")
    output = tmp_path / "input.json"
    with small.encoder():
        status = _main(
            monkeypatch,
            "benchmark",
            "input",
            "--policies=simclr",
            "--image_sizes=16",
            "--input_batch_size=4",
            "--seconds=0.01",
            "--repeats=1",
            "--only_ours",
            "--device_fraction",
            f"--output={output}",
        )
    assert status == 0
    row = json.loads(output.read_text())["results"][-1]
    assert (row["policy"], row["image_size"]) == ("simclr", 16)
    assert row["encoder"] == "resnet10"
    # Colours cost little beside an encoder.
    assert 0 < row["device_fraction"] < 1
    assert row["device_fraction"] == pytest.approx(
        row["compiled_milliseconds_per_view"]
        / row["encoder_milliseconds_per_view"]
    )
    assert "compiled ms/view" in capsys.readouterr().out


@pytest.mark.slow
def test_peers_make_as_many_views(tmp_path):
    case = makers.Case("simclr", 32, 16)
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, [32, 40, 40, 3]).astype(np.uint8)
    source = datasets.from_arrays(images, np.arange(32) % 2)
    shapes = set()
    for name, make in makers.implementations(case, only_ours=False).items():
        views = next(iter(make(source, case)))[0]
        if name == "ours, host share of device":
            views = views[0]
        shapes.add(int(np.prod(views.shape)))
    assert shapes == {16 * 2 * 32 * 32 * 3}


def test_a_contact_sheet_shows_every_policy(tmp_path, monkeypatch, capsys):
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
    policies = len(AUGMENTATIONS) - 1 + len(ABLATIONS)
    assert f"{policies} policies, 8 views each" in capsys.readouterr().out
    width, height = Image.open(plot).size
    assert height / width == pytest.approx(policies / 8, rel=0.01)


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


def test_wrong_neighbours_and_objectives_fail(monkeypatch, tmp_path):
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
    report = evaluation.run(options, lambda line: None)
    assert not report.passed
    notes = [r["note"] for r in report.results]
    assert "differs from ours: predictions by" in notes[1]
    assert "differs from ours: objective by 1.0e-03" in notes[3]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
