"""Exports, servers in processes of their own, and clients."""

import contextlib
import http.client
import json
import re
import socket

import numpy as np
import processes
import tensorflow as tf

from tf_contrastive import exporting

SIZE = 12
PREDICT = "/v1/models/encoder:predict"


def export(folder, seed=0):
    """Exports a tiny encoder with all signatures; returns the version."""
    tf.keras.utils.set_random_seed(seed)
    inputs = tf.keras.Input([SIZE, SIZE, 3])
    x = tf.keras.layers.Conv2D(8, 3, activation="relu")(inputs)
    pooled = tf.keras.layers.GlobalAveragePooling2D()(x)
    encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(5)(pooled))
    tanh = tf.keras.layers.Activation("tanh")
    projection = tf.keras.Sequential([tanh], name="projection")
    projection.build([None, 5])
    head = exporting.ProbeHead(np.arange(10.0).reshape([5, 2]), np.zeros([2]))
    parts = exporting.Parts(encoder, projection)
    return exporting.export(parts, str(folder), head=head)


def scale_weights(version, factor):
    """Multiplies weights by a number, or those of an array's shape by it."""
    prefix = f"{version}/variables/variables"
    reader = tf.train.load_checkpoint(prefix)
    factor = np.float32(factor)
    values = {}
    for name, dtype in reader.get_variable_to_dtype_map().items():
        values[name] = reader.get_tensor(name)
        if dtype.is_floating and factor.shape in ((), values[name].shape):
            values[name] *= factor
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[*values],
        shape_and_slices=len(values) * [""],
        tensors=[*values.values()],
    )


def request(body, path=PREDICT, version="1.1", length=None, more=()):
    """The bytes of a request, with a length and further lines of its header."""
    length = len(body) if length is None else length
    lines = [f"POST {path} HTTP/{version}", "Host: x", *more]
    lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Client:
    """A client of a server at a port of this machine."""

    def __init__(self, port):
        self.port = port

    def connection(self):
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def ask(self, method, path, body=None):
        """Returns status, headers and body, read as JSON if it is."""
        if isinstance(body, dict):
            body = json.dumps(body)
        host = "127.0.0.1"
        connection = http.client.HTTPConnection(host, self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read()
        if answer.headers["Content-Type"] == "application/json":
            content = json.loads(content)
        return answer.status, answer.headers, content

    def predict(self, body, path=PREDICT):
        """Returns the answer to a prediction, which must succeed."""
        status, _, content = self.ask("POST", path, body)
        assert status == 200, content
        return content

    def send(self, data):
        """Sends bytes and returns all that comes until the server closes."""
        with self.connection() as client:
            received = b""
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
                while part := client.recv(1 << 16):
                    received += part
            return received

    def metric(self, name):
        """Returns a value at /metrics, 0 if it is absent."""
        _, _, content = self.ask("GET", "/metrics")
        name = re.escape(f"tf_contrastive_serve_{name} ")
        match = re.search(rf"^{name}(\S+)$", content.decode(), re.MULTILINE)
        return float(match[1]) if match else 0.0


@contextlib.contextmanager
def server(folder, *words):
    """Runs `serve`; gives a client with its `process` and `first_line`."""
    command = processes.main("serve", "--port=0", f"--saved_model={folder}")
    without_gpus = {"CUDA_VISIBLE_DEVICES": ""}
    with processes.start([*command, *words], variables=without_gpus) as process:
        line = process.until("/v1/")
        client = Client(int(re.search(r":(\d+)/v1/", line)[1]))
        client.process, client.first_line = process, line
        yield client
