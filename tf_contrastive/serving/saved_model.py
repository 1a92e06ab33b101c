"""A version of an export, loaded as TensorFlow Serving loads it.

A session has its own graph and its own memory, so that a version that is not
served any more leaves nothing behind.
"""

import os
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from starlette.exceptions import HTTPException

from tf_contrastive import exporting
from tf_contrastive.serving.rest import Signature

_PREDICT = "tensorflow/serving/predict"
# Code of TensorFlow -> HTTP status code, as TensorFlow Serving answers.
_STATUS = {
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.UNAVAILABLE: 503,
}
# Lines of an error that name places in the graph.
_PLACES = "Detected at", "<stack traces", "\t [[{{", "[[{{"


class SavedModel:
    """A loaded version.

    Args:
      path: folder of an export; its program is run.

    Attributes:
      metadata: its signatures, as TensorFlow Serving describes them.
      signatures: those that can be called, by name.

    Raises:
      ValueError: if it is not an export, or has numbers that are not finite.
      tf.errors.OpError: if it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        if not tf.io.gfile.exists(os.path.join(path, exporting.DETAILS_FILE)):
            raise ValueError(
                "it is not an export of this package: serve it by launch/serve"
            )
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        weakref.finalize(self, self._session.close)  # Frees its memory.
        with self._session.graph.as_default():
            graph = tf.compat.v1.saved_model.load(
                self._session, [tf.saved_model.SERVING], path
            )
        _check_variables(os.path.join(path, "variables", "variables"))
        self.metadata = {
            name: json_format.MessageToDict(
                definition, preserving_proto_field_name=True
            )
            for name, definition in graph.signature_def.items()
        }
        self.signatures = {
            name: self._signature(definition)
            for name, definition in graph.signature_def.items()
            if definition.method_name == _PREDICT
        }
        self._session.graph.finalize()
        # The first call of a signature optimizes its graph.
        for name, signature in self.signatures.items():
            fill = b"" if signature.dtype.kind == "O" else 1
            shape = [max(size, 1) for size in signature.shape]
            row = np.full(shape, fill, signature.dtype)
            for output, array in self.run(name, row).items():
                if not np.isfinite(array).all():
                    raise ValueError(f"{output} of {name} is not finite")

    def _signature(self, definition: Any) -> Signature:
        ((key, info),) = definition.inputs.items()
        outputs = sorted(definition.outputs)
        call = self._session.make_callable(
            [definition.outputs[name].name for name in outputs],
            feed_list=[info.name],
        )
        dtype = np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype)
        shape = tuple(dim.size for dim in info.tensor_shape.dim)
        return Signature(key, dtype, shape, outputs, call)

    def run(self, signature: str, array: np.ndarray) -> dict[str, np.ndarray]:
        """Calls a signature, in any thread.

        Raises:
          HTTPException: if TensorFlow raises an error.
        """
        *_, outputs, call = self.signatures[signature]
        assert call
        try:
            return dict(zip(outputs, call(array), strict=True))
        except tf.errors.OpError as e:
            status = _STATUS.get(e.error_code, 500)
            raise HTTPException(status, error_message(e)) from e

    def check_replaces(self, former: "SavedModel") -> None:
        """Raises ValueError if requests to a former version would fail."""
        for name, (*expected, outputs, _) in former.signatures.items():
            *own, own_outputs, _ = self.signatures.get(name, ([], None))
            if own != expected or not {*outputs} <= {*own_outputs}:
                raise ValueError(
                    f"it has no signature {name} of the same input and outputs"
                )


def _check_variables(prefix: str) -> None:
    """Raises ValueError if a weight is not finite."""
    reader = tf.train.load_checkpoint(prefix)
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype.is_floating and not np.isfinite(reader.get_tensor(name)).all():
            raise ValueError(f"its variable {name} is not finite")


def error_message(error: Exception) -> str:
    """Returns an error's message without places in the graph."""
    message = str(getattr(error, "message", None) or error)
    lines = message.removeprefix("Graph execution error:").strip().splitlines()
    lines = [line for line in lines if not line.startswith(_PLACES)]
    return " ".join(lines) or type(error).__name__
