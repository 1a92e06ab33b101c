"""SIGKILLs of commands, each followed by the same command.

A third of them come at any time, a third after the command got further, a third
while it writes a file. --drill_seed and --drill_kills vary them.
"""

import contextlib
import json
import math
import os
import random
import signal
import time

import processes
import psutil
import saved_run
import small
import tensorflow as tf

from tf_contrastive import exporting
from tf_contrastive.evaluation import comparison

SEED = int(os.environ.get("DRILL_SEED", "0"))
KILLS = int(os.environ.get("DRILL_KILLS", "3"))
MOMENTS = ("any", "further", "write")


def _kill(run, kill, progress, unfinished, latest, ahead=math.inf):
    """Kills a process; returns whether it was writing a file.

    Args:
      run: the process.
      kill: the kill's number, which determines the moment.
      progress: returns a number that grows as the process gets further.
      unfinished: returns the set of files that are being written, or were.
      latest: the pause before a kill at "any" time, in seconds, at most.
      ahead: by how much `progress` may grow in this time.
    """
    moment = MOMENTS[kill % len(MOMENTS)]
    generator = random.Random(f"{SEED} {kill}")
    before, left = progress(), unfinished()
    if moment == "any":
        end = time.monotonic() + generator.uniform(0.0, latest)
        processes.wait_for(
            lambda: time.monotonic() > end or progress() >= before + ahead
        )
    else:
        processes.wait_for(lambda: progress() > before, run)
    if moment == "further":
        time.sleep(generator.uniform(0.0, 0.1))
    # A write lasts milliseconds: one that ended before the process stood still
    # was missed, and the next one is waited for.
    while moment == "write" and not _stopped(run, lambda: unfinished() - left):
        assert run.running(), run.output
    run.kill()
    run.ended()
    return bool(unfinished() - left)


def _stopped(run, is_writing):
    """Stops a process that is writing; returns whether it still is."""
    if not is_writing():
        return False
    run.kill(signal.SIGSTOP)
    stopped = psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE
    processes.wait_for(lambda: psutil.Process(run.pid).status() in stopped)
    if is_writing():
        return True
    run.kill(signal.SIGCONT)
    return False


def _written(folder, pattern):
    """(path, time of the last change) of each of the matching files."""
    found = set()
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # Finished meanwhile.
            found.add((str(path), path.stat().st_mtime_ns))
    return found


def test_a_killed_run_has_the_weights_of_a_whole_one(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    steps = 24 * KILLS
    options = {
        **{"image_size": 8, "epochs": 6 * KILLS, "checkpoint_every_steps": 3},
        # Shown to TensorBoard as any run is.
        **{"histograms_every_epochs": 5, "projector_examples": 500},
        "runtime_options": "keep_checkpoints=3",
    }

    def start(workdir):
        words = ("pretrain", *small.words(**options, workdir=workdir))
        return processes.start(processes.small(*words))

    began = time.monotonic()
    with start(whole) as run:
        processes.wait_for(lambda: small.newest(whole), run)
        to_first = time.monotonic() - began
        assert run.ended() == 0, run.output

    newest, inside = [], 0
    for kill in range(KILLS):
        with start(cut) as run:
            inside += _kill(
                run,
                kill,
                lambda: small.newest(cut),
                lambda: _written(cut, "checkpoints/ckpt-*_temp/*"),
                to_first,
                # On a machine that was busy when `to_first` was measured.
                ahead=15,
            )
        newest.append(small.newest(cut))
    print(f"newest checkpoint at each kill: {newest}; {inside} inside a write")
    assert inside > 0
    assert newest == sorted(newest) and 0 < newest[-1] < steps
    with start(cut) as run:
        assert run.ended() == 0, run.output
    assert f"resumed at step {newest[-1]:,}" in run.output

    expected, found = (small.weights(x, steps) for x in (whole, cut))
    assert len(expected) > 40
    small.check_equal(expected, found)
    expected, found = (
        json.loads((folder / "pretrain.json").read_text())
        for folder in (whole, cut)
    )
    assert expected | {"seconds": 0} == found | {"seconds": 0}
    # Nothing half written is left, and no more than was asked for.
    assert not list(cut.glob("checkpoints/*_temp"))
    assert len(list(cut.glob("checkpoints/*.index"))) == 3


def test_a_killed_evaluation_leaves_the_old_or_the_new_result(tmp_path):
    run = tmp_path / "run"
    saved_run.make(run, branches=True)

    def start(k):
        words = ("evaluate", f"--workdir={run}", f"--knn_k={k}")
        words += ("--protocols=knn,linear", "--linear_epochs=1")
        words += ("--linear_batch_size=64", "--linear_augmentation=none")
        return processes.start(processes.main(*words))

    def results():
        """Without times, in an order of their own."""
        rows = json.loads((run / "evaluation.json").read_text())["results"]
        rows = [row | {"seconds": 0} for row in rows]
        return sorted(rows, key=lambda r: (r["encoder"], r["protocol"]))

    def finish(k):
        began = time.monotonic()
        with start(k) as process:
            assert process.ended() == 0, process.output
        assert not {*run.rglob(".*.partial-*")}
        return results(), time.monotonic() - began

    (first, seconds), (other, _) = finish(1), finish(3)
    known = {1: first, 3: other}
    assert known[1] != known[3] and len(known[1]) == 4
    now = 3
    for kill in range(KILLS):
        with start(4 - now) as process:
            _kill(
                process,
                kill,
                lambda: sum(x for _, x in _written(run, "evaluation/*.npz")),
                lambda: {*run.rglob(".*.partial-*")},
                seconds,
            )
        rows = results()
        assert rows in known.values(), kill
        now = 1 if rows == known[1] else 3
        for path in run.glob("evaluation/*.npz"):
            assert comparison.read(str(path))
    assert finish(1)[0] == known[1]


_EXPORT = """
import sys, tensorflow as tf
from tf_contrastive import exporting
inputs = tf.keras.Input([8, 8, 3])
x = tf.keras.layers.GlobalAveragePooling2D()(inputs)
encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(4)(x))
while True:
    exporting.export(encoder, sys.argv[1])
"""


def test_a_killed_export_leaves_nothing_to_be_loaded(tmp_path):
    base = tmp_path / "export"
    inside = 0
    for kill in range(KILLS):
        with processes.start(processes.python(_EXPORT, base)) as process:
            inside += _kill(
                process,
                kill,
                lambda: len(exporting.folders(str(base))),
                lambda: {*base.glob(".*.partial-*")},
                latest=5.0,
                ahead=3,
            )
        for version in exporting.folders(str(base)):
            path = base / str(version)
            names = {p.name for p in path.iterdir()}
            assert {"saved_model.pb", "README.md", "assets.extra"} <= names
            assert exporting.details(str(path))["embedding_size"] == 4
    assert inside > 0  # Or else no kill came at the wrong moment.
    version = max(exporting.folders(str(base)))
    served = tf.saved_model.load(str(base / str(version))).signatures
    images = tf.zeros([2, 9, 9, 3], tf.uint8)
    assert served["serving_default"](images=images)["embedding"].shape[1] == 4
