"""DLPack conversion including bfloat16 and bool: numpy lacks the former, and supports the latter from 1.25 on.

DLPack 0.8, `dlpack.h`: a capsule named "dltensor" points to a DLManagedTensor, which begins with the
DLTensor: data at byte 0, type code at byte 20. A bfloat16 tensor is exported, or imported, as 16-bit
words whose type code is changed in the capsule; a bool tensor likewise, as bytes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from pytriton.pb_utils.errors import TritonModelException

Array = npt.NDArray[Any]

#: kDLCPU
CPU = 1
_DLTENSOR = b"dltensor"
_TYPE_CODE_OFFSET = 20
_UINT_CODE = 1
_BFLOAT_CODE = 4
_BOOL_CODE = 6

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Capsule:
    """Passes one capsule to numpy, which requests it through the protocol."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


def export(array: Array, *, bfloat: bool) -> Any:
    """Return a capsule of an array's data; with `bfloat`, of 16-bit words as bfloat16."""
    if not array.flags.writeable:  # DLPack cannot express this, and numpy refuses
        array = array.copy()
    is_bool = array.dtype == np.bool_
    words = array.view(np.uint8) if is_bool else array
    capsule = words.__dlpack__()  # type: ignore[attr-defined, unused-ignore]
    if bfloat:
        _type_code(capsule).value = _BFLOAT_CODE
    elif is_bool:
        _type_code(capsule).value = _BOOL_CODE
    return capsule


def take(source: Any) -> tuple[Array, bool]:
    """Return the array of a capsule, or of an object with `__dlpack__`, and whether its words are bfloat16.

    Raises:
        TritonModelException: it is not a DLPack tensor, or has a type or memory that numpy does not support.
    """
    try:
        capsule = _capsule_of(source)
        code = _type_code(capsule)
        is_bfloat, is_bool = code.value == _BFLOAT_CODE, code.value == _BOOL_CODE
        if is_bfloat or is_bool:
            code.value = _UINT_CODE
        array: Array = np.from_dlpack(_Capsule(capsule))  # type: ignore[arg-type, unused-ignore]
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        raise TritonModelException(
            f"{type(source).__name__} cannot be taken by DLPack: {error}"
        ) from error
    return (array.view(np.bool_) if is_bool else array), is_bfloat


def _type_code(capsule: Any) -> ctypes.c_uint8:
    return ctypes.c_uint8.from_address(_get_pointer(capsule, _DLTENSOR) + _TYPE_CODE_OFFSET)


def _capsule_of(source: Any) -> Any:
    if not hasattr(source, "__dlpack__"):
        return source  # a capsule
    device = getattr(source, "__dlpack_device__", None)
    if device is not None and device()[0] != CPU:
        to_cpu = getattr(source, "cpu", None) or getattr(source, "get", None)  # torch; cupy
        if to_cpu is None:
            raise ValueError("its data are not in memory of the CPU")
        return _capsule_of(to_cpu())
    return source.__dlpack__()
