"""The JSON of TensorFlow Serving's REST API, and its errors.

Requests and responses have the forms of
https://www.tensorflow.org/tfx/serving/api_rest, numbers included. What that
server would silently change, such as 300 in a uint8, is an error here.
"""

import base64
import binascii
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# Dimensions of an array of NumPy 1, at most.
_MAX_RANK = 32
# Characters of a value that an error quotes.
_SHOWN = 60


class RestError(Exception):
    """A request that is refused or failed.

    Attributes:
      status: HTTP status code.
      headers: of the response, besides the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class Tensor(NamedTuple):
    """An input or output of a signature.

    Attributes:
      name: of the tensor in the graph.
      dtype: of its values; object for strings.
      shape: its dimensions, -1 if unknown; None: not checked.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...] | None


class Request(NamedTuple):
    """A request of a prediction.

    Attributes:
      signature: its name.
      inputs: arrays by name.
      rows: whether it was in the row format (`instances`).
    """

    signature: str
    inputs: dict[str, np.ndarray]
    rows: bool


def error(message: str) -> bytes:
    """Returns the body of an error's response."""
    return as_json({"error": message})


def as_json(value: Any) -> bytes:
    """Writes a value without arrays."""
    return json.dumps(value, indent=1).encode()


# ---- Requests ---------------------------------------------------------------


def read(
    body: bytes, inputs_of: Callable[[str], Mapping[str, Tensor]]
) -> Request:
    """Reads the body of a `:predict` request.

    Args:
      body: JSON.
      inputs_of: signature's name -> its inputs by name; raises `RestError`.

    Raises:
      RestError: status 400 for a body of another form.
    """
    document = _parse(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise _invalid(
            f"JSON Value: {_shown(name)} not formatted correctly."
            " 'signature_name' key must be a string value."
        )
    name = name or "serving_default"
    known = inputs_of(name)
    if not known:
        raise _invalid(f"Failed to get input map for signature: {name}")
    if "instances" in document and "inputs" in document:
        raise _invalid(
            "Not formatted correctly expecting only one of 'inputs' or"
            " 'instances' keys to exist"
        )
    if "instances" in document:
        columns = _columns(document["instances"], known)
        return Request(name, _tensors(columns, known), True)
    if "inputs" not in document:
        raise _invalid("Missing 'inputs' or 'instances' key")
    columns = document["inputs"]
    if not isinstance(columns, dict) or _is_encoded(columns):
        columns = {_only(known, "inputs"): columns}
    for key in known:
        if key not in columns:
            raise _invalid(f"Missing named input: {key} in 'inputs' object.")
    return Request(name, _tensors(columns, known), False)


def _invalid(message: str) -> RestError:
    return RestError(400, message)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _parse(body: bytes) -> dict[str, Any]:
    if not body:
        raise _invalid("JSON Parse error: The document is empty")
    try:
        document = json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_without_repetition
        )
    except RecursionError as e:
        raise _invalid("JSON Parse error: nested too deeply") from e
    except ValueError as e:
        raise _invalid(f"JSON Parse error: {e}") from e
    if not isinstance(document, dict):
        raise _invalid(f"JSON Value: {_shown(document)} Is not object")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of pairs; two of one key would mean either of them."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError(f"a key occurs twice among {_shown(list(result))}")
    return result


def _is_encoded(value: Any) -> bool:
    """Whether a value is `{"b64": TEXT}`."""
    return (
        isinstance(value, dict)
        and value.keys() == {"b64"}
        and isinstance(value["b64"], str)
    )


def _only(known: Mapping[str, Tensor], key: str) -> str:
    if len(known) > 1:
        raise _invalid(
            f"{key} is a plain value/list, but expecting an object as multiple"
            f" input tensors required: {', '.join(known)}"
        )
    return next(iter(known))


