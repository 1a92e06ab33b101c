"""`serve` under load: malformed requests, aborted clients, new versions.

--drill_seed varies what is sent, --drill_kills is the number of versions. With
100 of them the drill is long enough to show a slow growth of memory.
"""

import concurrent.futures
import http.client
import json
import os
import random
import shutil
import socket
import threading
import time

import numpy as np
import psutil
import pytest
import served
import tensorflow as tf
from served import PREDICT

SEED = int(os.environ.get("DRILL_SEED", "0"))
VERSIONS = int(os.environ.get("DRILL_KILLS", "3"))
MALFORMED = 1000
ABORTED = 300
_MIB = 2**20


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Two exports whose embeddings differ, and one that is bad."""
    base = tmp_path_factory.mktemp("exports")
    first = served.export(base)
    for number, factor in ((2, 2.0), (3, np.nan)):
        shutil.copytree(first, base / str(number))
        served.scale_weights(base / str(number), factor)
    return [base / str(number) for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def expected(exports):
    """A request, and its answer by each of the good exports."""
    image = np.random.default_rng(SEED).integers(0, 256, [1, 9, 9, 3], np.uint8)
    answers = []
    for path in exports[:2]:
        model = tf.saved_model.load(str(path))
        call = model.signatures["serving_default"]
        answers.append(call(images=tf.constant(image))["embedding"].numpy())
    assert np.abs(answers[0] - answers[1]).max() > 0.1
    return json.dumps({"inputs": image.tolist()}).encode(), answers


@pytest.fixture(scope="module")
def server(exports, expected):
    with served.server(exports[0]) as running:
        for _ in range(20):
            running.predict(expected[0])
        yield running


def _which(answers, content):
    """Returns the export that gave an answer, to rounding, or None."""
    outputs = np.array(json.loads(content)["outputs"], np.float32)
    for i, answer in enumerate(answers):
        if np.allclose(outputs, answer, rtol=0, atol=1e-6):
            return i
    return None


def _request(body, path=PREDICT, version="1.1", length=None, more=()):
    length = len(body) if length is None else length
    lines = [f"POST {path} HTTP/{version}", "Host: x", *more]
    lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


_VALUES = [
    *(1, -1, 1.5, True, None, "x", {}, [], [[]], {"b64": "AA=="}, 10**30),
    *(float("nan"), [[[[256, 0, 0]]]], [[[[1.5] * 3]]], [[[[1, 2]]]]),
    *([[[1, 2, 3]]], [[[[1, 2, 3]]], [[[1, 2, 3]] * 2]], [[[[1, 2, "3"]]]]),
    *({"images": 1}, {"image": []}, [[[[-1, 0, 0]]]]),
]
_TEXTS = [
    *(b'{"inputs": ' + n * b"[" + n * b"]" + b"}" for n in (10, 33, 200_000)),
    *(b'{"inputs": [[[[' + n * b"9" + b"]]]]}" for n in (30, 400, 5000)),
]
_CHUNKED = "Transfer-Encoding: chunked"
_HEADERS = [
    *("no colon", ": x", "Content-Length: 3", "Content-Encoding: gzip"),
    *("X\0: y", "X: " + "y" * 100_000, _CHUNKED),
]
_RAW = [
    *(b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"POST /v1 HTTP/9.9\r\n\r\n"),
    b"\x16\x03\x01\x02\x00" + bytes(50),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]
_PATHS = [
    *("/", "/v1/models/encoder", "/v1/models/../../etc/passwd:predict"),
    *("/v1/models/encoder/versions/99:predict", "/v1/models/%00:predict"),
]


def _malformed(generator, good):
    """Returns bytes that are no valid request of a prediction."""
    choose = generator.choice
    kind = generator.randrange(9)
    if kind == 0:  # Broken JSON.
        return _request(good[: generator.randrange(len(good))])
    if kind == 1:
        text = bytearray(good)
        text[generator.randrange(15)] = generator.randrange(128, 256)
        return _request(bytes(text))
    if kind == 2:
        return _request(choose(_TEXTS))
    if kind == 3:
        lengths = ["-1", "1e3", "99999999999999999999", "x", "5, 6"]
        return _request(good, length=choose(lengths))
    if kind == 4:
        size = choose([b"5", b"fffffffffffffffff", b"-1", b"zz", b""])
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n{_CHUNKED}\r\n\r\n"
        return head.encode() + size + b"\r\n" + good + b"\r\n0\r\n\r\n"
    if kind == 5:
        return _request(b"!" + good, more=[choose(_HEADERS)])
    if kind == 6:
        return choose([*_RAW, generator.randbytes(200)])
    if kind == 7:
        return _request(good, choose(_PATHS))
    signatures = ["serving_float", "serving_bytes", "none", 5, None]
    document = {
        "signature_name": choose(signatures),
        choose(["instances", "inputs", "input"]): choose(_VALUES),
        "x": 1,
    }
    if document.get("inputs") == [] or "b64" in str(document):
        document = {}
    text = json.dumps(document).encode()
    return _request(text, version=choose(["1.1", "1.0"]))


def _status(server, data):
    """Returns the status of the answer to some bytes."""
    with server.connection() as client:
        answer = http.client.HTTPResponse(client)
        try:
            client.sendall(data)
            answer.begin()
            answer.read()
        except (ConnectionError, http.client.HTTPException):
            return "none"
        return answer.status


def test_malformed_requests(server, expected):
    """Each gets a status from 400 to 499, or is disconnected."""
    good, answers = expected
    generator = random.Random(SEED)
    requests = [_malformed(generator, good) for _ in range(MALFORMED)]
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = [*pool.map(lambda x: _status(server, x), requests)]
    for status, data in zip(statuses, requests, strict=True):
        assert status == "none" or 400 <= status < 500, (status, data[:300])
    # Two at once, and an old version of HTTP.
    last = _request(good, more=["Connection: close"])
    assert server.send(_request(good) + last).count(b"HTTP/1.1 200 OK") == 2
    assert b" 200 OK" in server.send(_request(good, version="1.0"))
    _, _, content = server.ask("POST", PREDICT, good)
    assert _which(answers, json.dumps(content)) == 0
    served.wait_until(lambda: server.metric("requests_active") == 0)
    assert process.memory_info().rss - before < 100 * _MIB


def test_aborted_clients_leave_nothing(server, expected):
    generator = random.Random(SEED)
    process = psutil.Process(server.process.pid)
    files, memory = process.num_fds(), process.memory_info().rss
    whole = _request(expected[0])
    for i in range(ABORTED):
        with server.connection() as client:
            client.sendall(whole[: generator.randrange(len(whole) + 50)])
            time.sleep(generator.uniform(0, 0.005))
            if i % 2:  # A reset instead of an end.
                linger = b"\1\0\0\0\0\0\0\0"
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert server.predict(expected[0])
    served.wait_until(lambda: server.metric("requests_active") == 0)
    served.wait_until(lambda: process.num_fds() <= files + 1)
    assert process.memory_info().rss - memory < 40 * _MIB


def test_versions_are_exchanged_under_load(exports, expected, tmp_path):
    """No request fails, each answer is of a good one, the last of the new.

    After each new version follows a bad one, which nobody sees.
    """
    good, answers = expected
    base = tmp_path / "served"
    base.mkdir()

    def publish(version, export):
        copy = tmp_path / "copy"
        shutil.copytree(export, copy)
        copy.rename(base / str(version))

    publish(1, exports[1])
    wrong, counts, stop = [], [0] * 8, threading.Event()

    def ask(server, thread):
        while not stop.is_set():
            status, _, content = server.ask("POST", PREDICT, good)
            if status != 200 or _which(answers, json.dumps(content)) is None:
                wrong.append(content)
            counts[thread] += 1

    with served.server(base) as server:
        process = psutil.Process(server.process.pid)
        threads = [
            threading.Thread(target=ask, args=(server, i))
            for i in range(len(counts))
        ]
        for thread in threads:
            thread.start()
        memory = []
        try:
            for version in range(2, 2 * VERSIONS + 2, 2):
                publish(version, exports[version // 2 % 2])
                served.wait_until(
                    lambda v=version: server.metric("model_version") == v, 300
                )
                publish(version + 1, exports[2])
                time.sleep(5)  # It is loaded, and refused.
                content = json.dumps(server.predict(good))
                assert _which(answers, content) == version // 2 % 2
                memory.append(round(process.memory_info().rss / _MIB))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    print(f"{sum(counts)} requests, {VERSIONS} versions; MiB: {memory}")
    assert not wrong and min(counts) > 0
    assert memory[-1] - memory[len(memory) // 3] < 60, memory
