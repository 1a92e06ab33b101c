"""The progress line."""

import fcntl
import io
import os
import re
import struct
import termios
import types

import counting_model
import pytest
import tensorflow as tf

from tf_contrastive import callbacks
from tf_contrastive.model import input_wait


def test_progress_is_a_line_per_epoch_in_a_file():
    file = io.StringIO()
    counting_model.fit([1, 2, 3, 4, 5, 6], 3, counting_model.progress(file))
    traced, first, last = file.getvalue().splitlines()
    assert traced == "step       being traced and compiled"
    assert first.startswith("epoch 1/2  step 3/6  loss 2.0000  ")
    assert last.startswith("epoch 2/2  step 6/6  loss 5.0000  ")
    assert re.search(r"ETA \d:\d\d:\d\d  .+ images/s  input wait 0%$", first)
    assert "ETA 0:00:00" in last and "\r" not in last


def _epoch(stream, monkeypatch, steps):
    """Calls `Progress` as a run does; yields after each step, of 0.6 s."""
    clock = types.SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(callbacks.progress, "time", clock)
    monkeypatch.setattr(input_wait, "time", clock)
    progress = callbacks.Progress(
        epochs=100, steps_per_epoch=steps, batch_size=256, stream=stream
    )
    model = counting_model.Model()
    model.compile(tf.keras.optimizers.SGD(jit_compile=False))
    progress.set_model(model)
    progress.params = {"steps": steps}
    progress.on_train_begin()
    names = ("loss", "probe_accuracy", "online_knn_top1")
    logs = dict.fromkeys(names, 0.5)
    for step in range(steps):
        clock.now += 0.6
        model.optimizer.iterations.assign_add(1)
        progress.on_train_batch_end(step, logs)
        yield
    progress.on_epoch_end(0, logs | {"val_loss": 1.5})


# A terminal that does not know its columns has 80.
@pytest.mark.parametrize("columns", [0, 20, 140])
def test_redrawn_lines_fit_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    text = ""
    with os.fdopen(slave, "w") as stream:
        for _ in _epoch(stream, monkeypatch, steps=200):
            text += os.read(master, 1 << 16).decode()
        last = os.read(master, 1 << 16).decode()
    os.close(master)
    # Each replaces the one before; the first says that the step is traced.
    rows = text.split("\r\x1b[K")[2:]
    assert len(rows) == 200
    assert all(len(row) < (columns or 80) and "\n" not in row for row in rows)
    # The line of the epoch has everything, and stays.
    assert "step 200/20,000" in last and "val loss" in last
    assert last.count("\n") == 1
    assert rows[-1].startswith("epoch 1/100")
    assert ("online 1NN" in rows[-1]) == (columns > 100)