def _columns(rows: Any, known: Mapping[str, Tensor]) -> dict[str, Any]:
    """Turns `instances` into a list of values for each input."""
    if not isinstance(rows, list):
        raise _invalid("Expecting 'instances' to be a list/array")
    if not rows:
        raise _invalid("No values in 'instances' array")
    objects = [isinstance(r, dict) and not _is_encoded(r) for r in rows]
    if not any(objects):
        return {_only(known, "instances"): rows}
    for i, row in enumerate(rows):
        if not objects[i]:
            raise _invalid(
                f"Expecting object but got value/list at item {i} of input list"
            )
        if row.keys() != known.keys():
            raise _invalid(
                f"Failed to process element: {i} of 'instances' list. JSON"
                f" object: {_shown(row)} keys must be equal to:"
                f" {','.join(sorted(known))}"
            )
    return {key: [row[key] for row in rows] for key in known}


def _tensors(
    columns: Mapping[str, Any], known: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    return {k: _tensor(k, columns[k], tensor) for k, tensor in known.items()}


def _tensor(key: str, value: Any, tensor: Tensor) -> np.ndarray:
    """Makes the array of an input from nested lists.

    One level after the other: lists of any depth need no recursion, and types
    and lengths of a level are compared without a step of Python for each value.
    """
    shape: list[int] = []
    level = [value]
    while level and list in (kinds := set(map(type, level))):
        if len(kinds) > 1:
            raise _invalid(
                f"input {key}: lists and values side by side at level"
                f" {len(shape)}"
            )
        sizes = set(map(len, level))
        if len(sizes) > 1:
            raise _invalid(
                f"input {key}: lists of {min(sizes)} and of {max(sizes)} values"
                f" at level {len(shape)}: Expecting shape of one size"
            )
        shape.append(sizes.pop())
        if len(shape) > _MAX_RANK:
            raise _invalid(f"input {key}: lists nested too deeply")
        level = list(itertools.chain.from_iterable(level))
    expected = tensor.shape
    if expected is not None and (
        len(shape) != len(expected)
        or any(e not in (-1, s) for s, e in zip(shape, expected, strict=True))
    ):
        raise _invalid(
            f"input {key} has shape {shape}; expected {list(expected)}, where"
            " -1 is any size"
        )
    return _values(level, tensor.dtype).reshape(shape)


def _values(values: list[Any], dtype: np.dtype) -> np.ndarray:
    """Makes a flat array of JSON values, without loss."""
    kind = dtype.kind
    if kind == "O":
        result = np.empty(len(values), object)
        result[:] = [_string(value) for value in values]
        return result
    allowed: dict[str, set[type]] = {
        "b": {bool},
        "i": {int},
        "u": {int},
        "f": {int, float},
    }
    if kind not in allowed:
        raise RestError(501, f"Conversion of JSON values to type {dtype}")
    if not set(map(type, values)) <= allowed[kind]:
        wrong = next(v for v in values if type(v) not in allowed[kind])
        raise _unexpected(wrong, dtype)
    if kind == "b":
        return np.array(values, bool)
    if kind == "f":
        return _floats(values, dtype)
    limits = np.iinfo(dtype)
    if values and not limits.min <= min(values) <= max(values) <= limits.max:
        wrong = next(v for v in values if not limits.min <= v <= limits.max)
        raise _unexpected(wrong, dtype)
    return np.fromiter(values, dtype, len(values))


def _floats(values: list[Any], dtype: np.dtype) -> np.ndarray:
    try:
        exact = np.fromiter(values, np.float64, len(values))
    except OverflowError as e:  # Of an integer beyond float64.
        raise _invalid(f"Cannot convert a JSON value to {dtype}: {e}") from e
    with np.errstate(over="ignore"):
        result = exact.astype(dtype)
    lost = np.isinf(result) & np.isfinite(exact)
    if lost.any():
        raise _invalid(
            f"Cannot convert JSON value: {exact[lost][0]:g} to {dtype} without"
            " loss of precision."
        )
    return result


def _unexpected(value: Any, dtype: Any) -> RestError:
    return _invalid(
        f"JSON Value: {_shown(value)} is not of expected type: {dtype}"
    )


def _string(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as e:
            raise _invalid(f"JSON Value: {_shown(value)}: {e.reason}") from e
    if not _is_encoded(value):
        raise _invalid(
            f"JSON Value: {_shown(value)} not formatted correctly for base64"
            " data"
        )
    text = value["b64"]
    try:
        # Padding is optional there, and white space is ignored.
        text = re.sub(r"\s+", "", text).rstrip("=")
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as e:
        raise _invalid(f"Unable to base64 decode: {e}") from e


# ---- Responses --------------------------------------------------------------


def write(outputs: Mapping[str, np.ndarray], rows: bool) -> bytes:
    """Writes the body of a `:predict` response.

    Args:
      outputs: arrays by name.
      rows: whether the request was in the row format.

    Raises:
      RestError: if outputs have different numbers of rows, or cannot be
        written.
    """
    if not rows:
        columns = {k: _nested(k, v, 0)[0] for k, v in outputs.items()}
        return f'{{\n    "outputs": {_object(columns)}\n}}'.encode()
    counts = {k: len(v) if v.ndim else None for k, v in outputs.items()}
    if len(set(counts.values())) > 1 or None in counts.values():
        raise _invalid(
            f"outputs have different numbers of rows, {counts}: use 'inputs'"
        )
    texts = {k: _nested(k, v, 1) for k, v in outputs.items()}
    lines = [
        _object(dict(zip(texts, row, strict=True)))
        for row in zip(*texts.values(), strict=True)
    ]
    text = ",\n".join(lines)
    return f'{{\n    "predictions": [{text}]\n}}'.encode()


def _object(texts: Mapping[str, str]) -> str:
    """Writes values by name; the only one without its name."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    pairs = [f"{json.dumps(key)}: {text}" for key, text in texts.items()]
    return f"{{{', '.join(pairs)}}}"


def _nested(key: str, array: np.ndarray, axis: int) -> list[str]:
    """Writes each of the parts of an array before an axis."""
    texts: Sequence[str] = _texts(key, array.ravel())
    for i in range(array.ndim - 1, axis - 1, -1):
        size, count = array.shape[i], int(np.prod(array.shape[:i]))
        texts = [
            f"[{', '.join(texts[size * k : size * (k + 1)])}]"
            for k in range(count)
        ]
    return list(texts)


def _texts(key: str, values: np.ndarray) -> list[str]:
    """Writes each value of a flat array."""
    kind = values.dtype.kind
    if kind == "O":
        return [_written(key, value) for value in values]
    if kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if kind in "iu":
        return list(map(str, values.tolist()))
    if kind != "f" and values.dtype.name != "bfloat16":
        raise RestError(501, f"output {key}: JSON of {values.dtype}")
    if values.dtype != np.float64:
        values = values.astype(np.float32)
    return _decimals(values)


def _written(key: str, value: bytes) -> str:
    if key.endswith("_bytes"):
        return json.dumps({"b64": base64.b64encode(value).decode()})
    try:
        return json.dumps(value.decode())
    except UnicodeDecodeError as e:
        raise _invalid(f"output {key} is not UTF-8") from e


def _decimals(values: np.ndarray) -> list[str]:
    """Writes floats with six digits, or with all if six read as another."""
    numbers = values.tolist()
    texts = ("%g " * len(numbers) % tuple(numbers)).split()
    exact = np.array(texts, np.float64).astype(values.dtype) == values
    digits = 9 if values.dtype == np.float32 else 17
    for i in np.flatnonzero(~exact & np.isfinite(values)).tolist():
        texts[i] = f"{numbers[i]:.{digits}g}"
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [
        names.get(t) or (t if "." in t or "e" in t else f"{t}.0") for t in texts
    ]
