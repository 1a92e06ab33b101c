"""Benchmark of losses: the implementations agree, or it fails."""

import sys

import pytest
import tensorflow as tf


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
