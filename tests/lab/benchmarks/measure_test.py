"""What is measured: memory, and the options of each benchmark."""

import os
import sys

import numpy as np
import pytest

from lab.benchmarks import measure, options
from tf_contrastive import __main__


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
