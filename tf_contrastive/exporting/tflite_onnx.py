"""The encoder in other runtimes' formats, each checked before it is written.

What is converted takes images float32 [N, S, S, K] in [0, 1], at the size that
the encoder takes, to embeddings [N, D]: other runtimes have no operations that
decode images, or bring them to a size as training did.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.export import EXPORT_FORMATS
from tf_contrastive.exporting import serving_module

# The largest difference to the SavedModel, as a share of the largest |value|.
_MOST_DIFFERENCE = 1e-5
# The least cosine of an embedding with weights of 8 bits.
_LEAST_COSINE = 0.999
# Images compared, and how many at a time.
_COMPARED, _BATCH = 64, 16
_OPSET = 17


class Converted(NamedTuple):
    """A file of another format, and how far it is from the SavedModel."""

    format: str
    file: str
    content: bytes
    largest_difference: float  # As a share of the largest |value|.
    least_cosine: float

    def facts(self) -> dict[str, Any]:
        """All but the content, and how large it is."""
        facts = self._asdict()
        return facts | {"bytes": len(facts.pop("content"))}


Run = Callable[[np.ndarray], np.ndarray]

# Format -> the packages of the extra of its name.
_PACKAGES = {"onnx": ("onnxruntime", "tf2onnx")}


def check_installed(formats: Iterable[str]) -> None:
    """Raises `UserError` if a format needs what is not installed."""
    for name in formats:
        for package in _PACKAGES.get(name, ()):
            if importlib.util.find_spec(package) is None:
                raise errors.UserError(
                    f"format={name} needs {package}, which is not installed:"
                    f" pip install 'tf_contrastive[{name}]'"
                )


def convert(
    module: serving_module.ServingModule,
    formats: tuple[str, ...],
    images: np.ndarray,
    expected: Callable[[np.ndarray], np.ndarray],
) -> Iterator[Converted]:
    """Converts an encoder, and compares what came out.

    Args:
      module: holds the encoder.
      formats: out of `config.EXPORT_FORMATS`.
      images: float32 [n, S, S, K], real ones; all calibrate the full-integer
        TFLite model, the first are compared.
      expected: images -> embeddings [n, D] by the SavedModel.

    Yields:
      TFLite: the model, one with weights of 8 bits ("dynamic"), one of integers
      throughout; ONNX: the model.

    Raises:
      UserError: where a package is missing, or an embedding differs too much.
    """
    function = tf.function(
        lambda images: {"embedding": module.encode(images)},
        input_signature=[module.encoder_takes],
    )
    compared = images[:_COMPARED]
    wanted = np.asarray(expected(compared))
    makers = {
        "tflite": lambda: _tflite(function, module, images),
        "onnx": lambda: _onnx(function),
    }
    for name in formats:
        for kind, file, content, run in makers[name]():
            made = np.concatenate(
                [
                    run(compared[start : start + _BATCH])
                    for start in range(0, len(compared), _BATCH)
                ]
            )
            converted = Converted(kind, file, content, *compare(made, wanted))
            _check(converted)
            yield converted


def compare(made: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Returns (largest difference by the largest |wanted|, least cosine)."""
    difference = np.abs(made - wanted).max() / np.abs(wanted).max()
    lengths = np.linalg.norm(made, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (made * wanted).sum(1) / np.maximum(lengths, 1e-30)
    return float(difference), float(cosines.min())


def _check(converted: Converted) -> None:
    difference, cosine = converted[-2:]
    exact = converted.format in EXPORT_FORMATS
    # Not "above", which would let NaN pass.
    if exact and not difference <= _MOST_DIFFERENCE:
        raise errors.UserError(
            f"{converted.file} differs from the SavedModel by"
            f" {difference:.1e} of the largest value, and {_MOST_DIFFERENCE:g}"
            " is allowed: nothing was written; leave"
            f" {converted.format} out of `format`, and report it"
        )
    if (
        converted.format == "tflite dynamic int8"
        and not cosine >= _LEAST_COSINE
    ):
        raise errors.UserError(
            f"{converted.file}: 8-bit weights turn an embedding to cosine"
            f" {cosine:.5f}, and {_LEAST_COSINE:g} is allowed: nothing was"
            " written; leave tflite out of `format`"
        )


def _tflite(
    function: Callable, module: tf.Module, images: np.ndarray
) -> Iterator[tuple[str, str, bytes, Run]]:
    for kind, file in (
        ("tflite", "encoder.tflite"),
        ("tflite dynamic int8", "encoder_dynamic_int8.tflite"),
        ("tflite int8", "encoder_int8.tflite"),
    ):
        converter = tf.lite.TFLiteConverter.from_concrete_functions(
            [function.get_concrete_function()], module
        )
        if kind != "tflite":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if kind == "tflite int8":
            # Integers within; images and embeddings stay float32, so that all
            # of the files are called alike.
            converter.target_spec.supported_ops = [
                tf.lite.OpsSet.TFLITE_BUILTINS_INT8
            ]
            converter.representative_dataset = lambda: (
                {"images": image[np.newaxis]} for image in images
            )
        content = converter.convert()
        yield kind, file, content, _tflite_runner(content)


def _tflite_runner(content: bytes) -> Run:
    interpreter = tf.lite.Interpreter(model_content=content)
    (source,) = interpreter.get_input_details()
    (target,) = interpreter.get_output_details()

    def run(images):
        interpreter.resize_tensor_input(source["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(target["index"])

    return run


def _onnx(function: Callable) -> Iterator[tuple[str, str, bytes, Run]]:
    import onnxruntime
    import tf2onnx

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "encoder.onnx")
        tf2onnx.convert.from_function(
            function,
            input_signature=list(function.input_signature),
            opset=_OPSET,
            output_path=file,
        )
        with open(file, "rb") as stream:
            content = stream.read()
    session = onnxruntime.InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    (source,) = session.get_inputs()

    def run(images):
        return session.run(None, {source.name: images})[0]

    yield "onnx", "encoder.onnx", content, run
