"""What casting an array to another dtype would lose; arrays whose numbers are hidden by a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: What is wrong with a masked array, and what to do.
MASKED = (
    "is a masked array, and tensors have no mask: the hidden numbers would become visible. "
    "Give array.filled(value)"
)


def is_masked(value: object) -> bool:
    """Whether a value is a numpy.ma array, or a list or tuple that holds one."""
    if isinstance(value, (list, tuple)):
        return any(is_masked(item) for item in value)
    return isinstance(value, np.ma.MaskedArray)


def lost_by_cast(array: Array, dtype: np.dtype[Any]) -> str | None:
    """Return what a cast of numbers loses, such as "1e+39 is out of the range of float32"; None: nothing.

    Digits of floats do not count, nor do infinity and NaN where `dtype` has them.
    """
    if array.size == 0 or array.dtype == dtype or np.can_cast(array.dtype, dtype):
        return None
    if dtype.kind in "iub":
        return _lost_by_integers(array, dtype)
    if dtype.kind == "f" and array.dtype.kind in "iuf":
        least, most = array.min().item(), array.max().item()
        limit = np.finfo(dtype).max.item()
        if -limit <= least and most <= limit:  # not where one is NaN
            return None
    return _lost_by_floats(array, dtype)


def _lost_by_integers(array: Array, dtype: np.dtype[Any]) -> str | None:
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # As Python's numbers they compare exactly, and NaN with nothing.
    for value in (array.min().item(), array.max().item()):
        if not low <= value <= high:
            return f"{value!r} is out of the range of {dtype}"
    if array.dtype.kind in "iub":
        return None
    fractions = array[array != np.trunc(array)]
    return f"{fractions[0].item()!r} is no whole number" if fractions.size else None


def _lost_by_floats(array: Array, dtype: np.dtype[Any]) -> str | None:
    with np.errstate(all="ignore"):
        lost = array[np.isfinite(array) & ~np.isfinite(array.astype(dtype))]
    return f"{lost.ravel()[0].item()!r} is out of the range of {dtype}" if lost.size else None
