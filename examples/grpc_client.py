"""Requests embeddings from TensorFlow Serving over gRPC.

Use: python examples/grpc_client.py [--address=localhost:8500] FILE...

FILE: JPEG or PNG. `launch/serve` starts the server. Prints a line of
JSON for each file: its name, whether it could be decoded, its embedding. Needs
`pip install tensorflow-serving-api==VERSION`, the version of your TensorFlow.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf

try:
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
except ImportError as missing:
    sys.exit(
        f"{missing.name} is missing: pip install"
        f" tensorflow-serving-api=={tf.__version__}"
    )


def embed(
    address: str, files: list[bytes], model: str = "encoder"
) -> tuple[np.ndarray, np.ndarray]:
    """Embeds encoded images.

    Args:
      address: HOST:PORT of the server.
      files: contents of image files.
      model: name of the model on the server.

    Returns:
      (embeddings float32 [n, D], whether each could be decoded, bool [n]).
    """
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_bytes"
    request.inputs["bytes"].CopyFrom(tf.make_tensor_proto(files, tf.string))
    # For pixels: signature "serving_default", input "images", uint8 [n, H, W,
    # 3] of any H and W.
    with grpc.insecure_channel(address) as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        outputs = service.Predict(request, timeout=60).outputs
    return tf.make_ndarray(outputs["embedding"]), tf.make_ndarray(outputs["ok"])


def main() -> int:
    """Embeds the files named on the command line and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--address", default="localhost:8500")
    parser.add_argument("--model", default="encoder")
    parser.add_argument("files", nargs="+", metavar="FILE", type=pathlib.Path)
    options = parser.parse_args()
    try:
        contents = [file.read_bytes() for file in options.files]
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        embeddings, ok = embed(options.address, contents, options.model)
    except grpc.RpcError as error:
        print(f"{options.address}: {error.details()}", file=sys.stderr)
        return 1
    for file, embedding, good in zip(
        options.files, embeddings, ok, strict=True
    ):
        result = {"embedding": embedding.tolist(), "ok": bool(good)}
        print(json.dumps({"file": str(file), **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
