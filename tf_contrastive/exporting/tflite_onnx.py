"""The encoder as TFLite and ONNX, compared with the SavedModel.

The converted model takes images float32 [N, S, S, K] in [0, 1] at the encoder's
own size: other runtimes cannot decode and resize images as training does.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.exporting.serving_module import ServingModule
from tf_contrastive.views import preprocessing

# The largest difference from the SavedModel, as a fraction of the largest
# |value|, and the least cosine of an embedding with 8-bit weights. This
# package's encoders have at least 0.9994.
MAX_DIFFERENCE, _MIN_COSINE = 1e-5, 0.999
_INT8 = "tflite dynamic int8"
_COMPARED = 32  # Images.
_OPSET = 17
# Format -> what reads its files, and the packages of the extra with its name.
_READERS = {
    "onnx": f"ONNX runtimes of opset {_OPSET}",
    "tflite": f"LiteRT, or TensorFlow of at least {tf.__version__}",
}
_PACKAGES = {"onnx": ("onnxruntime", "tf2onnx")}

Embed = Callable[[np.ndarray], np.ndarray]


def check_installed(formats: Sequence[str]) -> None:
    """Raises `UserError` if a format needs a package that is not installed."""
    for name in formats:
        for package in _PACKAGES.get(name, ()):
            errors.check_package(errors.arg("format", name), package, name)


def write(
    path: str, module: ServingModule, formats: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Writes an encoder in other formats, next to its SavedModel.

    TFLite comes in two kinds: float32, and with 8-bit weights ("dynamic int8").

    Args:
      path: folder of the SavedModel, whose embeddings of photographs the
        others must have.
      module: holds the encoder.
      formats: "tflite", "onnx".

    Yields:
      `saved_model.details`' description of each file, once it is written.

    Raises:
      UserError: for a format that cannot be converted, or whose embeddings
        differ too much.
    """
    if not formats:
        return
    _, size, _, channels = module.encoder_spec.shape
    images = photographs(_COMPARED, size, channels)
    function = tf.function(
        lambda images: {"embedding": module.encode(images)},
        input_signature=[module.encoder_spec],
    )
    expected = np.asarray(tf.saved_model.load(path)(images))
    converters = {
        "tflite": lambda: to_tflite(function, module),
        "onnx": lambda: _onnx(function),
    }
    for name in formats:
        try:
            for kind, content, embed in converters[name]():
                file = f"{kind.replace(name, 'encoder')}.{name}"
                file = file.replace(" ", "_")
                difference, cosine = compare(embed(images), expected)
                _check(kind, file, difference, cosine)
                files.write(os.path.join(path, file), content)
                yield {
                    "format": kind,
                    "file": file,
                    "reader": _READERS[name],
                    "largest_difference": difference,
                    "least_cosine": cosine,
                    "bytes": len(content),
                }
        except Exception as error:  # Of any kind, by converters and runtimes.
            if errors.is_full_disk(error):
                raise
            raise errors.UserError(
                f"{errors.arg('format', name)}: {errors.first_line(error)}"
                f" ({type(error).__name__}): leave it out, or remove the cause"
            ) from error


def _check(kind: str, file: str, difference: float, cosine: float) -> None:
    """Raises `UserError` if embeddings differ too much."""
    fits, allowed = difference <= MAX_DIFFERENCE, f"{MAX_DIFFERENCE:g}"
    if kind == _INT8:
        fits, allowed = cosine >= _MIN_COSINE, f"a cosine of {_MIN_COSINE:g}"
    if not fits:  # NaN does not fit either.
        raise errors.UserError(
            f"{file} differs from the SavedModel by {difference:.1e} of the"
            f" largest value (cosine {cosine:.5f}), and {allowed} is allowed"
        )


def photographs(count: int, size: int, channels: int = 3) -> np.ndarray:
    """Crops images from scikit-learn's two photographs of 427 x 640 pixels.

    Returns:
      float32 [count, size, size, channels] in [0, 1], always the same; channels
      beyond the colours are 0, and fewer are the first.
    """
    from sklearn import datasets  # Late: half a second of every start.

    photos = datasets.load_sample_images().images
    generator = np.random.default_rng(0)
    images = []
    for i in range(count):
        photo = photos[i % len(photos)]
        side = generator.integers(64, min(photo.shape[:2]), endpoint=True)
        top, left = (
            generator.integers(0, length - side, endpoint=True)
            for length in photo.shape[:2]
        )
        crop = photo[np.newaxis, top : top + side, left : left + side]
        images.append(preprocessing.resize_and_crop(crop, size)[0].numpy())
    missing = [(0, 0)] * 3 + [(0, max(channels - 3, 0))]
    return np.pad(np.stack(images), missing)[..., :channels]


def compare(
    embeddings: np.ndarray, expected: np.ndarray
) -> tuple[float, float]:
    """Returns the largest difference of embeddings [n, D], and least cosine.

    The difference is a fraction of the largest |expected|.
    """
    difference = np.abs(embeddings - expected).max() / np.abs(expected).max()
    products = (embeddings * expected).sum(1)
    lengths = [np.linalg.norm(x, axis=1) for x in (embeddings, expected)]
    cosines = products / np.maximum(lengths[0] * lengths[1], 1e-30)
    return float(difference), float(cosines.min())


def to_tflite(
    function: tf.types.experimental.GenericFunction, module: ServingModule
) -> Iterator[tuple[str, bytes, Embed]]:
    """Yields the format, its bytes and what runs them, images -> features."""
    for kind in ("tflite", _INT8):
        converter = tf.lite.TFLiteConverter.from_concrete_functions(
            [function.get_concrete_function()], module
        )
        if kind == _INT8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()
        interpreter = tf.lite.Interpreter(model_content=content)
        yield kind, content, functools.partial(_interpret, interpreter)


def _interpret(interpreter: Any, images: np.ndarray) -> np.ndarray:
    (source,) = interpreter.get_input_details()
    (target,) = interpreter.get_output_details()
    interpreter.resize_tensor_input(source["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source["index"], images)
    interpreter.invoke()
    return interpreter.get_tensor(target["index"])


def _onnx(
    function: tf.types.experimental.GenericFunction,
) -> Iterator[tuple[str, bytes, Embed]]:
    import onnxruntime
    import tf2onnx

    signature = list(function.input_signature)
    model, _ = tf2onnx.convert.from_function(function, signature, opset=_OPSET)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    (source,) = session.get_inputs()
    yield "onnx", content, lambda x: session.run(None, {source.name: x})[0]
