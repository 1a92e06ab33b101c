"""`serve` as its clients see it, from another process."""

import asyncio
import base64
import concurrent.futures
import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import served
import tensorflow as tf
from served import SIZE

from tf_contrastive import exporting, serving
from tf_contrastive.base import errors
from tf_contrastive.config.serving import Batching, Limits, Serving
from tf_contrastive.serving import server as server_module

_ROOT = Path(__file__).resolve().parents[2]
_MODEL = "/v1/models/encoder"
_PREDICT = f"{_MODEL}:predict"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("with space")
    served.export(base)
    return str(base)


@pytest.fixture(scope="module")
def server(folder):
    with served.server(folder, "--batch_timeout_ms=50") as running:
        yield running


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return served.export_other(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def limited(other):
    with served.server(
        other,
        "--max_body_bytes=1000",
        "--max_queue=2",
        "--max_connections=6",
        "--read_seconds=1",
        "--request_seconds=1",
        "--batch_threads=1",
        "--model_name=half_plus_two",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def direct(folder):
    """The SavedModel's signatures, called in this process."""
    model = tf.saved_model.load(f"{folder}/1")

    def call(name, value):
        (key,) = model.signatures[name].structured_input_signature[1]
        outputs = model.signatures[name](**{key: tf.constant(value)})
        return {k: v.numpy() for k, v in outputs.items()}

    call.model = model  # It keeps the variables.
    return call


def _images(count, side=20, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, [count, side, side + 1, 3], np.uint8)


def _files(count):
    return [
        *(tf.io.encode_png(x).numpy() for x in _images(count - 1)),
        b"no image",
    ]


def _encoded(files):
    return [{"b64": base64.b64encode(data).decode()} for data in files]


_SIGNATURES = {
    "serving_default": _images(3),
    "serving_float": (_images(3) / np.float32(255)),
    "serving_bytes": _files(4),
    "project": _images(2, side=SIZE),
    "classify": _images(3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _SIGNATURES)
def test_answers_equal_direct_calls(server, direct, name):
    value = _SIGNATURES[name]
    expected = direct(name, value)
    rows = _encoded(value) if name == "serving_bytes" else value.tolist()
    key = "bytes" if name == "serving_bytes" else "images"
    single = len(expected) == 1
    for instances in (rows, [{key: row} for row in rows]):
        answer = server.predict(
            {"signature_name": name, "instances": instances}
        )
        predictions = answer["predictions"]
        for output, values in expected.items():
            found = predictions if single else [p[output] for p in predictions]
            _assert_equal(found, values)
    for inputs in (rows, {key: rows}):
        answer = server.predict({"signature_name": name, "inputs": inputs})
        for output, values in expected.items():
            outputs = answer["outputs"]
            _assert_equal(outputs if single else outputs[output], values)


def _assert_equal(found, values):
    np.testing.assert_array_equal(
        np.array(found, values.dtype), values, strict=True
    )


@pytest.mark.slow
def test_bad_images_are_not_ok_and_fail_nobody(server):
    answer = server.predict(
        {
            "signature_name": "serving_bytes",
            "instances": [
                *_encoded([b"", b"GIF89a"]),
                "text",
                *_encoded(_files(2)),
            ],
        }
    )["predictions"]
    assert [row["ok"] for row in answer] == [False, False, False, True, False]
    assert not any(answer[0]["embedding"]) and all(answer[3]["embedding"])
    empty = {"signature_name": "serving_bytes", "inputs": []}
    assert server.predict(empty)["outputs"] == {"embedding": [], "ok": []}


@pytest.mark.slow
def test_status_and_metadata(server, folder):
    expected = {
        "model_version_status": [
            {
                "version": "1",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    for path in (_MODEL, f"{_MODEL}/versions/1", "/V1/Models/encoder"):
        status, headers, content = server.ask("GET", path)
        assert (status, content) == (200, expected)
        assert headers["Content-Type"] == "application/json"
    _, _, content = server.ask("GET", f"{_MODEL}/metadata")
    assert content["model_spec"] == {
        "name": "encoder",
        "signature_name": "",
        "version": "1",
    }
    signatures = content["metadata"]["signature_def"]["signature_def"]
    assert set(exporting.details(f"{folder}/1")["signatures"]) <= set(
        signatures
    )
    assert signatures["serving_bytes"]["inputs"]["bytes"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}],
            "unknown_rank": False,
        },
        "name": "serving_bytes_bytes:0",
    }
    assert signatures["classify"]["method_name"] == "tensorflow/serving/predict"


_ONE = {"signature_name": "serving_bytes", "instances": [{"b64": "AA=="}]}
# (method, path, body, status, part of the error).
_REFUSED = [
    ("GET", "/v1/models/half", None, 404, "half"),
    ("POST", "/v1/models/half:predict", _ONE, 404, "Latest(half)"),
    ("POST", f"{_MODEL}/versions/7:predict", _ONE, 404, "Specific(encoder, 7)"),
    ("GET", f"{_MODEL}/versions/7", None, 404, "version 7 of model encoder"),
    ("GET", f"{_MODEL}/versions/7/metadata", None, 404, "(encoder, 7)"),
    ("GET", f"{_MODEL}/versions/{2**64}", None, 400, "convert version"),
    ("GET", f"{_MODEL}/labels/stable", None, 400, "label: stable"),
    ("POST", f"{_MODEL}/labels/stable:predict", _ONE, 400, "label: stable"),
    ("POST", f"{_MODEL}:classify", {"examples": [{}]}, 400, ":classify"),
    ("POST", f"{_MODEL}:regress", {"examples": [{}]}, 400, ":regress"),
    ("POST", _MODEL, _ONE, 400, "Malformed request: POST"),
    ("GET", _PREDICT, None, 400, "Malformed request: GET"),
    ("PUT", _PREDICT, _ONE, 400, "Malformed request: PUT"),
    ("GET", "/v1/models", None, 400, "Malformed request"),
    ("GET", "/v1/foo", None, 400, "Malformed request"),
    ("GET", "/favicon.ico", None, 404, "Not found"),
    ("POST", "/healthz", b"", 404, "Not found"),
    ("POST", _PREDICT, b"", 400, "document is empty"),
    ("POST", _PREDICT, b"{", 400, "JSON Parse error"),
    (
        "POST",
        _PREDICT,
        {"signature_name": "x", "inputs": 1},
        400,
        '"x" not found',
    ),
    ("POST", _PREDICT, {"inputs": [[1]]}, 400, "shape [1, 1]"),
    (
        "POST",
        _PREDICT,
        {"signature_name": "serving_float", "inputs": [[[[2.0, 0, 0]]]]},
        400,
        "[0, 1]",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(_REFUSED)))
def test_other_requests_get_their_status_and_an_error(server, case):
    method, path, body, expected, told = _REFUSED[case]
    status, _, content = server.ask(method, path, body)
    assert status == expected and list(content) == ["error"], content
    assert told in content["error"]


@pytest.mark.slow
def test_compressed_bodies_are_refused(server):
    headers = {"Content-Encoding": "gzip"}
    assert server.ask("POST", _PREDICT, b"x", headers)[0] == 415


@pytest.mark.slow
def test_concurrent_requests_are_joined_and_fail_alone(server, direct):
    """Images of two sizes and of several requests; one of them is bad."""
    requests = []
    for i in range(24):
        images = _images(1 + i % 3, side=20 + i % 2, seed=i) / np.float32(255)
        requests.append(images)
    requests[5] = np.full([1, 20, 21, 3], 2.0, np.float32)

    def ask(images):
        body = {"signature_name": "serving_float", "inputs": images.tolist()}
        return server.ask("POST", _PREDICT, body)

    before = server.metrics()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, requests))
    for i, (status, _, content) in enumerate(answers):
        if i == 5:
            assert status == 400
            continue
        assert status == 200, content
        expected = direct("serving_float", requests[i])["embedding"]
        found = np.array(content["outputs"], np.float32)
        # Rows of a batch of another size may be added in another order.
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)
    after = server.metrics()
    name = "tf_contrastive_serve_batch_rows"
    rows, count = (
        after[f"{name}_{x}"] - before[f"{name}_{x}"] for x in ("sum", "count")
    )
    assert rows == sum(map(len, requests)) and count < 20


