"""The JSON of TensorFlow Serving's REST API: requests, answers, errors.

The forms are those of https://www.tensorflow.org/tfx/serving/api_rest, for the
signatures of exports: one input of uint8, float32 or strings, and outputs with
a row for each of its rows. What that server silently changes, such as 300 in a
uint8, is an error here.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

# Characters of a value that an error quotes.
_SHOWN = 60


class RestError(Exception):
    """A request that is refused or failed.

    Attributes:
      status: HTTP status code.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Input(NamedTuple):
    """The input of a signature.

    Attributes:
      key: its name.
      dtype: of its values: uint8, float32, or object for strings.
      shape: its dimensions, -1 if unknown.
    """

    key: str
    dtype: np.dtype
    shape: tuple[int, ...]


class Request(NamedTuple):
    """A request of a prediction.

    Attributes:
      signature: its name.
      array: its input.
      is_rows: whether it was in the row format (`instances`).
    """

    signature: str
    array: np.ndarray
    is_rows: bool


# ---- Requests ---------------------------------------------------------------


def read(body: bytes, input_of: Callable[[str], Input]) -> Request:
    """Reads the body of a `:predict` request.

    Args:
      body: JSON.
      input_of: signature's name -> its input; raises `RestError`.

    Raises:
      RestError: status 400 for a body of another form.
    """
    document = _parse(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise _invalid(f"signature_name is {_shown(name)}: must be a text")
    name = name or "serving_default"
    expected = input_of(name)
    if ("instances" in document) == ("inputs" in document):
        raise _invalid(
            "the body must have either instances (rows) or inputs (columns)"
        )
    is_rows = "instances" in document
    if is_rows:
        rows = document["instances"]
        if not isinstance(rows, list) or not rows:
            raise _invalid("instances must be a list of at least one row")
        values = [_unnamed(row, expected.key) for row in rows]
    else:
        values = _unnamed(document["inputs"], expected.key)
    return Request(name, _array(values, expected), is_rows)


def _invalid(message: str) -> RestError:
    return RestError(400, message)


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


def _array(value: Any, expected: Input) -> np.ndarray:
    """Makes the array of an input from nested lists, without loss."""
    key, dtype, dimensions = expected
    if dtype.kind == "O":
        if not isinstance(value, list):
            raise _invalid(f"{key} must be a list of texts")
        strings = np.empty(len(value), object)
        strings[:] = [_string(key, text) for text in value]
        return strings
    if value == []:  # An empty list has no further levels.
        return np.zeros([0, *(max(size, 1) for size in dimensions[1:])], dtype)
    form = f"nested lists of {dtype} of the shape {list(dimensions)}"
    refused = _invalid(f"{key} must be {form}, where -1 is any size")
    try:
        array = np.array(value)
    except (OverflowError, ValueError) as e:  # Lists of several lengths.
        raise refused from e
    fits = array.ndim == len(dimensions) and all(
        size in (-1, length)
        for size, length in zip(dimensions, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in (
        "iu" if dtype.kind == "u" else "iuf"
    ):
        raise refused
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    if dtype.kind == "u":
        is_same = np.array_equal(result, array)
    else:
        is_same = bool(np.isfinite(result).all())
    if not is_same:
        raise _invalid(f"{key} has a number that is not a finite {dtype}")
    return result


def _string(key: str, value: Any) -> bytes:
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


# ---- Answers ----------------------------------------------------------------


def as_json(value: Any) -> bytes:
    """Writes a value without arrays.

    Raises:
      ValueError: if it holds a number that JSON does not have.
    """
    return json.dumps(value, allow_nan=False).encode()


def write(outputs: Mapping[str, np.ndarray], is_rows: bool) -> bytes:
    """Writes the body of a `:predict` response.

    Args:
      outputs: arrays by name, of the same number of rows.
      is_rows: whether the request was in the row format.

    Raises:
      RestError: status 500 if a number is not finite.
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
        return as_json({"predictions" if is_rows else "outputs": values})
    except ValueError as e:
        raise RestError(
            500, "an output is not finite, and JSON has no such numbers"
        ) from e


def _listed(array: np.ndarray) -> Any:
    """Returns an array as nested lists; nine digits read as the same float."""
    if array.dtype != np.float32:
        return array.tolist()
    numbers = array.ravel().tolist()
    texts = ("%.9g " * len(numbers) % tuple(numbers)).split()
    return np.array(texts, np.float64).reshape(array.shape).tolist()
