"""Named arrays in files of other programs, of which nothing is executed."""

import argparse
import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tf_contrastive.base import errors, files

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Files of a TensorFlow checkpoint, beside its prefix.
_TENSORFLOW_FILE = re.compile(r"\.(index|meta|data-\d+-of-\d+)$")
# Children by which Keras lists what a layer's own attributes hold, too.
_KERAS_LISTS = (
    *("layers", "variables", "trainable_variables"),
    *("non_trainable_variables", "keras_api"),
)
# Of a safetensors file's metadata: the options that an export has, in JSON.
OPTIONS = "tf_contrastive"
_SAFETENSORS_TYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": tf.bfloat16.as_numpy_dtype,
}
_REFUSED_GLOBAL = re.compile(r"(?:GLOBAL|global) `?([\w.]+)")


class Content(NamedTuple):
    """The arrays in a file, by their names."""

    kind: str  # Of the file.
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    # Of the program that wrote it, if the file has them.
    options: Mapping[str, Any] = {}


def read(path: str) -> Content | None:
    """Reads the names in a file or folder; None if it is nothing of the kind.

    Of a prefix or folder of a TensorFlow checkpoint, folder of a SavedModel or
    hub module, PyTorch or safetensors file.

    Raises:
      UserError: if it is damaged, would execute something, or needs a package.
    """
    try:
        if prefix := _prefix(path):
            return _tensorflow(prefix)
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            return None
        with tf.io.gfile.GFile(path, "rb") as file:
            start = file.read(9)
        if start[8:] == b"{":
            return _safetensors(path)
        if start.startswith((b"PK\3\4", b"\x80")):
            return _pytorch(path)
        return None
    except errors.UserError:
        raise
    except Exception as error:  # Of any kind, by several libraries.
        raise files.damaged(path, error) from error


def _prefix(path: str) -> str | None:
    """Returns the prefix of the TensorFlow checkpoint at a path, if any."""
    name = _TENSORFLOW_FILE.sub("", path)
    variables = os.path.join(path, "variables", "variables")
    for prefix in (name, variables):
        if tf.io.gfile.exists(f"{prefix}.index"):
            return prefix
    if newest := tf.train.latest_checkpoint(path):
        return newest
    there = files.entries(path, r".*\.index")
    if len(there) > 1:
        raise errors.UserError(
            f"{path} holds {len(there)} checkpoints: name one of them, such as"
            f" {there[-1].removesuffix('.index')}"
        )
    return there[0].removesuffix(".index") if there else None


# ---- TensorFlow --------------------------------------------------------------


def _tensorflow(prefix: str) -> Content:
    # `tf.train.load_checkpoint` finds no prefix in some object stores.
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    known = reader.get_variable_to_shape_map()
    shapes = {name: tuple(shape) for name, shape in known.items()}
    keys = {name: name for name in shapes}
    if _OBJECT_GRAPH in shapes:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            reader.get_tensor(_OBJECT_GRAPH)
        )
        keys = {n: k for n, k in _objects(graph) if k in shapes}
    return Content(
        "a TensorFlow checkpoint",
        {name: shapes[key] for name, key in keys.items()},
        lambda name: reader.get_tensor(keys[name]),
    )


def _objects(graph: Any) -> Iterator[tuple[str, str]]:
    """Yields (name, key) of each variable, by its own name and by its path."""
    for node in graph.nodes:
        for attribute in node.attributes:
            yield attribute.full_name, attribute.checkpoint_key
    seen = set()

    def order(child: Any) -> int:
        # What an attribute holds is named by it, and not by a list of Keras.
        name = child.local_name
        return _KERAS_LISTS.index(name) if name in _KERAS_LISTS else -1

    def walk(number: int, path: str) -> Iterator[tuple[str, str]]:
        if number in seen:
            return
        seen.add(number)
        node = graph.nodes[number]
        for attribute in node.attributes:
            yield path, attribute.checkpoint_key
        for child in sorted(node.children, key=order):
            yield from walk(child.node_id, f"{path}/{child.local_name}")

    for child in graph.nodes[0].children:
        if child.local_name == "model":
            yield from walk(child.node_id, child.local_name)


# ---- PyTorch -----------------------------------------------------------------


def _pytorch(path: str) -> Content | None:
    content = io.BytesIO(files.read(path))
    if zipfile.is_zipfile(content):
        names = zipfile.ZipFile(content).namelist()
        if not any(name.endswith("/data.pkl") for name in names):
            return None
        if any(name.endswith("/constants.pkl") for name in names):
            raise errors.UserError(
                f"{path} is a program of TorchScript, which is not executed:"
                " save its tensors, by torch.save(model.state_dict(), FILE)"
            )
    content.seek(0)
    errors.check_package(path, "torch", "torch")
    import torch

    try:
        # The options of SupContrast and others: attributes, and no code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        match = _REFUSED_GLOBAL.search(str(error))
        # Other lines of PyTorch's message advise to load it nevertheless.
        what = match[1] if match else "an object"
        raise errors.UserError(
            f"{path} is refused, since it holds more than tensors ({what}), and"
            " to load that may execute code: save the tensors alone, by"
            " torch.save(model.state_dict(), FILE), where you trust it"
        ) from error
    tensors = dict(_flat(loaded, ""))
    options = loaded.get("opt") if isinstance(loaded, dict) else None
    return Content(
        "a PyTorch file",
        {name: tuple(x.shape) for name, x in tensors.items()},
        lambda name: tensors[name].float().numpy(),
        vars(options) if isinstance(options, argparse.Namespace) else {},
    )


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of nested dicts, with names joined by points."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif hasattr(value, "numpy"):
        yield name, value


def _safetensors(path: str) -> Content:
    """Reads a file of a length, a JSON header, and the arrays."""
    content = memoryview(files.read(path))
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:start]))
    metadata = header.pop("__metadata__", {})
    options = dict(json.loads(metadata.get(OPTIONS, "{}")))

    def array(name: str) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        kind = _SAFETENSORS_TYPES[header[name]["dtype"]]
        flat = np.frombuffer(content[start + begin : start + end], kind)
        return flat.astype(np.float32).reshape(header[name]["shape"])

    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    return Content("a safetensors file", shapes, array, options)
