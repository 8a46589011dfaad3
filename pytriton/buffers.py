"""`empty_output`: an array to compute an output into, in the memory that the answer is sent from."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

__all__ = ["empty_output", "set_output_source"]

Array = npt.NDArray[Any]
#: Returns an array of this shape and dtype, or None where an ordinary one will do.
Source = Callable[["tuple[int, ...]", "np.dtype[Any]"], Union[Array, None]]


def _ordinary(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    return None


_source: Source = _ordinary
_here = threading.local()


def empty_output(shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return a new, writable, C-contiguous array; an output that is computed into it is not copied.

    It is like `numpy.empty`, and lies in memory that Triton's proxy reads. Return it, or contiguous
    pieces of it (such as those into which ``@batch`` cuts it), as outputs of its very dtype. Ask for a
    new one in each call: the memory of one that nothing refers to any longer is used again.

    It may be kept, too, and is never another call's memory then; but what can still be changed when
    the callable has returned is copied like any other array. Where no call of a model's callable is
    running (in a factory, in your tests), for strings, and below 256 KiB, where a copy is cheaper, it
    is `numpy.empty` itself.

    Args:
        shape: with the batch axis
        dtype: that of the output; another one is cast, by a copy

    Raises:
        MemoryError: the machine has not that much left
        ValueError, TypeError: no shape, or no dtype

    Example:
        >>> @batch                                                   # doctest: +SKIP
        ... def infer(x):
        ...     y = pytriton.empty_output((len(x), 1000), np.float32)
        ...     np.matmul(x, WEIGHTS, out=y)
        ...     return {"y": y}
    """
    dims = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    kind: np.dtype[Any] = np.dtype(dtype)
    source: Source = getattr(_here, "source", _source)
    array = source(dims, kind)
    return np.empty(dims, kind) if array is None else array


def set_output_source(source: Source) -> None:
    """Have `empty_output` ask there first. Called by the worker."""
    global _source
    _source = source


def set_output_source_of_thread(source: Source) -> None:
    """Have `empty_output` ask there first in this thread. Called by a worker that is a thread."""
    _here.source = source