@pytest.mark.slow
def test_large_requests_are_divided(server, direct):
    images = _images(70)
    answer = server.predict({"inputs": images.tolist()})["outputs"]
    expected = direct("serving_default", images)["embedding"]
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-6)
    name = "tf_contrastive_serve_batch_rows_bucket"
    metrics = server.metrics()
    assert metrics[f'{name}{{le="32"}}'] == metrics[f'{name}{{le="+Inf"}}']


@pytest.mark.slow
def test_operations(server):
    for path in ("/healthz", "/readyz"):
        assert server.ask("GET", path)[2] == b"ok\n"
    status, headers, content = server.ask("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    pattern = (
        r"(# (HELP|TYPE) \w+ .+|\w+(\{\w+=\"[^\"]*\"(,\w+=\"[^\"]*\")*\})? \S+)"
    )
    for line in content.decode().splitlines():
        assert re.fullmatch(pattern, line), line
    metrics = server.metrics()
    prefix = "tf_contrastive_serve"
    assert metrics[f"{prefix}_model_version"] == 1
    assert metrics[f"{prefix}_queue_depth"] == 0
    assert metrics[f"{prefix}_requests_active"] == 0
    assert 1e8 < metrics[f"{prefix}_resident_memory_bytes"] < 1e10
    key = f'{prefix}_requests_total{{kind="predict",code="200"}}'
    before = metrics[key]
    server.predict(_ONE)
    after = server.metrics()
    assert after[key] == before + 1
    assert after[f"{prefix}_predict_seconds_count"] == after[key]


