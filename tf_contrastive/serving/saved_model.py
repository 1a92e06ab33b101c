"""A version of an export, loaded as TensorFlow Serving loads it.

A session has its own graph and its own memory, so that a version that is not
served any more leaves nothing behind.
"""

import os
import weakref
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from tf_contrastive import exporting
from tf_contrastive.serving.rest import Input, RestError

_PREDICT = "tensorflow/serving/predict"
# Code of TensorFlow -> HTTP status code, as TensorFlow Serving answers.
_STATUS = {
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.UNAVAILABLE: 503,
}


class BadVersionError(Exception):
    """A version that is not to be served, whenever it is loaded."""


class Signature(NamedTuple):
    """A signature of an export.

    Attributes:
      input: its only one.
      outputs: their names.
      call: array of the input -> arrays in the order of `outputs`.
    """

    input: Input
    outputs: list[str]
    call: Any


class SavedModel:
    """A loaded version.

    Args:
      path: folder of an export; its program is run.

    Attributes:
      metadata: its signatures, as TensorFlow Serving describes them.
      signatures: those that can be called, by name.

    Raises:
      BadVersionError: if it is not an export, or its outputs are not finite.
    """

    def __init__(self, path: str) -> None:
        if not tf.io.gfile.exists(os.path.join(path, exporting.DETAILS_FILE)):
            raise BadVersionError(
                "it is not an export of this package: serve it by launch/serve"
            )
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        weakref.finalize(self, self._session.close)  # Frees its memory.
        with self._session.graph.as_default():
            graph = tf.compat.v1.saved_model.load(
                self._session, [tf.saved_model.SERVING], path
            )
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
            _, dtype, shape = signature.input
            fill = b"" if dtype.kind == "O" else 1
            row = np.full([max(size, 1) for size in shape], fill, dtype)
            for output, array in self.run(name, row).items():
                if not np.isfinite(array).all():
                    raise BadVersionError(f"{output} of {name} is not finite")

    def _signature(self, definition: Any) -> Signature:
        ((key, info),) = definition.inputs.items()
        outputs = sorted(definition.outputs)
        call = self._session.make_callable(
            [definition.outputs[name].name for name in outputs],
            feed_list=[info.name],
        )
        dtype = np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype)
        shape = tuple(dim.size for dim in info.tensor_shape.dim)
        return Signature(Input(key, dtype, shape), outputs, call)

    def run(self, signature: str, array: np.ndarray) -> dict[str, np.ndarray]:
        """Calls a signature, in any thread.

        Raises:
          RestError: if TensorFlow raises an error.
        """
        _, outputs, call = self.signatures[signature]
        try:
            return dict(zip(outputs, call(array), strict=True))
        except tf.errors.OpError as e:
            status = _STATUS.get(e.error_code, 500)
            raise RestError(status, error_message(e)) from e

    def check_replaces(self, former: "SavedModel") -> None:
        """Raises BadVersionError if requests to a former version would fail."""
        for name, signature in former.signatures.items():
            if name not in self.signatures:
                raise BadVersionError(f"it has no signature {name}")
            new = self.signatures[name]
            if new.input != signature.input:
                raise BadVersionError(f"its signature {name} has another input")
            if missing := {*signature.outputs} - {*new.outputs}:
                raise BadVersionError(
                    f"its signature {name} has no output {missing.pop()}"
                )


def error_message(error: Exception) -> str:
    """Returns an error's message without places in the graph."""
    message = getattr(error, "message", None) or error
    lines = [line.strip() for line in str(message).splitlines()]
    places = ("Graph execution error", "Detected at", "<stack traces", "[[{{")
    lines = [line for line in lines if line and not line.startswith(places)]
    return " ".join(lines) or type(error).__name__
