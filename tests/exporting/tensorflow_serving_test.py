"""TensorFlow Serving: files of an export, launcher, clients."""

import concurrent.futures
import json
import os
import shlex
import sys

import grpc
import numpy as np
import PIL.Image
import processes
import pytest
import served
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tf_contrastive.exporting import tflite_onnx

pytestmark = pytest.mark.keras


_BATCHING = "2/assets.extra/batching_parameters.txt"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Exports of a tiny encoder with all signatures: versions 1 and 2."""
    folder = str(tmp_path_factory.mktemp("with space"))
    for _ in range(2):
        served.export(folder)
    return folder


# ---- launch/serve -----------------------------------------------------------

_DOCKER = """#!/bin/sh
[ "$*" = info ] || printf '%s\\n' "$@" >{calls}
"""


@pytest.fixture
def serve(tmp_path):
    """Runs launch/serve with a docker that writes down how it was called."""
    calls = tmp_path / "calls"
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(_DOCKER.format(calls=calls))
    docker.chmod(0o755)

    def run(*words, path=f"{docker.parent}:{os.environ['PATH']}"):
        done = processes.run(
            [processes.ROOT / "launch" / "serve", *words],
            status=None,
            cwd=tmp_path,
            variables={"PATH": path},
        )
        called = calls.read_text().splitlines() if calls.exists() else None
        calls.unlink(missing_ok=True)
        return done, called

    return run


@pytest.mark.slow
def test_serve_mounts_the_versions_and_names_the_newest(serve, base):
    done, called = serve(
        "--rest_port=9000", "--batching", "--memory=2g", "--cpus=1.5", base
    )
    assert done.returncode == 0, done.stderr
    expected = (
        "run --rm --init --publish=127.0.0.1:8500:8500"
        " --publish=127.0.0.1:9000:8501 --memory=2g --cpus=1.5"
        f" --user={os.getuid()}:{os.getgid()} --cap-drop=ALL"
        " --security-opt=no-new-privileges"
        " --mount=type=bind,source=BASE,target=/models/encoder,readonly"
        " tensorflow/serving:2.15.1 --model_name=encoder"
        " --model_base_path=/models/encoder --enable_batching"
        f" --batching_parameters_file=/models/encoder/{_BATCHING}"
    )
    assert called == [word.replace("BASE", base) for word in expected.split()]
    assert os.path.exists(f"{base}/{_BATCHING}")
    assert "http://127.0.0.1:9000/v1/models/encoder" in done.stderr
    _, called = serve("--host=[::]", base)
    assert "--publish=[::]:8501:8501" in called
    done, nothing = serve("--dry_run", "--host=[::]", base)
    assert nothing is None
    assert shlex.split(done.stdout) == ["docker", *called]
    _, called = serve("--image=other", "gs://bucket/export")
    path = "--model_base_path=gs://bucket/export"
    assert called[-3:] == ["other", "--model_name=encoder", path]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no folder of an export: launch/serve"),
        (["nowhere"], "no export in "),
        (["--port=1", "a"], "unknown argument --port=1"),
        (["--batching", "gs://b"], "--batching needs a local folder"),
    ],
)
def test_serve_says_what_is_wrong(serve, words, told):
    done, called = serve(*words)
    assert done.returncode != 0
    assert called is None
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_installed_server_is_used_where_docker_is_not(serve, base, tmp_path):
    """Docker's client alone is not enough: its daemon may not run."""
    programs = tmp_path / "installed"
    programs.mkdir()
    source = (tmp_path / "bin" / "docker").read_text()
    (programs / "docker").write_text("#!/bin/sh\nexit 1\n")
    (programs / "docker").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done, called = serve(base, path=path)
    assert (done.returncode, called) == (1, None)
    assert "tf_contrastive serve --saved_model=" in done.stderr
    assert "http://" not in done.stderr and done.stderr.count("\n") == 1
    (programs / "tensorflow_model_server").write_text(source)
    (programs / "tensorflow_model_server").chmod(0o755)
    host = "--host=0.0.0.0"
    for words in ([], [host, "--memory=2g"]):
        done, called = serve(*words, base, path=path)
        assert (done.returncode, called) == (2, None)
        assert ("--memory needs Docker" if words else host) in done.stderr
    done, called = serve(host, "--batching", base, path=path)
    assert done.returncode == 0, done.stderr
    expected = (
        "--port=8500 --rest_api_port=8501 --model_name=encoder"
        " --model_base_path=BASE --enable_batching"
        f" --batching_parameters_file=BASE/{_BATCHING}"
    )
    assert called == [word.replace("BASE", base) for word in expected.split()]
    assert "http://0.0.0.0:8501/v1/models/encoder" in done.stderr


# ---- The client -------------------------------------------------------------


class _Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """What a server would answer: TensorFlow Serving's Predict."""

    def __init__(self, model):
        self._model = model

    def Predict(self, request, context):
        signature = self._model.signatures[request.model_spec.signature_name]
        inputs = {k: tf.make_ndarray(x) for k, x in request.inputs.items()}
        inputs = {k: tf.constant(x) for k, x in inputs.items()}
        response = predict_pb2.PredictResponse()
        for name, value in signature(**inputs).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
        return response


@pytest.mark.slow
def test_the_grpc_client_embeds_files(base, tmp_path):
    image = np.rint(tflite_onnx.photographs(1, 40)[0] * 255).astype(np.uint8)
    files = [tmp_path / "good.png", tmp_path / "bad.jpg"]
    PIL.Image.fromarray(image).save(files[0])
    files[1].write_bytes(b"no image")
    model = tf.saved_model.load(f"{base}/2")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _Service(model), server
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    client = [sys.executable, "examples/grpc_client.py"]
    try:
        done = processes.run([*client, f"--address=localhost:{port}", *files])
    finally:
        server.stop(None)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["file"] for result in results] == [*map(str, files)]
    assert [result["ok"] for result in results] == [True, False]
    given = tf.constant(image[np.newaxis])
    expected = model.signatures["serving_default"](images=given)["embedding"]
    np.testing.assert_allclose(results[0]["embedding"], expected[0], atol=1e-5)
