"""`serve` under load: malformed requests, aborted clients, new versions.

--drill_seed varies what is sent, --drill_kills is the number of versions.
"""

import concurrent.futures
import http.client
import json
import os
import random
import shutil
import socket
import threading

import numpy as np
import processes
import psutil
import pytest
import served
import tensorflow as tf
from served import PREDICT, request

SEED = int(os.environ.get("DRILL_SEED", "0"))
VERSIONS = int(os.environ.get("DRILL_KILLS", "3"))
MALFORMED, ABORTED = 300, 100


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


def _which(answers, content):
    """Returns the export that gave an answer, to rounding, or None."""
    outputs = np.array(content["outputs"], np.float32)
    near = [np.allclose(outputs, x, rtol=0, atol=1e-6) for x in answers]
    return near.index(True) if True in near else None


_VALUES = [
    *(1, None, "x", {}, [[]], {"b64": "AA=="}, 10**30, float("nan")),
    *([[[[256, 0, 0]]]], [[[[1.5] * 3]]], [[[[1, 2]]]], [[[1, 2, 3]] * 2]),
    *([[[[1, 2, "3"]]]], {"images": 1}, [[[[-1, 0, 0]]]]),
]
_TEXTS = [
    *(b'{"inputs": ' + n * b"[" + n * b"]" + b"}" for n in (10, 200_000)),
    *(b'{"inputs": [[[[' + n * b"9" + b"]]]]}" for n in (30, 5000)),
]
_CHUNKED = "Transfer-Encoding: chunked"
_HEADERS = [
    *("no colon", ": x", "Content-Length: 3", "Content-Encoding: gzip"),
    *("X\0: y", "X: " + "y" * 100_000, _CHUNKED),
]
_RAW = [
    *(b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"POST /v1 HTTP/9.9\r\n\r\n"),
    *(b"\x16\x03\x01\x02\x00" + bytes(50), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]
_PATHS = ["/", "/v1/models/../../etc/passwd:predict", "/v1/models/%00:predict"]


def _malformed(generator, good):
    """Returns bytes that are not a valid request of a prediction."""
    choose = generator.choice
    text = bytearray(good)
    text[generator.randrange(15)] = generator.randrange(128, 256)
    signatures = ["serving_float", "serving_bytes", "none", 5, None]
    document = {
        "signature_name": choose(signatures),
        choose(["instances", "input"]): choose(_VALUES),
    }
    size = choose([b"5", b"fffffffffffffffff", b"-1", b"zz", b""])
    chunked = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n{_CHUNKED}\r\n\r\n"
    return choose(
        [
            request(good[: generator.randrange(len(good))]),
            request(bytes(text)),
            request(choose(_TEXTS)),
            request(good, length=choose(["-1", "1e3", "9" * 20, "x", "5, 6"])),
            chunked.encode() + size + b"\r\n" + good + b"\r\n0\r\n\r\n",
            request(b"!" + good, more=[choose(_HEADERS)]),
            choose([*_RAW, generator.randbytes(200)]),
            request(good, choose(_PATHS)),
            request(json.dumps(document).encode()),
        ]
    )


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


def _abort(server, generator, whole):
    """Sends a part of a request, and closes or resets the connection."""
    with server.connection() as client:
        client.sendall(whole[: generator.randrange(len(whole) + 1)])
        if generator.randrange(2):
            linger = b"\1\0\0\0\0\0\0\0"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def test_malformed_requests_and_aborted_clients_leave_nothing(
    exports, expected
):
    """A malformed request gets a status from 400 to 499, or none."""
    good, answers = expected
    generator = random.Random(SEED)
    requests = [_malformed(generator, good) for _ in range(MALFORMED)]
    with served.server(exports[0]) as server:
        for _ in range(20):
            server.predict(good)
        process = psutil.Process(server.process.pid)
        files, memory = process.num_fds(), process.memory_info().rss
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = [*pool.map(lambda x: _status(server, x), requests)]
        for status, data in zip(statuses, requests, strict=True):
            assert status == "none" or 400 <= status < 500, (status, data[:300])
        for _ in range(ABORTED):
            _abort(server, generator, request(good))
        # Once what was sent whole is answered: two at once, and an old version
        # of HTTP.
        two = request(good) + request(good, more=["Connection: close"])
        processes.wait_for(lambda: server.send(two).count(b" 200 OK") == 2)
        assert b" 200 OK" in server.send(request(good, version="1.0"))
        assert _which(answers, server.predict(good)) == 0
        processes.wait_for(lambda: process.num_fds() <= files + 1)
        assert process.memory_info().rss - memory < 100 * 2**20


def test_versions_are_exchanged_under_load(exports, expected, tmp_path):
    """No request fails, each answer is of a good one, the last of the new.

    After each new version follows a bad one, which nobody sees. At the start
    the newest is damaged.
    """
    good, answers = expected
    base = tmp_path / "served"
    base.mkdir()

    def publish(version, export):
        copy = tmp_path / "copy"
        shutil.copytree(export, copy)
        copy.rename(base / str(version))

    publish(1, exports[1])
    publish(2, exports[0])
    (weights,) = (base / "2" / "variables").glob("*.data*")
    weights.write_bytes(weights.read_bytes()[:100])
    wrong, counts, stop = [], [0] * 8, threading.Event()

    def ask(server, thread):
        while not stop.is_set():
            status, _, content = server.ask("POST", PREDICT, good)
            if status != 200 or _which(answers, content) is None:
                wrong.append(content)
            counts[thread] += 1

    with served.server(base) as server:
        assert "serving version 1 " in server.first_line
        pool = concurrent.futures.ThreadPoolExecutor(len(counts))
        pool.map(lambda i: ask(server, i), range(len(counts)))
        try:
            for version in range(4, 2 * VERSIONS + 4, 2):
                new = version // 2 % 2
                publish(version, exports[new])
                processes.wait_for(
                    lambda i=new: _which(answers, server.predict(good)) == i
                )
                publish(version + 1, exports[2])
                server.process.until(f"cannot serve {base / str(version + 1)}")
                assert _which(answers, server.predict(good)) == new
        finally:
            stop.set()
            pool.shutdown()
    assert not wrong and min(counts) > 0
