"""Converts argument values to numpy arrays, without a copy if possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytriton._protocol.arguments import with_article
from pytriton._protocol.numpy_types import MASKED, is_masked
from pytriton.runner.errors import RunnerArgumentError

__all__ = ["as_bytes", "to_array"]

Array = npt.NDArray[Any]
#: DLDeviceType of memory that this process can read (dlpack.h): CPU, pinned, managed.
_READABLE = (1, 3, 13)


def to_array(name: str, value: Any) -> Array:
    """Convert a value to an array.

    Accepts arrays, objects that support DLPack (torch, cupy, jax) or numpy's interfaces (PIL images), pandas objects,
    numbers, bytes, text, and lists of these.

    Raises:
        RunnerArgumentError: the type is not supported, a list contains lists of different lengths, or an array is
            masked.
    """
    if is_masked(value):
        raise RunnerArgumentError(f"Input {name!r} {MASKED}")
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "to_numpy"):  # pandas, polars, pyarrow
        return np.asarray(value.to_numpy())
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return _from_dlpack(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RunnerArgumentError(f"Input {name!r} is not a tensor: {error}") from None
    if array.dtype.kind == "O" and array.ndim == 0 and not isinstance(value, bytes):
        raise RunnerArgumentError(
            f"Input {name!r} cannot be {with_article(type(value).__name__)}: pass a numpy array, an object that "
            f"can be converted to one (DLPack, pandas, PIL), a number, a string, or a list of these"
        )
    return array


def as_bytes(name: str, array: Array) -> Array:
    """Convert an array for a BYTES input to an array of bytes. Strings are encoded as UTF-8.

    Raises:
        RunnerArgumentError: the array contains values that are neither bytes nor strings.
    """
    if array.dtype.kind == "S":
        return array
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8").astype(np.object_)
    if array.dtype.kind != "O":
        raise RunnerArgumentError(
            f"Input {name!r} must contain bytes or strings (BYTES), got {array.dtype}"
        )
    encoded = np.empty(array.shape, np.object_)
    for place, item in np.ndenumerate(array):
        if not isinstance(item, (bytes, str)):
            raise RunnerArgumentError(
                f"Input {name!r} must contain only bytes or strings (BYTES), but contains "
                f"{with_article(type(item).__name__)}"
            )
        encoded[place] = item.encode() if isinstance(item, str) else item
    return encoded


def _from_dlpack(name: str, value: Any) -> Array:
    if getattr(value, "requires_grad", False):
        value = value.detach()
    device = value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else 1
    if device not in _READABLE:
        # The array must be copied to the host in any case, so its own library should do it.
        fetch = getattr(value, "get", None) or getattr(value, "cpu", None)
        if fetch is None:
            raise RunnerArgumentError(
                f"Input {name!r} is on a device (DLPack type {int(device)}): copy it to the CPU first"
            )
        return to_array(name, fetch())
    try:
        return np.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        # The type is not supported by numpy's DLPack implementation.
        return np.asarray(value)
