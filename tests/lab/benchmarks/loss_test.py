"""Benchmark of losses: the implementations agree, or it fails."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from lab.benchmarks import loss


@pytest.mark.slow
def test_the_command_compares_and_notes_what_it_skips(benchmark, monkeypatch):
    # As if it was not installed.
    monkeypatch.setitem(sys.modules, "keras_cv", None)
    words = ["--repeats=2", "--losses=ntxent", "--sizes=64,128"]
    status, report = benchmark("loss", *words, "--dense_limit=64", "--nomemory")
    assert status == 0 and report["passed"] is True
    versions = report["environment"]["versions"]
    assert versions["tensorflow"] == tf.__version__
    rows = {(r["size"], r["implementation"]): r for r in report["results"]}
    assert list(rows) == [
        (size, name)
        for size in (64, 128)
        for name in ("ours", "dense", "keras-cv")
    ]
    dense, ours = rows[64, "dense"], rows[64, "ours"]
    assert 0 < dense["errors"]["gradient"] < 1e-3
    ratio = dense["milliseconds"] / ours["milliseconds"]
    assert dense["times_ours"] == pytest.approx(ratio)
    assert rows[64, "keras-cv"]["note"] == "not installed"
    assert rows[128, "dense"]["note"].startswith("needs about 0.000305 GiB")
    assert rows[128, "dense"]["milliseconds"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "factors,name", [((1, 1.01), "gradient"), ((np.nan, 1), "value")]
)
def test_a_different_implementation_fails_the_command(
    factors, name, benchmark, monkeypatch
):
    def wrong(case):
        call = loss.dense(case)
        return lambda: [x * f for x, f in zip(call(), factors, strict=True)]

    monkeypatch.setitem(loss.PEERS, "sincere", {"wrong": wrong})
    status, report = benchmark(
        "loss", "--repeats=1", "--losses=sincere", "--sizes=64", "--nomemory"
    )
    assert status == 1 and report["passed"] is False
    ours, dense, other = report["results"]
    assert other["failed"] and other["milliseconds"] is None
    assert f"differs from ours: {name} by" in other["note"]
    assert not ours["failed"] and not dense["failed"]
    assert ours["milliseconds"] > 0
