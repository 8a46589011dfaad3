"""The types of a callable's results: cast if no value is lost, refused otherwise; with `strict`, never cast."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fakes.lane_pair import Lanes
from fakes.result_round_trip import (
    output,
    refusal,
    request,
    respond,
    responses,
    writer,
)

from pytriton._protocol import numpy_types
from pytriton.decorators.batching import split

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


CASTABLE = [
    (np.float64, [0.1, -1e30], "FP32"),
    (np.float64, [0.5, 2.0], "FP16"),
    (np.float32, [0.5, 2.0], "FP64"),
    (np.float32, [0.5, 2.0], "BF16"),
    (np.float64, [0.5, 2.0], "BF16"),
    (np.int64, [1, 2], "BF16"),
    (BFLOAT16, [0.5, 2.0], "FP32"),
    (np.int64, [1, -2], "FP32"),
    (np.bool_, [True, False], "FP32"),
    (np.bool_, [True, False], "INT8"),
    (np.int64, [0, 255], "UINT8"),
    (np.int64, [-128, 127], "INT8"),
    (np.int64, [-(1 << 31), (1 << 31) - 1], "INT32"),
    (np.uint64, [0, (1 << 63) - 1], "INT64"),
    (np.int64, [0, (1 << 63) - 1], "UINT64"),
    (np.uint8, [0, 255], "INT16"),
    (np.uint8, [0, 127], "INT8"),
    (np.int64, [1, 0], "BOOL"),
    (np.float32, [-1.0, 2.0], "INT64"),
    (np.float64, [0.0, 255.0], "UINT8"),
    (np.float64, [-(2.0**63), 2.0**63 - 1024], "INT64"),
    (np.float64, [-0.0, 2.0**64 - 2048], "UINT64"),
    (np.float16, [1.0, 0.0], "BOOL"),
    (np.float64, [np.inf, -np.inf], "FP32"),
    (np.float64, [np.nan, 1e38], "FP32"),
    (np.float32, [65504.0, -np.inf], "FP16"),
    (np.int64, [65504, -65504], "FP16"),
    (np.float64, [65519.99, 1.0], "FP16"),  # rounds to the largest
    (np.float64, [0.1, 1e-300], "FP32"),
    (np.int64, [(1 << 62) + 1, 0], "FP32"),
    (np.float32, [np.inf, -np.inf], "BF16"),
]

#: With the value that would be lost and why, where the text says so.
LOSING = [
    (np.int64, [0, 256], "UINT8", "256 is out of the range of uint8"),
    (np.int64, [-1, 0], "UINT8", "-1 is out of the range of uint8"),
    (np.int64, [0, 128], "INT8", "128 is out of the range of int8"),
    (np.int64, [0, 1 << 31], "INT32", "2147483648 is out of the range of int32"),
    (np.uint64, [0, 1 << 63], "INT64", "9223372036854775808 is out of the range of int64"),
    (np.int8, [-1, 0], "UINT64", "-1 is out of the range of uint64"),
    (np.uint8, [0, 128], "INT8", "128 is out of the range of int8"),
    (np.float32, [1.0, 2.5], "INT64", "2.5 is not a whole number"),
    (np.float64, [1.0, np.nan], "INT64", "nan is out of the range of int64"),
    (np.float64, [np.inf, 1.0], "INT32", "inf is out of the range of int32"),
    (np.float64, [0.0, 2.0**63], "INT64", "9.223372036854776e+18 is out of the range of int64"),
    (np.float64, [-1.0, 2.0], "UINT8", "-1.0 is out of the range of uint8"),
    (np.float64, [1.0, 0.5], "BOOL", "0.5 is not a whole number"),
    (np.int64, [2, 0], "BOOL", "2 is out of the range of bool"),
    (np.complex64, [1.0, 2.0], "FP32", ""),
    (np.float64, [1e300, 1.0], "FP32", "1e+300 is out of the range of float32"),
    (np.float64, [-1e39, np.inf], "FP32", "-1e+39 is out of the range of float32"),
    (np.float32, [np.nan, 1e10], "FP16", "10000000000.0 is out of the range of float16"),
    (np.int64, [70000, 1], "FP16", "70000 is out of the range of float16"),
    (np.float64, [1e39, 1.0], "BF16", "1e+39 is out of the range of bfloat16"),
    (BFLOAT16, [1.0, 1e38], "FP16", "9.969209968386869e+37 is out of the range of float16"),
    (BFLOAT16, [1.0, 2.0], "INT32", ""),
    (np.object_, [1.0, 2.0], "FP32", ""),
    (np.object_, [1.0, 2.0], "BF16", ""),
    ("U3", ["1", "2"], "FP32", ""),
    ("m8[s]", [1, 2], "INT64", ""),
    ("M8[s]", [1, 2], "INT64", ""),
    ([("a", "f4"), ("b", "f4")], [(1.0, 2.0), (3.0, 4.0)], "FP32", ""),
    ("V4", [b"abcd", b"efgh"], "BF16", ""),
]


def _id(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("given", "values", "declared"), CASTABLE, ids=_id)
def test_lossless_casts_are_made(
    lanes: Lanes, given: Any, values: list[Any], declared: str
) -> None:
    array = np.array(values, given).reshape(2, 1)
    got = respond(lanes, array, writer(output("y", declared)), rows=2)
    assert got.dtype == numpy_types.element_dtype(declared)
    np.testing.assert_array_equal(got, array.astype(got.dtype))
    if got.dtype.kind in "iu":
        assert got.ravel().tolist() == values


ONLY = (
    " Only bool, numeric, string, unicode and object arrays are supported by Triton "
    "(dtype.kind: biufOSU)."
)


@pytest.mark.parametrize(("given", "values", "declared", "lost"), LOSING, ids=_id)
def test_lossy_casts_are_refused(
    lanes: Lanes, given: Any, values: list[Any], declared: str, lost: str
) -> None:
    array = np.array(values, given).reshape(2, 1)
    text = refusal(lanes, [{"y": array}], writer(output("y", declared)), request(2))
    name = numpy_types.element_dtype(declared)
    said = (
        f"Output `y` of model `digits` has dtype {array.dtype}, which cannot be cast to {name} "
        "without losing values"
    )
    if lost:
        assert text == f"{said}: {lost}."
    elif array.dtype.kind in "biufOSU" or given is BFLOAT16:
        assert text == f"{said}."
    else:
        assert text == f"{said}.{ONLY}"


@pytest.mark.parametrize("pieces", [False, True], ids=["one", "pieces"])
@pytest.mark.parametrize(
    ("declared", "dtype"), [("FP32", np.float32), ("FP32", np.float64), ("BYTES", object)]
)
def test_masked_arrays_are_refused(
    lanes: Lanes, declared: str, dtype: Any, *, pieces: bool
) -> None:
    """Clients would receive the masked values."""
    array = np.ma.masked_array(np.array([[1], [2]], dtype), [[False], [True]])
    results: Any = [{"y": array}]
    requests = [request(2)]
    if pieces:
        results = split({"y": array}, [1, 1])
        requests = [request(1), request(1)]
    text = refusal(lanes, results, writer(output("y", declared)), *requests)
    assert text.startswith("Output `y` of model `digits` is a masked array")


def test_python_integers_that_fit_no_dtype(lanes: Lanes) -> None:
    to = writer(output("y", "INT64", ()), batching=False)
    assert "Output `y`" in refusal(lanes, [{"y": 1 << 70}], to)
    to = writer(output("y", "UINT8", ()), batching=False)
    assert "Output `y`" in refusal(lanes, [{"y": 300}], to)
    assert respond(lanes, 200, to) == 200


@pytest.mark.parametrize("dtype", ["O", "S4", "U4"])
def test_strings_of_every_kind(lanes: Lanes, dtype: str) -> None:
    array = np.array([["a"], ["bcd"]]).astype(dtype)
    got = respond(lanes, array, writer(output("y", "BYTES")), rows=2)
    assert got.tolist() == [[b"a"], [b"bcd"]]


def test_nuls_in_strings(lanes: Lanes) -> None:
    array = np.array([[b"a\0\0", b"\0"]], object)
    got = respond(lanes, array, writer(output("y", "BYTES")))
    assert got.tolist() == array.tolist()


def test_numbers_are_not_accepted_as_strings(lanes: Lanes) -> None:
    text = refusal(lanes, [{"y": np.ones((1, 1))}], writer(output("y", "BYTES")))
    assert (
        text == "Output `y` of model `digits` has dtype float64, but must be bytes, str or object."
    )


@pytest.mark.parametrize(
    "element", [5, None, np.ones((9, 9)), "\ud800"], ids=lambda v: type(v).__name__
)
def test_object_arrays_with_other_elements(lanes: Lanes, element: object) -> None:
    array = np.empty((1, 2), object)
    array[0, 0], array[0, 1] = b"fine", element
    text = refusal(lanes, [{"y": array}], writer(output("y", "BYTES")))
    assert text.startswith("Output `y` of model `digits` ")


def test_strict_accepts_exactly_what_is_declared(lanes: Lanes) -> None:
    to = writer(output("y", "FP32", (-1, 3)), output("s", "BYTES", (1,)), strict=True)
    result = {"y": np.ones((2, 7, 3), np.float32), "s": np.array([[b"a"], [b"b"]], object)}
    (answer,) = responses(lanes, [result], [request(2)], to)
    assert answer["y"].shape == (2, 7, 3)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_strict_casts_nothing(lanes: Lanes, dtype: type[Any]) -> None:
    text = refusal(lanes, [{"y": np.ones((1, 1), dtype)}], writer(strict=True))
    assert text == (
        f"Output `y` of model `digits` has invalid type. Returned: {np.dtype(dtype)}. Expected: float32."
    )
