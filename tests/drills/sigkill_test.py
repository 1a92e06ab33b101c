"""SIGKILLs of one run, each followed by the same command.

A third of them come while the process starts, a third among its steps, a third
while a checkpoint is being written. The final weights equal, bit for bit, those
of an uninterrupted run. --drill_seed and --drill_kills vary them.
"""

import contextlib
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints

_ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("DRILL_SEED", "0"))
KILLS = int(os.environ.get("DRILL_KILLS", "6"))
EPOCHS = 6 * KILLS
STEPS = 4 * EPOCHS
# While it starts, among its steps, while it writes a checkpoint.
MOMENTS = ("start", "steps", "write")
# Steps that a process may take before it is killed, on a machine that was busy
# when `to_first` was measured and is not any more: enough are left for all.
AHEAD = 15


def _start(workdir):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.small",
            "pretrain",
            "--dataset=digits",
            "--split=train[:256]",
            "--image_size=8",
            "--augmentation=crop",
            "--encoder=resnet10",
            "--width=0.125",
            "--projection_output=16",
            "--loss=supcon",
            "--batch_size=64",
            f"--epochs={EPOCHS}",
            "--learning_rate=0.5",
            "--checkpoint_every_steps=3",
            "--runtime_options=keep_checkpoints=3",
            # Shown to TensorBoard as any run is.
            "--histograms_every_epochs=5",
            "--projector_examples=500",
            f"--workdir={workdir}",
        ],
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _values(workdir):
    reader = tf.train.load_checkpoint(
        str(workdir / "checkpoints" / f"ckpt-{STEPS}")
    )
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "CHECKPOINTABLE" not in name and "save_counter" not in name
    }


def _newest(folder):
    """Step of the newest checkpoint that is finished; 0: of none."""
    path, _ = checkpoints.newest(str(folder))
    return checkpoints.step_of(path) if path else 0


def _unfinished(folder):
    """What is being written; what an earlier kill left is not."""
    found = set()
    for path in glob.glob(f"{folder}/ckpt-*_temp/*"):
        with contextlib.suppress(FileNotFoundError):  # Finished meanwhile.
            found.add((path, os.stat(path).st_mtime_ns))
    return found


def _kill(process, folder, moment, delay):
    """Kills the process; returns whether a checkpoint was being written."""
    before, left = _newest(folder), _unfinished(folder)
    if moment == "start":
        until = time.monotonic() + delay
        while time.monotonic() < until and _newest(folder) < before + AHEAD:
            time.sleep(0.01)
    else:
        # After a new one, so that the run comes forward.
        while _newest(folder) == before:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
    if moment == "steps":
        time.sleep(delay % 0.1)
    while moment == "write" and not _unfinished(folder) - left:
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return bool(_unfinished(folder) - left)


def test_kills_change_nothing(tmp_path):
    began = time.monotonic()
    whole = _start(tmp_path / "whole")
    while not _newest(tmp_path / "whole" / "checkpoints"):
        assert whole.poll() is None, whole.stderr.read()
        time.sleep(0.01)
    to_first = time.monotonic() - began
    assert whole.wait(timeout=600) == 0, whole.stderr.read()

    generator = random.Random(SEED)
    folder = tmp_path / "cut" / "checkpoints"
    inside, steps = 0, []
    for kill in range(KILLS):
        process = _start(tmp_path / "cut")
        delay = generator.uniform(0.0, to_first)
        inside += _kill(process, folder, MOMENTS[kill % 3], delay)
        steps.append(_newest(folder))
    print(f"newest checkpoint at each kill: {steps}; {inside} inside a write")
    assert inside >= KILLS // 5
    assert steps == sorted(steps) and 0 < steps[-1] < STEPS
    end = _start(tmp_path / "cut")
    _, said = end.communicate(timeout=600)
    assert end.returncode == 0, said
    assert f"resumed at step {steps[-1]}" in said.replace(",", "")

    whole, cut = _values(tmp_path / "whole"), _values(tmp_path / "cut")
    assert whole.keys() == cut.keys() and len(whole) > 40
    for name, value in whole.items():
        np.testing.assert_array_equal(value, cut[name], err_msg=name)
    whole, cut = (
        json.loads((tmp_path / name / "pretrain.json").read_text())
        for name in ("whole", "cut")
    )
    assert whole | {"seconds": 0} == cut | {"seconds": 0}
    # Nothing half written is left, and no more than was asked for.
    assert not list(folder.glob("*_temp"))
    assert len(list(folder.glob("*.index"))) == 3
    shutil.rmtree(tmp_path / "cut")
