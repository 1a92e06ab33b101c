"""The JSON of TensorFlow Serving's REST API, as its documents and tests show.

Requests and answers marked (doc) are those of api_rest.md and json_tensor_test
of TensorFlow Serving; its binary cannot be installed from a package index.
"""

import base64
import json
import random
import struct

import numpy as np
import pytest

from tf_contrastive.serving import rest
from tf_contrastive.serving.rest import RestError, Tensor

_TYPES = {
    "int": Tensor("i:0", np.dtype(np.int32), None),
    "float": Tensor("f:0", np.dtype(np.float32), None),
    "double": Tensor("d:0", np.dtype(np.float64), None),
    "str": Tensor("s:0", np.dtype(object), None),
    "bool": Tensor("b:0", np.dtype(bool), None),
    "uint8": Tensor("u:0", np.dtype(np.uint8), None),
    "int64": Tensor("l:0", np.dtype(np.int64), None),
    "uint64": Tensor("m:0", np.dtype(np.uint64), None),
    "handle": Tensor("h:0", np.dtype("V"), None),
    "images": Tensor("p:0", np.dtype(np.uint8), (-1, -1, -1, 3)),
}


def _read(body, *names):
    known = {name: _TYPES[name] for name in names}
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    data = text.encode() if isinstance(text, str) else text
    return rest.read(data, lambda signature: known)


