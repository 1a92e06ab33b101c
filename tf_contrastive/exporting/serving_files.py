"""What TensorFlow Serving reads beside a SavedModel.

Requests that warm a version up before it takes others; the parameters of
batching; and the configuration of a server. All lie in the version's own
`assets.extra`, so that they come and go with it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tf_contrastive.exporting import samples
from tf_contrastive.exporting.reading import EXTRA

# The name of the model that clients ask for, and where its versions are
# mounted by launch/serve.
MODEL_NAME = "encoder"
MOUNT = f"/models/{MODEL_NAME}"

WARMUP_FILE = os.path.join(EXTRA, "tf_serving_warmup_requests")
BATCHING_FILE = os.path.join(EXTRA, "batching_parameters.txt")
MODELS_FILE = os.path.join(EXTRA, "models.config")

# Images of a request, of each signature.
_WARMUP_BATCHES = (1, 8)

_BATCHING = """\
# TensorFlow Serving, --enable_batching --batching_parameters_file=THIS.
# Requests of one signature are put together. Those of images must then be of
# one size: a server that finds several in a batch fails all of it. Requests of
# encoded images (serving_bytes) go together always.
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
# As many as the machine has cores.
num_batch_threads { value: 8 }
# A batch is filled up to the next of these: few shapes, few compilations.
allowed_batch_sizes: [1, 2, 4, 8, 16, 32, 64]
"""
_MODELS = f"""\
# TensorFlow Serving, --model_config_file=THIS.
model_config_list {{
  config {{
    name: "{MODEL_NAME}"
    base_path: "{MOUNT}"
    model_platform: "tensorflow"
    # The newest version alone. To keep older ones within reach:
    # specific {{ versions: 1 versions: 2 }}
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""


def write(
    path: str, signatures: Iterable[str], images: np.ndarray, takes: tf.DType
) -> None:
    """Writes all of it into a version's folder.

    Args:
      path: of the version.
      signatures: of the model, by name.
      images: float32 [n, S, S, K], real ones, as the encoder takes them.
      takes: type of the images of `serving_default`.
    """
    tf.io.gfile.makedirs(os.path.join(path, EXTRA))
    for file, text in ((BATCHING_FILE, _BATCHING), (MODELS_FILE, _MODELS)):
        with tf.io.gfile.GFile(os.path.join(path, file), "w") as stream:
            stream.write(text)
    with tf.io.TFRecordWriter(os.path.join(path, WARMUP_FILE)) as writer:
        for record in _warmup(signatures, images, takes):
            writer.write(record)


def _warmup(
    signatures: Iterable[str], images: np.ndarray, takes: tf.DType
) -> Iterator[bytes]:
    for signature in signatures:
        for count in _WARMUP_BATCHES:
            part = np.resize(images, [count, *images.shape[1:]])
            if signature == "serving_bytes":
                inputs = {"bytes": samples.as_jpeg(part)}
            elif signature == "serving_float" or takes == tf.float32:
                inputs = {"images": part}
            else:
                inputs = {"images": samples.as_bytes(part)}
            yield prediction_log(signature, inputs)


def prediction_log(signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encodes a request as a PredictionLog of TensorFlow Serving.

    By hand, since tensorflow-serving-api, which has the messages, would bring
    another TensorFlow onto machines whose own must stay.

    Args:
      signature: its name.
      inputs: name -> value.
    """
    spec = _field(1, MODEL_NAME.encode()) + _field(3, signature.encode())
    request = _field(1, spec)
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    # PredictionLog.predict_log.request.
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in the wire format of protocol buffers."""
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size % 128 + 128])
        size //= 128
    return bytes([8 * number + 2]) + length + bytes([size]) + content
