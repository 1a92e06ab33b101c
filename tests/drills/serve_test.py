"""`serve` under load: malformed requests, aborted clients, new versions.

--drill_seed varies what is sent, --drill_kills is the number of versions. With
100 of them the drill is long enough to show a slow growth of memory.
"""

import collections
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

SEED = int(os.environ.get("DRILL_SEED", "0"))
VERSIONS = int(os.environ.get("DRILL_KILLS", "3"))
MALFORMED = 1000
ABORTED = 300
_PATH = "/v1/models/encoder:predict"
_ACTIVE = "tf_contrastive_serve_requests_active"
_VERSION = "tf_contrastive_serve_model_version"
_MIB = 2**20


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Two exports whose embeddings differ, and an image."""
    base = tmp_path_factory.mktemp("exports")
    return [served.export(base, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def expected(exports):
    """A request, and its answer by each of the exports."""
    image = np.random.default_rng(SEED).integers(0, 256, [1, 9, 9, 3], np.uint8)
    answers = []
    for path in exports:
        model = tf.saved_model.load(path)
        call = model.signatures["serving_default"]
        answers.append(call(images=tf.constant(image))["embedding"].numpy())
    assert np.abs(answers[0] - answers[1]).max() > 0.1
    return json.dumps({"inputs": image.tolist()}).encode(), answers


@pytest.fixture(scope="module")
def server(exports, expected):
    with served.server(exports[0], "--read_seconds=1") as running:
        for _ in range(20):
            running.predict(expected[0], _PATH)
        yield running


def _which(answers, content):
    """Returns the export that gave an answer, to rounding, or None."""
    found = np.array(content["outputs"], np.float32)
    for i, answer in enumerate(answers):
        if found.shape == answer.shape and np.allclose(
            found, answer, rtol=0, atol=1e-6
        ):
            return i
    return None


def _head(length=None, path=_PATH, version="1.1", more=()):
    lines = [f"POST {path} HTTP/{version}", "Host: x", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


# ---- Malformed requests -----------------------------------------------------


def _malformed(generator, good):
    """Returns bytes that are no valid request of a prediction."""
    choose = generator.choice
    value = choose(
        [
            *(1, -1, 1.5, True, None, "x", {}, [], [[]], {"b64": "AA=="}),
            *(10**30, 1e308, float("nan"), [[[[256, 0, 0]]]], [[[[1.5] * 3]]]),
            *([[[[1, 2]]]], [[[1, 2, 3]]], [[[[1, 2, 3]]], [[[1, 2, 3]] * 2]]),
            *(
                [[[[1, 2, "3"]]]],
                {"images": 1},
                {"image": []},
                [[[[-1, 0, 0]]]],
            ),
        ]
    )
    name = choose(
        ["serving_default", "serving_float", "serving_bytes", "none", 5, None]
    )
    key = choose(["instances", "inputs", "input"])
    document = {"signature_name": name, key: value}
    text = json.dumps(document).encode()
    kind = generator.randrange(12)
    if kind == 0:  # Broken JSON.
        place = generator.randrange(len(good))
        text = good[:place]
    elif kind == 1:
        text = bytearray(good)
        text[generator.randrange(15)] = generator.randrange(128, 256)
        text = bytes(text)
    elif kind == 2:  # Deep nesting.
        depth = choose([10, 33, 1000, 200_000])
        text = b'{"inputs": ' + b"[" * depth + b"]" * depth + b"}"
    elif kind == 3:  # Bad base64.
        bad = "".join(choose("AB=!%\u00e9 ") for _ in range(5)) + "!"
        text = json.dumps(
            {"signature_name": "serving_bytes", "inputs": [{"b64": bad}]}
        ).encode()
    elif kind == 4:  # Long numbers.
        digits = b"9" * choose([30, 400, 5000])
        text = b'{"inputs": [[[[' + digits + b", 1, 1]]]]}"
    elif kind == 5:  # Lengths that are not those of the body.
        length = choose(["-1", "1e3", "99999999999999999999", "x", "5, 6"])
        return _head(length) + text
    elif kind == 6:  # Chunks.
        size = choose([b"5", b"fffffffffffffffff", b"-1", b"zz", b""])
        more = ["Transfer-Encoding: chunked"]
        return _head(more=more) + size + b"\r\n" + text + b"\r\n0\r\n\r\n"
    elif kind == 7:  # Headers.
        more = choose(
            [
                ["X: " + "y" * 100_000],
                ["no colon"],
                [": x"],
                ["Content-Length: 3"],
                ["Content-Encoding: gzip"],
                ["X\0: y"],
            ]
        )
        return _head(len(good) + 1, more=more) + good + b"!"
    elif kind == 8:  # Request lines.
        return choose(
            [
                b"\r\n\r\n\r\n",
                b"GET\r\n\r\n",
                b"POST /v1 HTTP/9.9\r\n\r\n",
                b"\x16\x03\x01\x02\x00" + bytes(50),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                generator.randbytes(200),
                b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            ]
        )
    elif kind == 9:  # Other paths.
        path = choose(
            [
                "/",
                "/v1/models/encoder",
                "/v1/models/../../etc/passwd:predict",
                "/v1/models/encoder/versions/99:predict",
                "/v1/models/%00:predict",
                "/v1/models/encoder/labels/x:predict",
            ]
        )
        return _head(len(good), path) + good
    if json.loads(good) == _parsed(text):
        text = b""
    return _head(len(text), version=choose(["1.1", "1.0"])) + text


def _parsed(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def test_malformed_requests(server, expected):
    """Each gets a status from 400 to 499 or 501, or is disconnected."""
    good, answers = expected
    generator = random.Random(SEED)
    requests = [_malformed(generator, good) for _ in range(MALFORMED)]
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = [*pool.map(lambda x: _status(server, x), requests)]
    for status, data in zip(statuses, requests, strict=True):
        ok = status in ("none", 501) or 400 <= status < 500
        assert ok, (status, data[:300])
    assert _which(answers, server.predict(good, _PATH)) == 0
    # Two at once, and an old version of HTTP.
    last = _head(len(good), more=["Connection: close"]) + good
    both = server.send(_head(len(good)) + good + last)
    assert both.count(b"HTTP/1.1 200 OK") == 2
    old = server.send(_head(len(good), version="1.0") + good)
    assert b" 200 OK" in old
    served.wait_until(lambda: server.metrics()[_ACTIVE] == 0)
    growth = (process.memory_info().rss - before) / _MIB
    print(f"memory grew by {growth:.0f} MiB", collections.Counter(statuses))
    assert growth < 100


def _status(server, data):
    """Returns the status of the answer to some bytes; its body is an error."""
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address, 20) as client:
        answer = http.client.HTTPResponse(client)
        try:
            client.sendall(data)
            answer.begin()
            assert list(json.loads(answer.read())) == ["error"]
        except (ConnectionError, http.client.HTTPException):
            return "none"
        return answer.status


# ---- Aborted clients --------------------------------------------------------


def test_aborted_clients_leave_nothing(server, expected):
    good, answers = expected
    generator = random.Random(SEED)
    process = psutil.Process(server.process.pid)
    files, memory = process.num_fds(), process.memory_info().rss
    whole = _head(len(good)) + good
    for i in range(ABORTED):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            sent = generator.choice(
                [len(whole), generator.randrange(len(whole))]
            )
            client.sendall(whole[:sent])
            time.sleep(generator.uniform(0, 0.005))
            if i % 2:  # A reset instead of an end.
                linger = b"\1\0\0\0\0\0\0\0"
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if i % 50 == 0:
            assert _which(answers, server.predict(good, _PATH)) == 0
    served.wait_until(lambda: server.metrics()[_ACTIVE] == 0)
    served.wait_until(lambda: process.num_fds() <= files + 1)
    growth = (process.memory_info().rss - memory) / _MIB
    print(f"memory grew by {growth:.0f} MiB")
    assert growth < 40


# ---- Versions ---------------------------------------------------------------


def test_versions_are_exchanged_under_load(exports, expected, tmp_path):
    """No request fails, each answer is of one of both, the last of the new."""
    good, answers = expected
    base = tmp_path / "served"
    base.mkdir()

    def publish(version):
        copy = tmp_path / "copy"
        shutil.copytree(exports[version % 2], copy)
        copy.rename(base / str(version))

    publish(1)
    wrong, counts, stop = [], [0] * 8, threading.Event()

    def ask(server, thread):
        connection = server.connect()
        while not stop.is_set():
            connection.request("POST", _PATH, good)
            answer = connection.getresponse()
            content = answer.read()
            if (
                answer.status != 200
                or _which(answers, json.loads(content)) is None
            ):
                wrong.append(content)
            counts[thread] += 1
        connection.close()

    with served.server(base, "--poll_seconds=0.2") as server:
        process = psutil.Process(server.process.pid)
        threads = [
            threading.Thread(target=ask, args=(server, i))
            for i in range(len(counts))
        ]
        for thread in threads:
            thread.start()
        memory = []
        try:
            for version in range(2, VERSIONS + 2):
                publish(version)
                served.wait_until(
                    lambda v=version: server.metrics()[_VERSION] == v, 300
                )
                assert (
                    _which(answers, server.predict(good, _PATH)) == version % 2
                )
                # The former one is gone, as soon as its requests are.
                served.wait_until(lambda: len(_versions(server)) == 1, 60)
                shutil.rmtree(base / str(version - 1))
                time.sleep(1)
                memory.append(round(process.memory_info().rss / _MIB))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert _versions(server) == [str(VERSIONS + 1)]
    print(f"{sum(counts)} requests, {VERSIONS} versions; MiB: {memory}")
    assert not wrong and min(counts) > 0
    assert memory[-1] - memory[len(memory) // 3] < 60, memory


def _versions(server):
    _, _, content = server.ask("GET", "/v1/models/encoder")
    return [x["version"] for x in content["model_version_status"]]