@pytest.mark.slow
def test_the_examples_client_embeds_files(server, direct, tmp_path):
    files = _files(2)
    paths = [tmp_path / name for name in ("good.png", "bad.jpg")]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            f"{_ROOT}/examples/rest_client.py",
            f"--url=http://127.0.0.1:{server.port}",
            *map(str, paths),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["ok"] for result in results] == [True, False]
    expected = direct("serving_bytes", files)["embedding"]
    _assert_equal([result["embedding"] for result in results], expected)


# ---- Another SavedModel, and limits -----------------------------------------

_HALF = "/v1/models/half_plus_two"
# Requests and answers of TensorFlow Serving's documents and tests.
_DOCUMENTED = [
    ({"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
    (
        {"instances": [[1.0, 2.0], [3.0, 4.0]]},
        {"predictions": [[2.5, 3.0], [3.5, 4.0]]},
    ),
    (
        {"signature_name": "serving_default", "instances": [3.0, 4.0]},
        {"predictions": [3.5, 4.0]},
    ),
    (
        {"signature_name": "serving_default", "inputs": [3.0, 4.0]},
        {"outputs": [3.5, 4.0]},
    ),
]


@pytest.mark.slow
def test_half_plus_two_answers_as_documented(limited):
    for path in (f"{_HALF}:predict", f"{_HALF}/versions/123:predict"):
        for body, expected in _DOCUMENTED:
            assert limited.predict(body, path) == expected
    _, _, content = limited.ask("GET", _HALF)
    assert content["model_version_status"][0]["version"] == "123"


@pytest.mark.slow
def test_requests_are_not_joined_where_rows_depend_on_each_other(limited):
    body = {"signature_name": "mean", "inputs": list(range(100))}
    path = f"{_HALF}:predict"
    assert limited.predict(body, path)["outputs"][0] == -49.5


def _slow(steps):
    return {"signature_name": "slow", "inputs": steps}


@pytest.fixture(scope="module")
def steps(limited):
    """Steps of `slow` that take about three seconds."""
    limited.predict(_slow(1), f"{_HALF}:predict")
    start, tried = time.monotonic(), 20
    limited.predict(_slow(tried), f"{_HALF}:predict")
    return round(3 * tried / (time.monotonic() - start))


def _idle(server):
    """Waits until a server computes nothing."""
    served.wait_until(
        lambda: (
            server.metrics()["tf_contrastive_serve_requests_active"] == 0
            and server.ask("POST", f"{_HALF}:predict", _slow(0))[0] == 200
        )
    )


@pytest.mark.slow
def test_late_requests_get_504_and_a_full_queue_503(limited, steps):
    path = f"{_HALF}:predict"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        late = [
            pool.submit(limited.ask, "POST", path, _slow(steps)) for _ in "ab"
        ]
        active = "tf_contrastive_serve_requests_active"
        served.wait_until(lambda: limited.metrics()[active] == 2)
        status, headers, content = limited.ask("POST", path, _slow(0))
        assert (status, headers["Retry-After"]) == (503, "1"), content
        # What is not a prediction is not refused.
        assert limited.ask("GET", "/healthz")[0] == 200
        for answer in late:
            assert answer.result()[0] == 504
    _idle(limited)


@pytest.mark.slow
def test_clients_that_leave_are_noticed(limited, steps):
    body = json.dumps(_slow(steps)).encode()
    request = (
        f"POST {_HALF}:predict HTTP/1.1\r\nHost: x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", limited.port)) as client:
            client.sendall(request)
            time.sleep(0.2)
    served.wait_until(
        lambda: limited.metrics()["tf_contrastive_serve_requests_active"] == 0
    )
    _idle(limited)
    key = 'tf_contrastive_serve_requests_total{kind="predict",code="499"}'
    assert limited.metrics()[key] >= 1


@pytest.mark.slow
def test_bodies_are_limited(limited):
    path = f"{_HALF}:predict"
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    inside = b'{"inputs": 1}'.ljust(1000)
    assert limited.ask("POST", path, inside)[0] == 200
    assert limited.ask("POST", path, inside + b" ")[0] == 413
    declared = head + b"Content-Length: 99999999999999999999\r\n\r\n{}"
    assert b" 413 " in limited.send(declared)
    chunk = b"fff\r\n" + bytes(4095) + b"\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + 100 * chunk
    assert b" 413 " in limited.send(chunked)
    # As a client that sends all before it reads.
    assert limited.ask("POST", path, bytes(10_000_000))[0] == 413


@pytest.mark.slow
def test_slow_clients_are_disconnected(limited):
    """By headers, body or reading; and as many as there may be."""
    path = f"{_HALF}:predict"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n".encode()
    start = time.monotonic()
    assert limited.send(b"") == b""
    assert limited.send(head) == b""
    assert b" 408 " in limited.send(head + b"\r\n{")
    assert 2.5 < time.monotonic() - start < 10
    # Byte after byte does not help.
    address = ("127.0.0.1", limited.port)
    with socket.create_connection(address) as drip:
        start = time.monotonic()
        with pytest.raises(ConnectionError):
            for byte in 100 * b"GET / HTTP/1.1":
                drip.sendall(bytes([byte]))
                time.sleep(0.1)
        assert 0.8 < time.monotonic() - start < 5
    others = [socket.create_connection(address) for _ in range(6)]
    time.sleep(0.2)
    assert b" 503 " in limited.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    for connection in others:
        connection.close()
    served.wait_until(lambda: limited.ask("GET", "/healthz")[0] == 200)


def test_parts_of_an_answer_are_sent_at_once():
    """Head and body are two: the body would wait 40 ms for the client."""

    async def is_set():
        found = asyncio.get_running_loop().create_future()

        def connected(_, writer):
            accepted = writer.get_extra_info("socket")
            found.set_result(
                accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            )
            writer.close()

        listener = server_module._listen("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await found

    assert asyncio.run(is_set())


@pytest.mark.slow
def test_sigterm_ends_it_after_the_requests_at_hand(other, steps):
    with served.server(f"{other}/00000123", "--batch_threads=1") as running:
        assert "version 123 of " in running.first_line
        running.predict(_slow(1))
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(running.predict, _slow(steps // 3))
                for _ in range(3)
            ]
            active = "tf_contrastive_serve_requests_active"
            served.wait_until(lambda: running.metrics()[active] == 3)
            status, stderr = running.stop(signal.SIGTERM)
            assert status == 0 and stderr == ""
            for answer in asked:
                assert "outputs" in answer.result()
        with pytest.raises(ConnectionError):
            running.ask("GET", "/healthz")


@pytest.mark.slow
def test_what_does_not_end_in_time_after_sigint_is_cut(other):
    with (
        served.server(other, "--stop_seconds=1") as running,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(running.ask, "POST", _PREDICT, _slow(10**6))
        active = "tf_contrastive_serve_requests_active"
        served.wait_until(lambda: running.metrics()[active] == 1)
        start = time.monotonic()
        assert running.stop(signal.SIGINT)[0] == 0
        assert time.monotonic() - start < 10
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            assert asked.result()[0] == 500


# ---- What cannot be served --------------------------------------------------


def _refused(**options):
    options = {"port": 0} | options
    with pytest.raises(errors.UserError) as refused:
        serving.serve(Serving(**options), Batching(), Limits())
    return str(refused.value)


def test_what_cannot_be_served_is_refused(other, tmp_path):
    # A run is data: a SavedModel that somebody put into it is not run.
    planted = tmp_path / "run"
    shutil.copytree(f"{other}/00000123", planted)
    (planted / "config.flags").write_text("")
    assert "is not an export" in _refused(saved_model=str(planted))
    assert "is not an export" in _refused(saved_model="pretrained:x")
    assert "nor an export" in _refused(saved_model=str(tmp_path))
    broken = tmp_path / "broken" / "1"
    shutil.copytree(f"{other}/00000123", broken)
    shutil.rmtree(broken / "variables")
    assert f"cannot load {broken}" in _refused(saved_model=str(broken.parent))
    assert "versions=3" in _refused(saved_model=other, versions="3")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port={port}" in _refused(saved_model=other, port=port)
