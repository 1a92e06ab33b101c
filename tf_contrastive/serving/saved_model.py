"""A version of a SavedModel, loaded as TensorFlow Serving loads it.

A session has its own graph and its own memory, so that a version that is not
served any more leaves nothing behind.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import exporting
from tf_contrastive.base import errors
from tf_contrastive.serving.rest import RestError, Tensor

_PREDICT = "tensorflow/serving/predict"
# Code of TensorFlow -> HTTP status code, as TensorFlow Serving answers.
_STATUS = {
    tf.errors.CANCELLED: 499,
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.DEADLINE_EXCEEDED: 504,
    tf.errors.NOT_FOUND: 404,
    tf.errors.ALREADY_EXISTS: 409,
    tf.errors.PERMISSION_DENIED: 403,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.ABORTED: 409,
    tf.errors.OUT_OF_RANGE: 400,
    tf.errors.UNIMPLEMENTED: 501,
    tf.errors.UNAVAILABLE: 503,
    tf.errors.UNAUTHENTICATED: 401,
}


class Signature(NamedTuple):
    """A signature of a SavedModel.

    Attributes:
      inputs: by name.
      outputs: their names.
      call: arrays in the order of `inputs` -> arrays in that of `outputs`.
    """

    inputs: dict[str, Tensor]
    outputs: list[str]
    call: Any


class SavedModel:
    """A loaded version.

    Args:
      path: folder with `saved_model.pb`; its program is run.

    Attributes:
      metadata: its signatures, as TensorFlow Serving describes them.
      by_row: whether each row of outputs depends on that row of inputs alone,
        which is known of exports of this package.
    """

    def __init__(self, path: str) -> None:
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            graph = tf.compat.v1.saved_model.load(
                self._session, [tf.saved_model.SERVING], path
            )
        definitions = graph.signature_def
        self.metadata = {k: _described(d) for k, d in definitions.items()}
        details = os.path.join(path, exporting.DETAILS_FILE)
        self.by_row = tf.io.gfile.exists(details)
        self.signatures = {
            name: self._signature(definition)
            for name, definition in definitions.items()
            if definition.method_name == _PREDICT
        }
        self._session.graph.finalize()
        if self.by_row:
            # The first call of a signature optimizes its graph.
            for name, signature in self.signatures.items():
                self.run(name, _example(signature.inputs))

    def _signature(self, definition: Any) -> Signature:
        inputs = {k: self._tensor(v) for k, v in definition.inputs.items()}
        outputs = sorted(definition.outputs)
        call = self._session.make_callable(
            [definition.outputs[name].name for name in outputs],
            feed_list=[tensor.name for tensor in inputs.values()],
        )
        return Signature(inputs, outputs, call)

    def _tensor(self, info: Any) -> Tensor:
        dtype = tf.dtypes.as_dtype(info.dtype)
        shape = None
        if self.by_row and not info.tensor_shape.unknown_rank:
            shape = tuple(dim.size for dim in info.tensor_shape.dim)
        # NumPy's type of a resource is that of a string.
        is_handle = dtype in (tf.resource, tf.variant)
        numpy = "V" if is_handle else dtype.as_numpy_dtype
        return Tensor(info.name, np.dtype(numpy), shape)

    def run(
        self, signature: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature, in any thread.

        Raises:
          RestError: if TensorFlow raises an error.
        """
        names, outputs, call = self.signatures[signature]
        try:
            values = call(*(inputs[name] for name in names))
        except tf.errors.OpError as e:
            status = _STATUS.get(e.error_code, 500)
            raise RestError(status, _message(e)) from e
        except ValueError as e:  # Of a shape, by the session.
            raise RestError(400, errors.first_line(e)) from e
        # A scalar of a string is not an array.
        arrays = (
            np.asarray(v, object if isinstance(v, bytes) else None)
            for v in values
        )
        return dict(zip(outputs, arrays, strict=True))

    def close(self) -> None:
        """Frees its memory."""
        self._session.close()


def _message(error: tf.errors.OpError) -> str:
    """Returns an error's message without places in the graph."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    places = ("Graph execution error", "Detected at", "<stack traces", "[[{{")
    return " ".join(x for x in lines if x and not x.startswith(places))


def _example(inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Returns one row of zeros, of the smallest images."""
    example = {}
    for name, tensor in inputs.items():
        value = np.zeros([max(size, 1) for size in tensor.shape or ()])
        strings = tensor.dtype == object
        example[name] = (
            np.full(value.shape, b"", object)
            if strings
            else value.astype(tensor.dtype)
        )
    return example


def _described(definition: Any) -> dict[str, Any]:
    """Returns the JSON of a SignatureDef."""

    def tensors(infos: Mapping[str, Any]) -> dict[str, Any]:
        if not infos:
            return {}
        any_info = next(iter(infos.values()))
        field = any_info.DESCRIPTOR.fields_by_name["dtype"]
        types = field.enum_type.values_by_number
        return {
            name: {
                "dtype": types[info.dtype].name,
                "tensor_shape": {
                    "dim": [
                        {"size": str(dim.size), "name": dim.name}
                        for dim in info.tensor_shape.dim
                    ],
                    "unknown_rank": info.tensor_shape.unknown_rank,
                },
                "name": info.name,
            }
            for name, info in infos.items()
        }

    return {
        "inputs": tensors(definition.inputs),
        "outputs": tensors(definition.outputs),
        "method_name": definition.method_name,
        "defaults": {},
    }