_HELLO, _WORLD = {"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}
# (inputs of the signature, body, arrays).
_REQUESTS = [
    # (doc) Row format.
    ("int", '{"instances": [[1,2],[3,4],[5,6]]}', [[[1, 2], [3, 4], [5, 6]]]),
    (
        "float",
        '{"instances": [1, 2.0, 3, 4, 5.003, 0.007, 0.0]}',
        [[1, 2, 3, 4, 5.003, 0.007, 0]],
    ),
    ("str", '{"instances": ["foo", "bar", "baz"]}', [[b"foo", b"bar", b"baz"]]),
    ("str", {"instances": [_HELLO, _WORLD]}, [[b"hello", b"world"]]),
    ("str", {"instances": [[_HELLO], [_WORLD]]}, [[[b"hello"], [b"world"]]]),
    (
        "str",
        {"instances": [{"str": [[_HELLO], [_WORLD]]}]},
        [[[[b"hello"], [b"world"]]]],
    ),
    (
        "int str float double",
        """{"instances": [
        {"int": [[1,2],[3,4]], "str": ["foo", "bar"], "float": [1.0, NaN],
         "double": [NaN]},
        {"int": [[7,8],[9,0]], "str": ["baz", "bat"], "float": [2.0, Infinity],
         "double": [2.0]}]}""",
        [
            [[[1, 2], [3, 4]], [[7, 8], [9, 0]]],
            [[b"foo", b"bar"], [b"baz", b"bat"]],
            [[1, np.nan], [2, np.inf]],
            [[np.nan], [2]],
        ],
    ),
    # (doc) Columns.
    ("int", '{"inputs": {"int": [[[1,2],[3,4]]]}}', [[[[1, 2], [3, 4]]]]),
    ("int", '{"inputs": [[[1,2],[3,4]]]}', [[[[1, 2], [3, 4]]]]),
    (
        "int str",
        {"inputs": {"int": [[1, 2]], "str": _HELLO}},
        [[[1, 2]], b"hello"],
    ),
    # What is not in the documents, but follows from them.
    ("float", '{"inputs": 7}', [7]),
    ("str", {"inputs": _HELLO}, [b"hello"]),
    ("bool", '{"inputs": [true, false]}', [[True, False]]),
    ("uint8", '{"inputs": [0, 255]}', [[0, 255]]),
    (
        "int64",
        f'{{"inputs": [{-(2**63)}, {2**63 - 1}]}}',
        [[-(2**63), 2**63 - 1]],
    ),
    ("uint64", f'{{"inputs": [0, {2**64 - 1}]}}', [[0, 2**64 - 1]]),
    (
        "float",
        '{"inputs": [1e-50, -Infinity, 1E2, -0.0]}',
        [[0, -np.inf, 100, 0]],
    ),
    # Nearer to the largest float32 than to what would follow it.
    ("float", '{"inputs": [3.4028235e38]}', [[np.finfo(np.float32).max]]),
    ("float", '{"inputs": [[], []]}', [np.zeros([2, 0])]),
    ("str", '{"inputs": []}', [np.zeros([0])]),
    ("str", '{"inputs": ["\\u00e9"]}', [["\u00e9".encode()]]),
    ("str", '\ufeff{"inputs": ["a"]}', [[b"a"]]),
    # Base64 without padding, and with white space, as Abseil decodes it.
    (
        "str",
        {"inputs": [{"b64": "aGVsbG8"}, {"b64": "aGVs\nbG8="}]},
        [[b"hello"] * 2],
    ),
    (
        "images",
        {"instances": np.ones([2, 4, 5, 3], int).tolist()},
        [np.ones([2, 4, 5, 3])],
    ),
]


@pytest.mark.parametrize("case", range(len(_REQUESTS)))
def test_requests_become_arrays(case):
    names, body, expected = _REQUESTS[case]
    request = _read(body, *names.split())
    assert request.signature == "serving_default"
    assert request.rows == ("instances" in body)
    for name, value in zip(names.split(), expected, strict=True):
        array = request.inputs[name]
        assert array.dtype == _TYPES[name].dtype
        if array.dtype == object:
            assert array.tolist() == np.array(value, object).tolist()
        else:
            np.testing.assert_array_equal(
                array, np.array(value, _TYPES[name].dtype), strict=True
            )


_DEEP = 100_000
# (inputs of the signature, body, a part of the message).
_REFUSED = [
    # (doc) With the message of TensorFlow Serving.
    ("int", "", "The document is empty"),
    ("int", "instances = [1, 2]", "JSON Parse error"),
    (
        "int",
        '{"signature_name": 5, "instances": [1]}',
        "must be a string value",
    ),
    ("int", '{"instances": [1], "inputs": [1]}', "Not formatted correctly"),
    ("int", '{"instances": [[1,2],[3,4],[[5,6]]]}', ""),
    ("int", '{"instances": [[1,2],[3,4],[5,6,7]]}', "Expecting shape"),
    ("int", '{"instances": [1, [1]]}', ""),
    ("int", '{"instances": ["x"]}', "not of expected type"),
    ("str", {"instances": [{"b64": "!"}]}, "base64"),
    ("str", {"instances": [{"b64": 5}]}, "keys must be equal"),
    ("str", '{"inputs": {"str": {"b65": "aGVsbG8="}}}', "base64"),
    ("int str", '{"instances": [1]}', "multiple input tensors"),
    ("int str", '{"instances": [{"int": 1}]}', "keys must be equal"),
    ("int str", '{"inputs": {"int": 1}}', "Missing named input: str"),
    ("int", '{"instances": [{"int": 1}, 5]}', "Expecting object"),
    ("int", '{"instances": []}', "No values in 'instances'"),
    ("int", '{"instances": 5}', "'instances' to be"),
    ("int", "{}", "Missing 'inputs' or 'instances' key"),
    ("int", "[1]", "Is not object"),
    ("", '{"inputs": 1}', "Failed to get input map"),
    # Silently another number, there.
    ("uint8", '{"inputs": [256]}', "256"),
    ("uint8", '{"inputs": [-1]}', "-1"),
    ("uint64", '{"inputs": [-1]}', "-1"),
    ("int64", f'{{"inputs": [{2**63}]}}', str(2**63)),
    ("uint8", '{"inputs": [1.0]}', "1.0"),
    ("uint8", '{"inputs": [true]}', "true"),
    ("float", '{"inputs": [true]}', "true"),
    ("float", '{"inputs": [null]}', "null"),
    ("float", '{"inputs": ["1"]}', '"1"'),
    ("float", '{"inputs": [{"b64": "AA=="}]}', "b64"),
    ("bool", '{"inputs": [1]}', "1"),
    ("float", '{"inputs": [3.41e38]}', "without loss"),
    ("float", '{"inputs": [1e400]}', None),
    ("float", f'{{"inputs": [{10**400}]}}', ""),
    ("float", f'{{"inputs": [{"9" * 5000}]}}', ""),
    ("str", '{"inputs": [5]}', "5"),
    ("str", '{"inputs": ["\\ud800"]}', "surrogates"),
    # Of which the last would be taken, or the first.
    ("int", '{"inputs": [1], "inputs": [2]}', "twice"),
    ("int", b'{"inputs": [1]\xff}', "utf-8"),
    ("int", f'{{"inputs": {"[" * _DEEP}{"]" * _DEEP}}}', "deeply"),
    ("int", f'{{"inputs": {"[" * 40}1{"]" * 40}}}', "deeply"),
    ("handle", '{"inputs": [1]}', "Conversion"),
    ("images", '{"inputs": [[1, 2]]}', "has shape [1, 2]"),
    ("images", {"inputs": np.ones([1, 2, 2, 4], int).tolist()}, "4]"),
]


@pytest.mark.parametrize("case", range(len(_REFUSED)))
def test_other_requests_are_refused(case):
    names, body, told = _REFUSED[case]
    if told is None:  # 1e400 is infinity, as there.
        assert np.isposinf(_read(body, names).inputs[names])
        return
    with pytest.raises(RestError) as refused:
        _read(body, *names.split())
    assert refused.value.status == (501 if names == "handle" else 400)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 300


_ONE = np.array([[1.5, -2.0]], np.float32)
# (outputs, rows, JSON).
_RESPONSES = [
    # (doc) One output without its name, several as objects.
    (
        {"y": np.array([3.5, 4.0, 5.5], np.float32)},
        True,
        '{"predictions": [3.5, 4.0, 5.5]}',
    ),
    ({"y": np.array([3.5, 4.0], np.float32)}, False, '{"outputs": [3.5, 4.0]}'),
    (
        {"a": _ONE, "ok": np.array([True])},
        True,
        '{"predictions": [{"a": [1.5, -2.0], "ok": true}]}',
    ),
    (
        {"a": _ONE, "ok": np.array([True])},
        False,
        '{"outputs": {"a": [[1.5, -2.0]], "ok": [true]}}',
    ),
    # (doc) Names that end with _bytes.
    (
        {
            "s": np.array([b"a"], object),
            "s_bytes": np.array([b"hello"], object),
        },
        True,
        '{"predictions": [{"s": "a", "s_bytes": {"b64": "aGVsbG8="}}]}',
    ),
    (
        {"n": np.array([[1], [-7]], np.int64)},
        True,
        '{"predictions": [[1], [-7]]}',
    ),
    ({"n": np.array(5, np.int32)}, False, '{"outputs": 5}'),
    ({"x": np.zeros([0, 3], np.float32)}, True, '{"predictions": []}'),
    ({"x": np.zeros([2, 0], np.float32)}, True, '{"predictions": [[], []]}'),
    ({"x": np.zeros([0, 3], np.float32)}, False, '{"outputs": []}'),
    ({"x": np.zeros([2, 0, 3], np.float32)}, False, '{"outputs": [[], []]}'),
    ({"h": np.array([0.1], np.float16)}, False, '{"outputs": [0.0999755859]}'),
]


@pytest.mark.parametrize("case", range(len(_RESPONSES)))
def test_responses_have_its_forms(case):
    outputs, rows, expected = _RESPONSES[case]
    assert json.loads(rest.write(outputs, rows)) == json.loads(expected)


@pytest.mark.parametrize(
    ("outputs", "status"),
    [
        ({"a": np.zeros([2]), "b": np.zeros([3])}, 400),
        ({"a": np.array(1.0)}, 400),
        ({"s": np.array([b"\xff"], object)}, 400),
        ({"c": np.zeros([1], np.complex64)}, 501),
    ],
)
def test_outputs_that_json_cannot_hold_are_refused(outputs, status):
    with pytest.raises(RestError) as refused:
        rest.write(outputs, True)
    assert refused.value.status == status


# Values and their text by WriteDecimal of json_tensor.cc: six digits if they
# read as the same, else nine (seventeen); with a point or an exponent.
_NUMBERS = {
    np.float32: {
        0.2: "0.2",
        9000000: "9e+06",
        0.00003: "3e-05",
        5.0: "5.0",
        -0.0: "-0.0",
        1 / 3: "0.333333343",
        16777216: "16777216.0",
        123456: "123456.0",
        1e-45: "1.4013e-45",
        3.4028235e38: "3.40282347e+38",
        np.nan: "NaN",
        np.inf: "Infinity",
        -np.inf: "-Infinity",
    },
    np.float64: {0.1: "0.1", 1 / 3: "0.33333333333333331", 1e300: "1e+300"},
}


@pytest.mark.parametrize("dtype", _NUMBERS)
def test_numbers_are_written_as_it_writes_them(dtype):
    values, texts = zip(*_NUMBERS[dtype].items(), strict=True)
    written = rest.write({"y": np.array(values, dtype)}, False).decode()
    assert written.split("[")[1].split("]")[0].split(", ") == list(texts)


def test_any_float32_reads_back_as_itself():
    generator = random.Random(0)
    bits = [generator.getrandbits(32) for _ in range(20_000)]
    values = np.array(
        [struct.unpack("f", struct.pack("I", b))[0] for b in bits], np.float32
    )
    back = json.loads(rest.write({"y": values}, False))["outputs"]
    np.testing.assert_array_equal(np.array(back, np.float32), values)


def test_what_is_written_can_be_read():
    generator = np.random.default_rng(0)
    arrays = {
        "float": generator.normal(size=[3, 4]).astype(np.float32),
        "int": generator.integers(-9, 9, [3, 2, 2]).astype(np.int32),
        "str": np.array([b"a", b"\xc3\xa9", b""], object),
    }
    for rows, key in ((True, "instances"), (False, "inputs")):
        body = json.loads(rest.write(arrays, rows))
        (value,) = body.values()
        again = _read({key: value}, *arrays).inputs
        for name, array in arrays.items():
            np.testing.assert_array_equal(again[name], array, strict=True)
    binary = base64.b64encode(bytes(range(256))).decode()
    (value,) = _read({"inputs": [{"b64": binary}]}, "str").inputs.values()
    assert value[0] == bytes(range(256))
