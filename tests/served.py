"""Servers of `serve` in processes of their own, their exports and clients."""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tf_contrastive import exporting

_ROOT = Path(__file__).resolve().parents[1]
SIZE = 12


def export(folder, seed=0):
    """Exports a tiny encoder with all signatures; returns the version."""
    tf.keras.utils.set_random_seed(seed)
    inputs = tf.keras.Input([SIZE, SIZE, 3])
    x = tf.keras.layers.Conv2D(8, 3, activation="relu")(inputs)
    pooled = tf.keras.layers.GlobalAveragePooling2D()(x)
    encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(5)(pooled))
    projection = tf.keras.Sequential(
        [tf.keras.layers.Activation("tanh")], name="projection"
    )
    projection.build([None, 5])
    head = exporting.ProbeHead(np.arange(10.0).reshape([5, 2]), np.zeros([2]))
    parts = exporting.Parts(encoder, projection)
    images = exporting.photographs(2, SIZE)
    return exporting.export(parts, str(folder), head=head, images=images)


class _Other(tf.Module):
    """Signatures that exports of the package do not have."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, "x")])
    def half_plus_two(self, x):
        return {"y": 0.5 * x + 2.0}

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "steps")])
    def slow(self, steps):
        """Takes some milliseconds for each step."""
        value = tf.random.stateless_normal([400, 400], [0, 1])
        for _ in tf.range(steps):
            value = tf.math.tanh(value @ value)
        return {"value": value[0, 0]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def mean(self, x):
        """Its rows depend on each other."""
        return {"y": x - tf.reduce_mean(x)}


def export_other(folder, version="00000123"):
    """Writes a SavedModel that is not of the package."""
    module = _Other()
    signatures = {
        "serving_default": module.half_plus_two,
        "slow": module.slow,
        "mean": module.mean,
    }
    tf.saved_model.save(module, f"{folder}/{version}", signatures=signatures)
    return str(folder)


class Server:
    """A running server.

    Attributes:
      port: of 127.0.0.1.
      process: its process.
      first_line: that it printed.
    """

    def __init__(self, process, first_line):
        self.process, self.first_line = process, first_line
        self.port = int(re.search(r":(\d+)/v1/", first_line)[1])

    def connect(self, timeout=60):
        return http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=timeout
        )

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """Returns status, headers and body, read as JSON if it is."""
        if isinstance(body, dict):
            body = json.dumps(body)
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.headers["Content-Type"] == "application/json":
            content = json.loads(content)
        return answer.status, answer.headers, content

    def predict(self, body, path="/v1/models/encoder:predict"):
        """Returns the answer to a prediction, which must succeed."""
        status, _, content = self.ask("POST", path, body)
        assert status == 200, content
        return content

    def send(self, data, timeout=20, end=False):
        """Sends bytes and returns all that comes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as s:
            with contextlib.suppress(ConnectionError):
                s.sendall(data)
                if end:
                    s.shutdown(socket.SHUT_WR)
            return receive(s)

    def metrics(self):
        """Returns the values at /metrics by name and labels."""
        _, _, content = self.ask("GET", "/metrics")
        lines = content.decode().splitlines()
        pairs = [x.rsplit(" ", 1) for x in lines if not x.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def stop(self, number):
        """Sends a signal; returns the exit status and what was on stderr."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr


def receive(connection):
    """Returns what comes until the other side closes or resets."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def command(*words):
    return [sys.executable, "-m", "tf_contrastive", "serve", *words]


@contextlib.contextmanager
def server(folder, *words):
    """Runs a server until the end of the block."""
    process = subprocess.Popen(
        command(f"--saved_model={folder}", "--port=0", *words),
        cwd=_ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Server(process, line)
    finally:
        process.kill()
        process.communicate()


def wait_until(condition, seconds=30):
    """Waits until a condition holds; returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "nothing came in time"
        time.sleep(0.05)
    return value
