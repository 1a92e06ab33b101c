"""SIGKILLs of `evaluate` leave the old or the new result, whole.

A third of them come at any time (while it starts, embeds, trains a probe), a
third after a protocol's files were written, a third while a file is being
written. --drill_seed and --drill_kills vary them.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import saved_run

from tf_contrastive.evaluation import comparison

_ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("DRILL_SEED", "0"))
KILLS = int(os.environ.get("DRILL_KILLS", "6"))


def _start(run, k):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tf_contrastive",
            "evaluate",
            f"--workdir={run}",
            "--protocols=knn,linear",
            f"--knn_k={k}",
            "--linear_epochs=3",
            "--linear_batch_size=64",
            "--linear_augmentation=none",
        ],
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(run, k):
    process = _start(run, k)
    _, log = process.communicate(timeout=600)
    assert process.returncode == 0, log


def _rows(run):
    """The results without times, in an order of their own."""
    report = json.loads((run / "evaluation.json").read_text())
    rows = [
        {name: value for name, value in row.items() if name != "seconds"}
        for row in report["results"]
    ]
    return sorted(rows, key=lambda r: (r["encoder"], r["protocol"]))


def _unfinished(run):
    return {*run.rglob(".*.partial-*")}


def _written(run):
    return {(p, p.stat().st_mtime_ns) for p in run.glob("evaluation/*.npz")}


def test_kills_leave_the_old_or_the_new_result(tmp_path):
    run = tmp_path / "run"
    saved_run.make(run, branches=True)
    began = time.monotonic()
    _finish(run, 1)
    seconds = time.monotonic() - began
    known = {1: _rows(run)}
    _finish(run, 3)
    known[3] = _rows(run)
    assert known[1] != known[3] and len(known[1]) == 4
    generator, now, inside = random.Random(SEED), 3, 0
    for kill in range(KILLS):
        k = 4 - now  # The other one.
        before, left = _written(run), _unfinished(run)
        process = _start(run, k)
        if kill % 3 == 0:
            time.sleep(generator.uniform(0.0, 1.1) * seconds)
        elif kill % 3 == 1:
            while process.poll() is None and _written(run) == before:
                time.sleep(0.005)
            time.sleep(generator.uniform(0.0, 0.2) * seconds)
        else:
            while process.poll() is None and not _unfinished(run) - left:
                pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        inside += bool(_unfinished(run))
        rows = _rows(run)
        assert rows in known.values(), kill
        now = 1 if rows == known[1] else 3
        for path in run.glob("evaluation/*.npz"):
            with np.load(path) as arrays:
                assert all(arrays[name].size for name in arrays)
            assert comparison.read(str(path))
    print(f"{KILLS} kills, {inside} while a file was written")
    _finish(run, 1)
    assert _rows(run) == known[1]
    assert not _unfinished(run)
