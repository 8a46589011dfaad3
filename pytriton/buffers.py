"""`empty_output`: allocates output arrays in the memory from which responses are sent."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

__all__ = ["empty_output", "set_output_source"]

Array = npt.NDArray[Any]
#: Returns an array of this shape and dtype, or None if `numpy.empty` should be used.
Source = Callable[["tuple[int, ...]", "np.dtype[Any]"], Union[Array, None]]


def _ordinary(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    return None


_source: Source = _ordinary
_thread_local = threading.local()


def empty_output(shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return a new, writable, C-contiguous array for an output, which is then sent without a copy.

    Like `numpy.empty`, but the array is allocated in memory that Triton's proxy reads. Return the array from your
    callable, or contiguous slices of it (such as those that ``@batch`` creates), as outputs of exactly its dtype.
    Allocate a new array in each call: its memory is reused once nothing refers to it.

    You may keep a reference to the array: its memory is not reused as long as you do. However, an array that can still
    be modified after the callable has returned is copied like any other array. The function is plain `numpy.empty`
    outside a call to a model's callable (in a factory, in your tests), for strings, and below 256 KiB, where a copy is
    cheaper.

    Args:
        shape: shape of the array, including the batch axis
        dtype: dtype of the output. If it differs from the declared dtype, the output is cast, which copies it.

    Raises:
        MemoryError: the machine does not have enough memory
        ValueError, TypeError: the shape or dtype is invalid

    Example:
        >>> @batch                                                   # doctest: +SKIP
        ... def infer(x):
        ...     y = pytriton.empty_output((len(x), 1000), np.float32)
        ...     np.matmul(x, WEIGHTS, out=y)
        ...     return {"y": y}
    """
    dims = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    kind: np.dtype[Any] = np.dtype(dtype)
    source: Source = getattr(_thread_local, "source", _source)
    array = source(dims, kind)
    return np.empty(dims, kind) if array is None else array


def set_output_source(source: Source) -> None:
    """Set the allocator that `empty_output` tries first. Called by the worker."""
    global _source
    _source = source


def set_output_source_of_thread(source: Source) -> None:
    """Set the allocator that `empty_output` tries first in this thread. Called by a worker that runs in a thread."""
    _thread_local.source = source
