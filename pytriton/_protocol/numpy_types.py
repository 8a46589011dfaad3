"""numpy dtypes of Triton's datatypes, and checks that a cast to another dtype loses nothing.

numpy has no BF16: a process with ml_dtypes uses its bfloat16. A process without it (the proxy) treats such
tensors as 16-bit words and does not interpret them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytriton._protocol.datatypes import DTYPE_NAMES

#: Triton's datatype -> numpy dtype, for all fixed-size types that numpy supports.
NUMERIC: dict[str, np.dtype[Any]] = {
    name: np.dtype(dtype) for name, dtype in DTYPE_NAMES.items() if dtype is not None
}
#: numpy dtype -> Triton's datatype. uint16 is UINT16, not BF16.
BY_DTYPE: dict[np.dtype[Any], str] = {}
for _name, _dtype in NUMERIC.items():
    BY_DTYPE.setdefault(_dtype, _name)


def element_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype in which a worker's callable receives a datatype; object for BYTES.

    Raises:
        ImportError: BF16 needs ml_dtypes, which is not installed in this environment.
        KeyError: the datatype is unknown.
    """
    if datatype == "BYTES":
        return np.dtype(object)
    if datatype == "BF16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                "a tensor of type BF16 needs the package ml_dtypes in the worker's environment: "
                "pip install ml_dtypes"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return NUMERIC[datatype]


Array = npt.NDArray[Any]

#: The end of an error about a masked array, with the fix.
MASKED = (
    "is a masked array, and tensors have no mask: the masked values would become visible. "
    "Pass array.filled(value)"
)


def is_masked(value: object) -> bool:
    """Return True if a value is a numpy.ma array, or a list or tuple that contains one."""
    if isinstance(value, (list, tuple)):
        return any(is_masked(item) for item in value)
    return isinstance(value, np.ma.MaskedArray)


def lost_by_cast(array: Array, dtype: np.dtype[Any]) -> str | None:
    """Describe what a cast would lose, such as "1e+39 is out of the range of float32"; None if it loses nothing.

    Rounding of floats does not count as a loss, nor do infinity and NaN if `dtype` has them.
    """
    if array.size == 0 or array.dtype == dtype or np.can_cast(array.dtype, dtype):
        return None
    if dtype.kind in "iub":
        return _lost_by_integers(array, dtype)
    if dtype.kind == "f" and array.dtype.kind in "iuf":
        least, most = array.min().item(), array.max().item()
        limit = np.finfo(dtype).max.item()
        if -limit <= least and most <= limit:  # false if either is NaN
            return None
    return _lost_by_floats(array, dtype)


def _lost_by_integers(array: Array, dtype: np.dtype[Any]) -> str | None:
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # Compared as Python numbers, integers are exact; NaN is unequal to everything.
    for value in (array.min().item(), array.max().item()):
        if not low <= value <= high:
            return f"{value!r} is out of the range of {dtype}"
    if array.dtype.kind in "iub":
        return None
    fractions = array[array != np.trunc(array)]
    return f"{fractions[0].item()!r} is not a whole number" if fractions.size else None


def _lost_by_floats(array: Array, dtype: np.dtype[Any]) -> str | None:
    with np.errstate(all="ignore"):
        lost = array[np.isfinite(array) & ~np.isfinite(array.astype(dtype))]
    return f"{lost.ravel()[0].item()!r} is out of the range of {dtype}" if lost.size else None
