"""Additions to the python backend's stub: raw BYTES tensors, BF16 tensors, and safe release of response iterators.

BYTES. The stub converts every BYTES tensor to an object array, and back, by calling two functions of the module
`triton_python_backend_utils` that loop over the elements. We replace them with functions that pass the serialized bytes
unchanged. If a stub does not call them, `as_numpy` returns an object array as usual, and we encode it.

DLPack. An input's address is read from its DLPack capsule, which costs half as much as creating an array. numpy does not
support BF16, so an output of that type is passed as a capsule of 16-bit words whose type code was changed to bfloat16.
(DLPack 0.8, `dlpack.h`: the data pointer is at byte 0 of the DLTensor, the type code at byte 20.) The stub gives a
consumed capsule a destructor that always fails (seen in Triton 2.51), so we remove the destructor. By then, the tensor
itself owns the memory.

Streams of other models. When an iterator over their responses has ended, a thread of the stub drops its reference without
holding the GIL. If that is the last reference, freeing the responses' arrays aborts the process
("PyThreadState_Get: the function must be called with the GIL held", seen in Triton 2.51), and the called model's stub
waits for it forever. So we hold the iterator until no other reference is left. (Behind the object's head, pybind11's
`simple_value_holder` has an address and a std::shared_ptr. libstdc++ keeps the number of owners behind a pointer.)
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from pytriton._protocol.numpy_types import BY_DTYPE

Array = npt.NDArray[Any]

_DLTENSOR = b"dltensor"
_word_at = ctypes.c_uint64.from_address
_TYPE_CODE_OFFSET = 20
_BFLOAT_CODE = 4
#: DLPack's type code of each kind of numpy's dtypes (dlpack.h).
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
#: DLPack's type code and number of bits -> Triton's datatype.
_DLPACK_TYPES = {
    **{(_DLPACK_CODES[dtype.kind], 8 * dtype.itemsize): name for dtype, name in BY_DTYPE.items()},
    (_BFLOAT_CODE, 16): "BF16",
}

#: Interval between checks of an iterator's owners, and the maximum time for which it is held, in seconds.
_POLL_INTERVAL_S = 0.001
_HELD_S = 30.0
_HELD: deque[tuple[float, Any]] = deque()
_HEAD = object.__basicsize__
_POINTER = ctypes.sizeof(ctypes.c_void_p)

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
_set_destructor.restype = ctypes.c_int
_set_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]


# Not NDArray: from numpy 2.5 on it is an alias (PEP 695), which cannot be subclassed.
class _Serialized(np.ndarray[Any, np.dtype[Any]]):
    """A BYTES tensor in serialized form, as a flat uint8 array. Ignores `reshape`, which the stub calls."""

    def reshape(self, *shape: Any, **options: Any) -> _Serialized:
        return self


@lru_cache(maxsize=256)
def _placeholder(shape: tuple[int, ...]) -> Array:
    """Return an object array of this shape without allocating its elements, which would take long."""
    return np.broadcast_to(np.array(None, object), shape)


class BytesTensors:
    """Raw access to BYTES tensors. Create only one per process, since it patches the stub's module."""

    def __init__(self) -> None:
        self._outgoing: bytes | memoryview | None = None
        self._making = threading.Lock()  #: calls to other models create tensors in other threads
        self._serialize = pb_utils.serialize_byte_tensor
        pb_utils.deserialize_bytes_tensor = self._keep_serialized
        pb_utils.serialize_byte_tensor = self._take_outgoing

    def serialized(self, tensor: Any) -> Array | None:
        """Return a tensor's serialized bytes as a uint8 array, or None if this stub has already decoded them."""
        array: Array = tensor.as_numpy()
        return array.view(np.ndarray) if isinstance(array, _Serialized) else None

    def make(self, name: str, shape: list[int], data: memoryview) -> Any | None:
        """Create a pb_utils.Tensor from serialized bytes. Return None if this stub needs an object array."""
        with self._making:
            self._outgoing = data
            tensor = pb_utils.Tensor(name, _placeholder(tuple(shape)))
            taken = self._outgoing is None
            self._outgoing = None
        return tensor if taken else None

    def _keep_serialized(self, encoded: Any) -> Array:
        return np.asarray(encoded).view(_Serialized)

    def _take_outgoing(self, array: Array) -> Any:
        if self._outgoing is None:
            return self._serialize(array)
        data, self._outgoing = self._outgoing, None
        # The stub would convert b"" to one byte, so an empty tensor gets the result of the original function.
        return bytes(data) if data else self._serialize(array)


class _Capsule:
    """Wrapper that passes one DLPack capsule to the stub through the DLPack protocol."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU


def address_of(tensor: Any) -> int:
    """Return the address of a numeric tensor's data in this process, from its DLTensor."""
    capsule = tensor.__dlpack__()
    address: int = _word_at(_get_pointer(capsule, _DLTENSOR)).value
    return address


def place_of(tensor: Any) -> tuple[str, int] | None:
    """Return a tensor's datatype and the address of its data. Return None for BYTES, which DLPack does not support."""
    try:
        capsule = tensor.__dlpack__()
    except Exception as error:  # the stub raises its own error type
        if "string" in str(error).lower():
            return None
        raise
    pointer = _get_pointer(capsule, _DLTENSOR)
    code, bits = (ctypes.c_uint8 * 2).from_address(pointer + _TYPE_CODE_OFFSET)
    address: int = _word_at(pointer).value
    return _DLPACK_TYPES[code, bits], address


def bf16_tensor(name: str, words: Array) -> Any:
    """Create a pb_utils.Tensor of type BF16 from 16-bit words. DLPack requires `words` to be writable."""
    capsule = words.__dlpack__()
    pointer = _get_pointer(capsule, _DLTENSOR)
    ctypes.c_uint8.from_address(pointer + _TYPE_CODE_OFFSET).value = _BFLOAT_CODE
    tensor = pb_utils.Tensor.from_dlpack(name, _Capsule(capsule))
    _set_destructor(capsule, None)
    return tensor


def hold_until_last_owner(iterator: Any) -> None:
    """Wait until the caller holds the last reference to an iterator that has ended.

    If the owners cannot be counted, keep a reference for `_HELD_S`.
    """
    now = time.monotonic()
    while _owners(iterator) > 1 and time.monotonic() < now + _HELD_S:
        time.sleep(_POLL_INTERVAL_S)
    if _owners(iterator) != 1:
        _HELD.append((time.monotonic(), iterator))
    while _HELD and _HELD[0][0] < now - _HELD_S:
        _HELD.popleft()


def _owners(iterator: Any) -> int:
    """Return the number of owners of the C++ object in a pybind11 object; 0 if the object's layout is unknown."""
    if type(iterator).__basicsize__ < _HEAD + 3 * _POINTER:
        return 0
    value, held, counts = (ctypes.c_size_t * 3).from_address(id(iterator) + _HEAD)
    if value != held or not counts:
        return 0
    return int(ctypes.c_int32.from_address(counts + _POINTER).value)
