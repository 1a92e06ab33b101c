"""The version that is served: the newest good one, which a bad one never ends.

A version is good if it can be loaded, its numbers are finite, and it takes the
requests that the served version takes. It is loaded as TensorFlow Serving does:
a session has its own graph and memory, of which nothing is left behind.
"""

import asyncio
import gc
import os
import weakref
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from starlette.exceptions import HTTPException

from tf_contrastive import exporting
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.serving.rest import Signature

POLL_SECONDS = 1.0
# Names, lengths and times.
_Files = tuple[tuple[str, int, int], ...]
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
    """A loaded version, whose program is run.

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
        """Calls a signature, in any thread; errors are `HTTPException`s."""
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


class _Version(NamedTuple):
    """A loaded version, and the files of which it was loaded."""

    number: int
    files: _Files
    model: SavedModel


class Versions:
    """Loads, serves and replaces the versions in a folder, or a single one.

    Raises:
      UserError: if none can be served.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # Number -> files, and why they could not be loaded.
        self._failed: dict[int, tuple[_Files, str]] = {}
        first = self._newer(None)
        if not first:
            reasons = (f"{n}: {why}" for n, (_, why) in self._failed.items())
            raise errors.UserError(
                f"{errors.arg('saved_model', path)} has no version that can be"
                f" served ({'; '.join(reasons)}): export it again"
            )
        self._served = first

    @property
    def number(self) -> int:
        """The version that is served."""
        return self._served.number

    def model(self, number: int | None) -> tuple[int, SavedModel]:
        """Returns the served version: its number, and its model.

        A replaced one is unloaded once no request holds its model.

        Raises:
          HTTPException: status 404 if `number` is another version.
        """
        if number not in (None, self.number):
            raise HTTPException(404, f"version {number} is not served")
        return self.number, self._served.model

    async def follow(self) -> None:
        """Replaces the served version by newer good ones, forever."""
        warned = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                version = await asyncio.to_thread(self._newer, self._served)
            except Exception as error:  # Such as a filesystem that is away.
                if warned != (warned := error_message(error)):
                    terminal.warning(f"{self._path}: {warned}")
                continue
            if version:
                self._served = version
                self._failed.clear()  # One may replace this version.
                terminal.info(f"version {version.number} is served")

    def _newer(self, served: _Version | None) -> _Version | None:
        """Loads the newest good version, in any thread; None: it is served.

        One that is older than the served one is loaded only if that one's
        folder was removed; one that failed, again when its files change.
        """
        folders = self._folders()
        for number in sorted(folders, reverse=True):
            if served and served.number in folders and number < served.number:
                return None
            path = folders[number]
            if not exporting.is_complete(path):
                continue
            files = _files(path)
            if served and (number, files) == (served.number, served.files):
                return None
            failed_files, former = self._failed.get(number, (None, ""))
            if files == failed_files:
                continue
            gc.collect()  # Graphs that are not used refer to themselves.
            try:
                model = SavedModel(path)
                if served and number >= served.number:
                    model.check_replaces(served.model)
                if _files(path) != files:
                    raise ValueError("its files change")
            except Exception as error:
                why = error_message(error)
                if why != former:
                    terminal.warning(f"cannot serve {path}: {why}")
                self._failed[number] = files, why
                continue
            return _Version(number, files, model)
        return None

    def _folders(self) -> dict[int, str]:
        """Returns the versions' folders, incomplete ones included."""
        if not exporting.is_complete(self._path):
            return exporting.folders(self._path)
        name = os.path.basename(os.path.abspath(self._path))
        return {int(name) if name.isdecimal() else 1: self._path}


def _files(path: str) -> _Files:
    """Returns names, lengths and times of a version's graph and weights."""
    graph = os.path.join(path, exporting.GRAPH_FILE)
    variables = files.entries(os.path.join(path, "variables"), ".*")
    stats = [(name, tf.io.gfile.stat(name)) for name in (graph, *variables)]
    return tuple((name, x.length, x.mtime_nsec) for name, x in stats)
