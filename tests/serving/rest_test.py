"""The JSON of TensorFlow Serving's REST API, as its documents show it.

Its binary cannot be installed from a package index.
"""

import json
import tracemalloc

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from tf_contrastive.serving import rest
from tf_contrastive.serving.rest import Signature

_INPUTS = {
    "uint8": Signature("images", np.dtype(np.uint8), (-1, -1, -1, 3), []),
    "float": Signature("images", np.dtype(np.float32), (-1, 1, 1, 2), []),
    "bytes": Signature("bytes", np.dtype(object), (-1,), []),
}


def _read(kind, body):
    text = json.dumps(body) if isinstance(body, dict | list) else body
    data = text.encode() if isinstance(text, str) else text
    return rest.read(data, {"serving_default": _INPUTS[kind]})


_HELLO, _WORLD = {"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}
_MOST = np.finfo(np.float32).max
_ONES = np.ones([2, 4, 5, 3], int)
_REQUESTS = [
    # Rows and columns, with and without the input's name.
    ("bytes", {"instances": ["foo", "bar"]}, [b"foo", b"bar"]),
    ("bytes", {"instances": [_HELLO, _WORLD]}, [b"hello", b"world"]),
    ("bytes", {"instances": [{"bytes": _HELLO}, _WORLD]}, [b"hello", b"world"]),
    ("bytes", {"inputs": {"bytes": [_HELLO]}}, [b"hello"]),
    ("uint8", {"instances": [[[[0, 255, 7]]]]}, [[[[0, 255, 7]]]]),
    ("uint8", {"inputs": {"images": _ONES.tolist()}}, _ONES),
    ("float", {"inputs": [[[[0, -0.5]]]]}, [[[[0, -0.5]]]]),
    ("float", '{"inputs": [[[[1e-50, 1E2]]]]}', [[[[0, 100]]]]),
    ("float", {"inputs": [[[[10**20, -(2**64)]]]]}, [[[[1e20, -(2.0**64)]]]]),
    # Nearer to the largest float32 than to what would follow it.
    ("float", '{"inputs": [[[[3.4028235e38, 1]]]]}', [[[[_MOST, 1]]]]),
    # No rows.
    ("uint8", {"inputs": []}, np.zeros([0, 1, 1, 3])),
    ("bytes", {"inputs": []}, np.zeros([0])),
    ("bytes", '\ufeff{"inputs": ["\\u00e9"]}', ["\u00e9".encode()]),
    # Base64 without padding, and with white space, as Abseil decodes it.
    ("bytes", {"inputs": [{"b64": "aGVs\nbG8"}]}, [b"hello"]),
]


@pytest.mark.parametrize(("kind", "body", "expected"), _REQUESTS)
def test_requests_become_arrays(kind, body, expected):
    signature, array, is_rows = _read(kind, body)
    assert (signature, is_rows) == ("serving_default", "instances" in body)
    dtype = _INPUTS[kind].dtype
    assert array.dtype == dtype
    assert array.tolist() == np.array(expected, dtype).tolist()


_DEEP, _PIXEL = 100_000, [[1, 2, 3]]
_NOT_BYTES = "256", "-1", "1.0", "null", '"1"', "9" * 5000
_NOT_FLOATS = (
    *("null", '"1"', "NaN", "-Infinity", "1e400", "3.41e38"),
    *(f"{10**400}", "9" * 5000),
)
_REFUSED = [
    *(("bytes", body) for body in ("", "{", "[1]", "{}", "x = [1]")),
    *(("bytes", {"signature_name": x, "inputs": ["a"]}) for x in (5, "no")),
    ("bytes", '{"instances": ["a"], "inputs": ["a"]}'),
    # Of which the last would be taken, or the first.
    ("bytes", '{"inputs": ["a"], "inputs": ["b"]}'),
    ("bytes", b'{"inputs": ["a"]\xff}'),
    *(("bytes", {"instances": x}) for x in ([], 5, "a", {}, {"bytes": ["a"]})),
    *(("bytes", {"inputs": x}) for x in ("a", _HELLO, [["a"]], [5], [None])),
    *(("bytes", {"inputs": [x]}) for x in ({"b65": "AA"}, {"b64": 5})),
    *(("bytes", {"inputs": [{"b64": x}]}) for x in ("!", "A", "\u00e9")),
    ("bytes", '{"inputs": ["\\ud800"]}'),
    ("uint8", {"inputs": {"image": [[[[1, 2, 3]]]]}}),
    # Silently another number, there.
    *(("uint8", f'{{"inputs": [[[[{x}, 0, 0]]]]}}') for x in _NOT_BYTES),
    *(("float", f'{{"inputs": [[[[{x}, 0]]]]}}') for x in _NOT_FLOATS),
    # Other shapes.
    *(("uint8", {"inputs": x}) for x in (7, [1, 2], [[[1, 2, 3]]])),
    *(("uint8", {"inputs": [[[[1, 2, *x]]]]}) for x in ([3, 4], [[3]])),
    *(("uint8", {"inputs": [[_PIXEL], x]}) for x in ([2 * _PIXEL], 5)),
    ("uint8", f'{{"inputs": {"[" * _DEEP}{"]" * _DEEP}}}'),
    ("float", {"inputs": [[[[1, 2]], [[1, 2]]]]}),
    *(("float", {"inputs": [[[[True, x]]]]}) for x in (False, 1, 0.5)),
    ("uint8", {"inputs": [[[[True, 1, 2]]]]}),
]


@pytest.mark.parametrize("case", range(len(_REFUSED)))
def test_other_requests_are_refused(case):
    with pytest.raises(HTTPException, match="400") as refused:
        _read(*_REFUSED[case])
    assert len(refused.value.detail) < 300
    assert "set_int_max_str_digits" not in refused.value.detail


def test_texts_for_numbers_take_little_memory():
    body = json.dumps({"inputs": ["x" * 10_000] + [""] * 1_000})
    tracemalloc.start()
    with pytest.raises(HTTPException, match="nested lists"):
        _read("uint8", body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * len(body)


def _write(outputs, rows):
    arrays = {k: np.array(v, np.float32) for k, v in outputs.items()}
    return json.loads(rest.write(arrays, rows))


def test_answers_have_rows_or_columns():
    two = {"a": [[1], [2]], "b": [3, 4]}
    assert _write({"a": [[1], [2]]}, True) == {"predictions": [[1], [2]]}
    assert _write({"a": [[1], [2]]}, False) == {"outputs": [[1], [2]]}
    rows = [{"a": [1], "b": 3}, {"a": [2], "b": 4}]
    assert _write(two, False) == {"outputs": two}
    assert _write(two, True) == {"predictions": rows}
    others = {"ok": np.array([True]), "labels": np.array([2**53 + 1])}
    written = json.loads(rest.write(others, False))["outputs"]
    assert written == {"ok": [True], "labels": [2**53 + 1]}


def test_an_answer_is_json_or_an_error():
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(HTTPException, match="500"):
            _write({"x": [1, value]}, True)
