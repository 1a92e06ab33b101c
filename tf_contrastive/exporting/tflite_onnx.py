"""The encoder as TFLite and ONNX, compared with the SavedModel.

The converted model takes images float32 [N, S, S, K] in [0, 1] at the encoder's
own size: other runtimes cannot decode and resize images as training does.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.exporting.serving_module import ServingModule

# Limits: of the difference from the SavedModel as a fraction of the largest
# |value|, and of the cosine of an embedding with 8-bit weights.
_MAX_DIFFERENCE = 1e-5
_MIN_COSINE = 0.999
# Images compared, and how many at a time.
_COMPARED, _BATCH = 64, 16
_OPSET = 17
# Format -> the packages of the extra with its name.
_PACKAGES = {"onnx": ("onnxruntime", "tf2onnx")}

Embed = Callable[[np.ndarray], np.ndarray]


def check_installed(formats: Sequence[str]) -> None:
    """Raises `UserError` if a format needs a package that is not installed."""
    for name in formats:
        for package in _PACKAGES.get(name, ()):
            if importlib.util.find_spec(package) is None:
                raise errors.UserError(
                    f"format={name} needs {package}, which is not installed:"
                    f" pip install 'tf_contrastive[{name}]'"
                )


def convert(
    module: ServingModule,
    formats: Sequence[str],
    images: np.ndarray,
    reference: Embed,
) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Converts an encoder, and compares the result with the SavedModel.

    TFLite comes in three kinds: float32, with 8-bit weights ("dynamic int8"),
    and with 8-bit integers throughout ("int8").

    Args:
      module: holds the encoder.
      formats: "tflite", "onnx".
      images: float32 [n, S, S, K], real images. All calibrate the int8 model;
        the first are compared.
      reference: images -> embeddings [n, D] by the SavedModel.

    Yields:
      (file name, content, {"format", "file", "largest_difference",
      "least_cosine", "bytes"}).

    Raises:
      UserError: if an embedding differs too much.
    """
    function = tf.function(
        lambda images: {"embedding": module.encode(images)},
        input_signature=[module.encoder_spec],
    )
    compared = images[:_COMPARED]
    expected = np.asarray(reference(compared))
    converters = {
        "tflite": lambda: _tflite(function, module, images),
        "onnx": lambda: _onnx(function),
    }
    for name in formats:
        for kind, file, content, embed in converters[name]():
            batches = range(0, len(compared), _BATCH)
            embeddings = np.concatenate(
                [embed(compared[i : i + _BATCH]) for i in batches]
            )
            difference, cosine = compare(embeddings, expected)
            # The comparisons are negated so that NaN fails.
            if kind == name and not difference <= _MAX_DIFFERENCE:
                problem = (
                    f"differs from the SavedModel by {difference:.1e} of the"
                    f" largest value, and {_MAX_DIFFERENCE:g} is allowed"
                )
            elif kind == "tflite dynamic int8" and not cosine >= _MIN_COSINE:
                problem = (
                    "with 8-bit weights changes an embedding to cosine"
                    f" {cosine:.5f}, and {_MIN_COSINE:g} is allowed"
                )
            else:
                yield (
                    file,
                    content,
                    {
                        "format": kind,
                        "file": file,
                        "largest_difference": difference,
                        "least_cosine": cosine,
                        "bytes": len(content),
                    },
                )
                continue
            raise errors.UserError(
                f"{file} {problem}: nothing was written; leave {name} out of"
                " `format`"
            )


def compare(
    embeddings: np.ndarray, expected: np.ndarray
) -> tuple[float, float]:
    """Compares embeddings [n, D].

    Returns:
      (largest difference as a fraction of the largest |expected|, smallest
      cosine).
    """
    difference = np.abs(embeddings - expected).max() / np.abs(expected).max()
    lengths = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(
        expected, axis=1
    )
    cosines = (embeddings * expected).sum(1) / np.maximum(lengths, 1e-30)
    return float(difference), float(cosines.min())


def _tflite(
    function: tf.types.experimental.GenericFunction,
    module: ServingModule,
    images: np.ndarray,
) -> Iterator[tuple[str, str, bytes, Embed]]:
    for kind in ("tflite", "tflite dynamic int8", "tflite int8"):
        converter = tf.lite.TFLiteConverter.from_concrete_functions(
            [function.get_concrete_function()], module
        )
        if kind != "tflite":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if kind == "tflite int8":
            # Images and embeddings stay float32, so that all files are called
            # in the same way.
            converter.target_spec.supported_ops = [
                tf.lite.OpsSet.TFLITE_BUILTINS_INT8
            ]
            converter.representative_dataset = lambda: (
                {"images": image[np.newaxis]} for image in images
            )
        content = converter.convert()
        file = kind.replace("tflite", "encoder").replace(" ", "_") + ".tflite"
        yield kind, file, content, _tflite_interpreter(content)


def _tflite_interpreter(content: bytes) -> Embed:
    interpreter = tf.lite.Interpreter(model_content=content)
    (source,) = interpreter.get_input_details()
    (target,) = interpreter.get_output_details()

    def embed(images: np.ndarray) -> np.ndarray:
        interpreter.resize_tensor_input(source["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(target["index"])

    return embed


def _onnx(
    function: tf.types.experimental.GenericFunction,
) -> Iterator[tuple[str, str, bytes, Embed]]:
    import onnxruntime
    import tf2onnx

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "encoder.onnx")
        tf2onnx.convert.from_function(
            function,
            input_signature=list(function.input_signature),
            opset=_OPSET,
            output_path=path,
        )
        with open(path, "rb") as file:
            content = file.read()
    session = onnxruntime.InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    (source,) = session.get_inputs()

    def embed(images: np.ndarray) -> np.ndarray:
        return session.run(None, {source.name: images})[0]

    yield "onnx", "encoder.onnx", content, embed
