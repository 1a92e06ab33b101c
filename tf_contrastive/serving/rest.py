"""The JSON of TensorFlow Serving's REST API: requests, answers, errors.

The forms are those of https://www.tensorflow.org/tfx/serving/api_rest, for the
signatures of exports: one input of uint8, float32 or strings, and outputs with
a row for each of its rows. What that server silently changes, such as 300 in a
uint8, is an error here.
"""

import base64
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from starlette.exceptions import HTTPException

# Characters of a value that an error quotes.
_SHOWN = 60
_invalid = functools.partial(HTTPException, 400)


class Signature(NamedTuple):
    """A signature of an export, of one input."""

    key: str  # Name of the input.
    dtype: np.dtype  # uint8, float32, or object for strings.
    shape: tuple[int, ...]  # -1 for unknown dimensions.
    outputs: list[str]  # Their names.
    # The input -> arrays in the order of `outputs`.
    call: Callable[[np.ndarray], list[np.ndarray]] | None = None


def read(
    body: bytes, signatures: Mapping[str, Signature]
) -> tuple[str, np.ndarray, bool]:
    """Reads the body of a `:predict` request.

    Returns:
      The signature's name, its input, and whether that was in the row format
      (`instances`).

    Raises:
      HTTPException: status 400 for a body of another form.
    """
    document = _parse(body)
    name = document.get("signature_name", "")
    name = "serving_default" if name == "" else name
    if not isinstance(name, str) or name not in signatures:
        names = ", ".join(signatures)
        raise _invalid(f"there is no signature {_shown(name)}: use {names}")
    signature = signatures[name]
    is_rows = "instances" in document
    if is_rows == ("inputs" in document):
        raise _invalid("the body must have either instances or inputs")
    if is_rows:
        rows = document["instances"]
        if not isinstance(rows, list) or not rows:
            raise _invalid("instances must be a list of at least one row")
        values = [_unnamed(row, signature.key) for row in rows]
    else:
        values = _unnamed(document["inputs"], signature.key)
    if signature.dtype.kind == "O":
        return name, _strings(values, signature.key), is_rows
    return name, _numbers(values, signature), is_rows


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _parse(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_without_repetition
        )
    except RecursionError as e:
        raise _invalid("the body is nested too deeply") from e
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise _invalid(f"the body is not JSON: {e}") from e
    except ValueError as e:  # Python converts at most 4,300 digits.
        raise _invalid("the body has a number of too many digits") from e
    if not isinstance(document, dict):
        raise _invalid(f"the body is {_shown(document)}: must be an object")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of pairs; two of one key would mean either of them."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _invalid(f"a key occurs twice among {_shown([*result])}")
    return result


def _unnamed(value: Any, key: str) -> Any:
    """Returns the value of `{key: value}`, and another value as it is."""
    is_named = isinstance(value, dict) and value.keys() == {key}
    return value[key] if is_named else value


def _numbers(value: Any, signature: Signature) -> np.ndarray:
    """Makes an array of nested lists of numbers, without loss."""
    key, dtype, dimensions, *_ = signature
    if value == []:  # An empty list has no further levels.
        return np.zeros([0, *(max(size, 1) for size in dimensions[1:])], dtype)
    # Otherwise NumPy would make each text as long as the longest one.
    values = np.array(value, object)
    types = {int} if dtype.kind == "u" else {int, float}
    fits = values.ndim == len(dimensions) and all(
        expected in (-1, size)
        for expected, size in zip(dimensions, values.shape, strict=True)
    )
    if not fits or not {*map(type, values.flat)} <= types:
        raise _invalid(
            f"{key} must be nested lists of {dtype}, of the shape"
            f" {list(dimensions)}, where -1 is any size"
        )
    try:
        exact = values.astype(np.float64)
    except OverflowError:
        exact = np.array(np.inf)
    with np.errstate(all="ignore"):
        array = exact.astype(dtype)
    if not np.all(array == exact if dtype.kind == "u" else np.isfinite(array)):
        raise _invalid(f"{key}: a number is not in the range of {dtype}")
    return array


def _strings(values: Any, key: str) -> np.ndarray:
    if not isinstance(values, list):
        raise _invalid(f"{key} must be a list of texts, not {_shown(values)}")
    return np.array([_string(value, key) for value in values], object)


def _string(value: Any, key: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        # Padding is optional there, and white space is ignored.
        text = re.sub(r"\s+", "", value["b64"]).rstrip("=")
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (KeyError, TypeError, ValueError) as e:
        raise _invalid(
            f'{key}: {_shown(value)} is neither a text nor {{"b64": TEXT}} in'
            " Base64"
        ) from e


def write(outputs: Mapping[str, np.ndarray], is_rows: bool) -> bytes:
    """Writes the body of a `:predict` response, in the request's format.

    Raises:
      HTTPException: status 500 if a number is not finite.
    """
    columns = {name: _listed(array) for name, array in outputs.items()}
    values: Any = columns
    if len(columns) == 1:  # Without its name.
        (values,) = columns.values()
    elif is_rows:
        values = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
    try:
        answer = {"predictions" if is_rows else "outputs": values}
        return json.dumps(answer, allow_nan=False).encode()
    except ValueError as e:
        raise HTTPException(
            500, "an output is not finite, and JSON has no such numbers"
        ) from e


def _listed(array: np.ndarray) -> Any:
    """Returns an array as nested lists; nine digits read as the same float."""
    if array.dtype != np.float32:
        return array.tolist()
    numbers = array.ravel().tolist()
    texts = ("%.9g " * len(numbers) % tuple(numbers)).split()
    return np.array(texts, np.float64).reshape(array.shape).tolist()
