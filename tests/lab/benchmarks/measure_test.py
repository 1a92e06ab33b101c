"""Peak memory, measured in another process."""

import os

import numpy as np
import pytest

from lab.benchmarks import measure, options


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
    assert killed["failed"]
    assert killed["note"] == "out of memory, or killed"
    assert killed["milliseconds"] is None
