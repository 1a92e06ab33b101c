"""TensorFlow Serving: files of an export, and a client."""

import concurrent.futures
import json
import os
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
def test_the_grpc_client_embeds_files(tmp_path):
    export = served.export(tmp_path)
    # Which launch/serve names.
    assert os.path.exists(f"{export}/assets.extra/batching_parameters.txt")
    image = np.rint(tflite_onnx.photographs(1, 40)[0] * 255).astype(np.uint8)
    files = [tmp_path / "good.png", tmp_path / "bad.jpg"]
    PIL.Image.fromarray(image).save(files[0])
    files[1].write_bytes(b"no image")
    model = tf.saved_model.load(export)
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
