"""Which casts lose values: digits of floats may be lost, other values may not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytriton._protocol.numpy_types import is_masked, lost_by_cast

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("values", "given", "dtype", "lost"),
    [
        ([1e300], np.float64, np.float32, "1e+300 is out of the range of float32"),
        ([1.0, -1e39, INF], np.float64, np.float32, "-1e+39 is out of the range of float32"),
        ([NAN, 1e10], np.float32, np.float16, "10000000000.0 is out of the range of float16"),
        ([70000], np.int64, np.float16, "70000 is out of the range of float16"),
        ([3e38, 3.4e38], np.float32, ml_dtypes.bfloat16, "3.3999999521443642e+38 is out of the range"),
        ([1e5], np.float32, ml_dtypes.float8_e4m3fn, "100000.0 is out of the range"),
        ([2**63], np.uint64, np.int64, "9223372036854775808 is out of the range of int64"),
        ([-1], np.int64, np.uint64, "-1 is out of the range of uint64"),
        ([300], np.int64, np.uint8, "300 is out of the range of uint8"),
        ([2], np.int8, np.bool_, "2 is out of the range of bool"),
        ([1.5], np.float32, np.int32, "1.5 is not a whole number"),
        ([1.0, NAN], np.float32, np.int32, "nan is out of the range of int32"),
        ([INF], np.float32, np.int64, "inf is out of the range of int64"),
        ([65504.0, -65504.0, INF, NAN], np.float64, np.float16, None),
        ([65519.99], np.float64, np.float16, None),  # rounds to the largest
        ([0.1, 1e-300], np.float64, np.float32, None),
        ([65504], np.int64, np.float16, None),
        ([2**62 + 1], np.int64, np.float32, None),
        ([INF, -INF, NAN, 1.0], np.float32, ml_dtypes.bfloat16, None),
        ([2**63 - 1], np.uint64, np.int64, None),
        ([1.0, 2.0], np.float64, np.int8, None),
        ([True], np.bool_, np.float16, None),
        ([], np.float64, np.float16, None),
    ],
)  # fmt: skip
def test_lossy_casts_are_detected(
    values: list[Any], given: Any, dtype: Any, lost: str | None
) -> None:
    array = np.array(values, given)
    for one in (array, array[::-1], array.reshape(1, -1)):
        said = lost_by_cast(one, np.dtype(dtype))
        assert said == lost if lost is None else (said or "").startswith(lost)


def test_masked_arrays_are_found_in_lists_too() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    assert is_masked(masked)
    assert is_masked(masked[1])
    assert is_masked([1, (2, [masked])])
    assert not is_masked([np.arange(3), 1, "text", None])
