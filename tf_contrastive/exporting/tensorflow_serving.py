"""Files for TensorFlow Serving, in the folder `assets.extra` of a version.

They are warm-up requests, which a server runs before it uses a version, and
parameters of batching.
"""

import os
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from tf_contrastive.base import files
from tf_contrastive.views import preprocessing

# Its name in requests, which launch/serve gives it.
_MODEL_NAME = "encoder"

_EXTRA = "assets.extra"
_WARMUP_FILE = f"{_EXTRA}/tf_serving_warmup_requests"
# Images per warm-up request; one request of each size per signature.
_WARMUP_BATCHES = (1, 8)
_BATCHING_FILE = f"{_EXTRA}/batching_parameters.txt"
_BATCHING = """\
# TensorFlow Serving, --enable_batching --batching_parameters_file=THIS.
# The server joins requests of a signature. Their images must have one size,
# otherwise all of them fail. Encoded images (serving_bytes) may differ.
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
# Set this to the number of cores.
num_batch_threads { value: 8 }
# Batches are padded to the next of these sizes, which saves compilations.
allowed_batch_sizes: [1, 2, 4, 8, 16, 32, 64]
"""


def write(
    path: str,
    signatures: Iterable[str],
    images: np.ndarray,
    image_type: tf.DType,
) -> None:
    """Writes the files into a version's folder.

    Args:
      path: the folder.
      signatures: names of the model's signatures.
      images: float32 [n, S, S, K], real images as the encoder takes them.
      image_type: of the images of `serving_default`.
    """
    files.write(os.path.join(path, _BATCHING_FILE), _BATCHING)
    with tf.io.TFRecordWriter(os.path.join(path, _WARMUP_FILE)) as writer:
        for signature in signatures:
            for count in _WARMUP_BATCHES:
                batch = np.resize(images, [count, *images.shape[1:]])
                if signature == "serving_bytes":
                    inputs = {"bytes": as_jpeg(batch)}
                elif signature == "serving_float" or image_type == tf.float32:
                    inputs = {"images": batch}
                else:
                    inputs = {"images": as_bytes(batch)}
                writer.write(_prediction_log(signature, inputs))


def _prediction_log(signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encodes a request as a PredictionLog of TensorFlow Serving.

    The package tensorflow-serving-api defines it, but brings a TensorFlow.
    """
    spec = _field(1, _MODEL_NAME.encode()) + _field(3, signature.encode())
    request = _field(1, spec)
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    # PredictionLog.predict_log.request.
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of bytes in the wire format of protocol buffers."""
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size % 128 + 128])
        size //= 128
    return bytes([8 * number + 2]) + length + bytes([size]) + content


def photographs(count: int, size: int, channels: int = 3) -> np.ndarray:
    """Crops images from scikit-learn's two photographs of 427 x 640 pixels.

    Returns:
      float32 [count, size, size, channels] in [0, 1], always the same; channels
      beyond the colours are 0.
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
    missing = [(0, 0)] * 3 + [(0, channels - 3)]
    return np.pad(np.stack(images), missing)


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Returns the colours of images [n, S, S, K] as uint8 [n, S, S, 3]."""
    return np.rint(images[..., :3] * 255).astype(np.uint8)


def as_jpeg(images: np.ndarray) -> np.ndarray:
    """Returns the colours of images [n, S, S, K] as JPEG files, bytes [n]."""
    encoded = [tf.io.encode_jpeg(i).numpy() for i in as_bytes(images)]
    return np.array(encoded, object)
