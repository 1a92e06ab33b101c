"""`serve` as its clients see it."""

import asyncio
import base64
import concurrent.futures
import contextlib
import json
import shutil
import signal
import socket
import sys
import threading
import time

import numpy as np
import processes
import psutil
import pytest
import served
import tensorflow as tf
from served import PREDICT, SIZE

from tf_contrastive import exporting, serving
from tf_contrastive.base import errors
from tf_contrastive.config.serving import Serving
from tf_contrastive.serving import app as app_module
from tf_contrastive.serving import server as server_module
from tf_contrastive.serving.app import App
from tf_contrastive.serving.rest import Signature
from tf_contrastive.serving.versions import SavedModel, Versions

_MODEL = "/v1/models/encoder"


@contextlib.contextmanager
def _running(versions, **options):
    """Serves in a thread of this process; gives a client."""
    options = Serving(saved_model="unused", **options)
    with server_module.listen("127.0.0.1", 0) as listener:
        # asyncio sets TCP_NODELAY only for a named protocol.
        assert listener.proto == socket.IPPROTO_TCP
        listener.listen()
        server = server_module.make(App(options, versions), 5)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield served.Client(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


# ---- An export --------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("with space")
    served.export(base)
    return base


@pytest.fixture(scope="module")
def client(folder):
    with _running(Versions(str(folder))) as client:
        yield client


def _images(count, side=20):
    shape = [count, side, side + 1, 3]
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


_PNGS = [tf.io.encode_png(image).numpy() for image in _images(3)]
_SIGNATURES = {
    **dict.fromkeys(("serving_default", "classify"), _images(3)),
    "serving_float": _images(3) / np.float32(255),
    "serving_bytes": [*_PNGS, b"no image", b""],
    "project": _images(2, side=SIZE),
}


def test_answers_equal_direct_calls(client, folder):
    model = tf.saved_model.load(f"{folder}/1")
    for name, value in _SIGNATURES.items():
        signature = model.signatures[name]
        (key,) = signature.structured_input_signature[1]
        expected = signature(**{key: tf.constant(value)})
        rows = value if isinstance(value, list) else value.tolist()
        if isinstance(value, list):
            rows = [{"b64": base64.b64encode(x).decode()} for x in rows]
        body = {"signature_name": name, "inputs": rows}
        columns = client.predict(body)["outputs"]
        columns = (
            columns if len(expected) > 1 else dict.fromkeys(expected, columns)
        )
        for k, values in expected.items():
            found = np.array(columns[k], values.dtype.as_numpy_dtype)
            np.testing.assert_array_equal(found, values.numpy(), strict=True)


def test_status_and_metadata(client, folder):
    row = {"version": "1", "state": "AVAILABLE"}
    row |= {"status": {"error_code": "OK", "error_message": ""}}
    for path in (_MODEL, f"{_MODEL}/versions/1"):
        status, headers, content = client.ask("GET", path)
        assert status == 200 and content == {"model_version_status": [row]}
        assert headers["Content-Type"] == "application/json"
    _, _, content = client.ask("GET", f"{_MODEL}/versions/1/metadata")
    spec = {"name": "encoder", "signature_name": "", "version": "1"}
    assert content["model_spec"] == spec
    signatures = content["metadata"]["signature_def"]["signature_def"]
    assert {*exporting.details(f"{folder}/1")["signatures"]} <= {*signatures}
    given = signatures["serving_bytes"]["inputs"]["bytes"]
    shape = {"dim": [{"size": "-1"}]}
    assert (given["dtype"], given["tensor_shape"]) == ("DT_STRING", shape)


_ONE = {"signature_name": "serving_bytes", "instances": [{"b64": "AA=="}]}
_FLOAT = {"signature_name": "serving_float", "inputs": [[[[2.0, 0, 0]]]]}


_OTHERS = [
    ("GET", "/v1/models/half", None, 404),
    ("POST", "/v1/models/half:predict", _ONE, 404),
    ("POST", f"{_MODEL}/versions/7:predict", _ONE, 404),
    ("POST", f"{_MODEL}/versions/1:predict", _ONE, 200),
    ("GET", f"{_MODEL}/versions/{10**18 - 1}", None, 404),
    ("GET", f"{_MODEL}/versions/{'9' * 5000}", None, 400),
    ("POST", f"{_MODEL}:classify", {"examples": [{}]}, 400),
    ("GET", PREDICT, None, 400),
    ("PUT", PREDICT, _ONE, 400),
    ("GET", "/favicon.ico", None, 404),
    ("POST", "/healthz", b"", 404),
    ("POST", PREDICT, b"", 400),
    ("POST", PREDICT, _FLOAT, 400),
]


def test_other_requests_get_their_status_and_an_error(client):
    for *request, expected in _OTHERS:
        status, _, content = client.ask(*request)
        assert status == expected
        assert expected == 200 or [*content] == ["error"], content


@pytest.mark.parametrize("path", ["/healthz", _MODEL, "/metrics"])
def test_absolute_uris_are_those_of_their_paths(client, path):
    for uri in (path, f"http://host:1{path}", f"HTTP://h{path}"):
        assert client.ask("GET", uri)[0] == 200
    assert client.ask("GET", f"/http://host{path}")[0] == 404


def test_metrics(client):
    assert client.ask("GET", "/healthz")[2] == b"ok\n"
    _, headers, content = client.ask("GET", "/metrics")
    assert headers["Content-Type"].startswith("text/plain")
    assert b"process_resident_memory_bytes" in content
    counters = (
        "predict_seconds_count",
        'requests_total{code="200",kind="predict"}',
    )
    before = [*map(client.metric, counters)]
    client.predict(_ONE)
    assert [*map(client.metric, counters)] == [x + 1 for x in before]
    assert client.metric("model_version") == 1
    assert client.metric("requests_active") == 0


def test_bad_exports_are_not_served(folder, tmp_path):
    versions = [tmp_path / str(number) for number in range(3)]
    for version in versions:
        shutil.copytree(folder / "1", version)
    served.scale_weights(versions[0], [np.nan] * 8)
    with pytest.raises(ValueError, match=r"variable .*not finite"):
        SavedModel(str(versions[0]))
    # Finite weights, whose embeddings are infinite.
    served.scale_weights(versions[1], 1e30)
    with pytest.raises(ValueError, match=r"of (serving|classify).*not finite"):
        SavedModel(str(versions[1]))
    (path,) = (versions[2] / "variables").glob("*.data*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(tf.errors.OpError):
        SavedModel(str(versions[2]))


# ---- Limits, by a model without TensorFlow ----------------------------------


class _Model(SavedModel):
    """Doubles a vector; one that begins with a negative number waits."""

    def __init__(self):
        self.take(-1)
        self.release = threading.Event()

    def take(self, *shape):
        signature = Signature("x", np.dtype(np.float32), shape, ["y"])
        self.signatures = {"serving_default": signature}

    def run(self, signature, array):
        if array.flat[0] < 0:
            assert self.release.wait(20)
        return {"y": 2 * array}


class _Versions(Versions):
    number = 1

    def __init__(self):
        self.only = _Model()

    def model(self, number):
        return 1, self.only

    async def follow(self):
        await asyncio.sleep(3600)


@pytest.fixture
def versions():
    versions = _Versions()
    yield versions
    versions.only.release.set()


def _status(answer):
    return int(answer.split(b" ", 2)[1])


def test_bodies_are_limited(versions):
    with _running(versions, max_body_bytes=1000) as client:
        inside = b'{"inputs": [1]}'.ljust(1000)
        assert client.ask("POST", PREDICT, inside)[0] == 200
        assert client.ask("POST", PREDICT, inside + b" ")[0] == 413
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n".encode()
        head += b"Connection: close\r\n"
        declared = head + b"Content-Length: 99999999999999999999\r\n\r\n{}"
        assert _status(client.send(declared)) == 413
        chunk = b"fff\r\n" + bytes(4095) + b"\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + 100 * chunk
        assert _status(client.send(chunked)) == 413
        # As a client that sends all before it reads.
        assert client.ask("POST", PREDICT, bytes(10_000_000))[0] == 413


def test_a_body_of_two_lengths_ends_the_connection(versions):
    lengths = ["Content-Length: 30", "Transfer-Encoding: chunked"]
    smuggled = ["GET /healthz HTTP/1.1", "Host: x", "", ""]
    with _running(versions) as client:
        for order in (1, -1):
            lines = [f"POST {PREDICT} HTTP/1.1", "Host: x", *lengths[::order]]
            text = "\r\n".join([*lines, "", "0", "", *smuggled])
            answer = client.send(text.encode())
            assert _status(answer) == 400 and answer.count(b"HTTP/1.1 ") == 1


def _predicted(client):
    return client.ask("POST", PREDICT, {"inputs": [1]})[0]


def test_all_bodies_together_are_eight_of_the_largest(versions):
    stack = contextlib.ExitStack()
    with _running(versions, max_body_bytes=100) as client, stack:
        for _ in range(8):
            slow = stack.enter_context(client.connection())
            slow.sendall(served.request(bytes(100))[:-1])
        processes.wait_for(lambda: client.metric("requests_active") == 8)
        processes.wait_for(lambda: _predicted(client) == 503)


def test_only_requests_in_work_count(versions):
    """Not 600 idle connections, and bodies that are not sent."""
    stack = contextlib.ExitStack()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    options = {"request_seconds": 1, "max_queue": 1}
    with _running(versions, **options) as client, stack, pool:
        for i in range(600):
            idle = stack.enter_context(client.connection())
            idle.sendall(served.request(bytes(9))[: -1 if i < 9 else 50])
        processes.wait_for(lambda: client.metric("requests_active") == 9)
        assert client.predict({"inputs": [1]}) == {"outputs": [2]}
        late = pool.submit(client.ask, "POST", PREDICT, {"inputs": [-1]})
        # Otherwise it might be the one that is refused.
        processes.wait_for(lambda: client.metric("requests_active") == 10)
        processes.wait_for(lambda: _predicted(client) == 503)
        assert client.ask("GET", "/healthz")[0] == 200
        assert late.result()[0] == 504
        assert client.predict({"inputs": [1]}) == {"outputs": [2]}


@pytest.mark.slow
def test_slow_clients_are_disconnected(versions, monkeypatch):
    """By a connection, headers, a body, and an answer that is not read."""
    request = served.request(bytes(9))
    with _running(versions) as client, monkeypatch.context() as patched:
        patched.setattr(app_module, "READ_SECONDS", 0.5)
        patched.setattr(server_module, "READ_SECONDS", 0.5)
        start = time.monotonic()
        assert client.send(b"") == b""
        assert client.send(request[:-11]) == b""
        assert _status(client.send(request[:-1])) == 408
        assert 1.2 < time.monotonic() - start < 15
        # Byte after byte does not help.
        with client.connection() as drip, pytest.raises(ConnectionError):
            while time.monotonic() - start < processes.LIMIT:
                drip.sendall(b"G")
                time.sleep(0.02)
        # An answer of 8 MB, in few rows, since 64 are computed at a time.
        patched.undo()
        versions.only.take(-1, 100_000)
        body = json.dumps({"inputs": [[0.123456789] * 100_000] * 8}).encode()
        before = client.metric("predict_seconds_count")
        with client.connection() as silent:
            silent.sendall(served.request(body))
            address = silent.getsockname()

            def is_over():
                sockets = psutil.net_connections()
                held = [x.raddr for x in sockets if x.fd > 0]
                computed = client.metric("predict_seconds_count") > before
                return computed and address not in held

            processes.wait_for(is_over)
            received = 0
            with contextlib.suppress(ConnectionError):
                while part := silent.recv(1 << 20):
                    received += len(part)
            assert received < 8_000_000


# ---- The command ------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_and_ends_after_the_current_requests(folder):
    request = served.request(
        json.dumps({"inputs": _images(1).tolist()}).encode()
    )
    with served.server(folder / "1") as running:
        assert "version 1 of " in running.first_line
        client = [sys.executable, "-S", "examples/rest_client.py"]
        url = f"--url=http://127.0.0.1:{running.port}"
        done = processes.run([*client, url, "README.md"])
        assert json.loads(done.stdout)["ok"] is False
        with running.connection() as client:
            client.sendall(request[:200])
            processes.wait_for(lambda: running.metric("requests_active") == 1)
            running.process.kill(signal.SIGTERM)

            def is_closed():
                try:
                    return not running.ask("GET", "/healthz")
                except ConnectionError:
                    return True

            processes.wait_for(is_closed)
            client.sendall(request[200:])
            assert _status(client.recv(1 << 16)) == 200
        assert running.process.ended() == 0
        assert running.process.output == running.first_line


def _refused(port=0, **options):
    with pytest.raises(errors.UserError) as refused:
        serving.serve(Serving(port=port, **options))
    return str(refused.value)


def test_what_cannot_be_served_is_refused(folder, tmp_path):
    # A run is data: a SavedModel that somebody put into it is not run.
    planted = tmp_path / "run"
    shutil.copytree(folder / "1", planted)
    (planted / "config.flags").write_text("")
    for path in (str(planted), "pretrained:x", str(tmp_path)):
        assert "is not an export" in _refused(saved_model=path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "foreign" / "1"))
    assert "launch/serve" in _refused(saved_model=str(tmp_path / "foreign"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port={port}" in _refused(saved_model=str(folder), port=port)
