"""`Tensor`: a named array with one of Triton's data types."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from pytriton._protocol import numpy_types
from pytriton._protocol.numpy_types import MASKED, is_masked
from pytriton.pb_utils.errors import TritonModelException
from pytriton.pb_utils.helpers import DATATYPES, datatype_of

__all__ = ["Tensor"]

Array = npt.NDArray[Any]


class Tensor:
    """An input or output of a model.

    BF16, which numpy does not support, is stored as 16-bit words. If the package ml_dtypes is installed, the
    constructor accepts arrays of its type `bfloat16`, and `as_numpy` returns them. With DLPack, BF16 tensors can be
    exchanged with frameworks that support the type.

    Example:
        >>> tensor = Tensor("y", np.zeros((2, 3), np.float32))
        >>> tensor.name(), tensor.shape(), tensor.as_numpy().dtype.name
        ('y', [2, 3], 'float32')
    """

    __slots__ = ("_array", "_datatype", "_name")

    def __init__(self, name: str, tensor: Array, /) -> None:
        """Create a tensor. Raise TypeError or TritonModelException if the name, array or dtype is invalid."""
        if not isinstance(name, str) or not isinstance(tensor, np.ndarray):
            raise TypeError(
                f"Tensor requires a name and a numpy array, got {type(name).__name__} and {type(tensor).__name__}"
            )
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if is_masked(tensor):
            raise TritonModelException(f"Tensor {name!r} {MASKED}.")
        datatype = datatype_of(tensor.dtype)
        if datatype is None:
            raise TritonModelException(
                f"Tensor {name!r}: the dtype {tensor.dtype} is not supported."
                + (" Strings need dtype object." if tensor.dtype.kind == "U" else "")
            )
        if not tensor.flags.c_contiguous:
            tensor = np.ascontiguousarray(tensor)
        if datatype == "BF16":
            tensor = tensor.view(np.uint16)
        elif not tensor.dtype.isnative:
            tensor = tensor.astype(tensor.dtype.newbyteorder("="))
        self._name = name
        self._array = tensor
        self._datatype = datatype

    @classmethod
    def of(cls, name: str, array: Array, datatype: str) -> Tensor:
        """Create a tensor from an array that is known to be valid (for BF16, its words). Called by workers."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        tensor._datatype = datatype
        return tensor

    @property
    def datatype(self) -> str:
        """Triton's name of the data type, such as "FP32"."""
        return self._datatype

    @property
    def raw(self) -> Array:
        """The array; for BF16, its words."""
        return self._array

    def name(self) -> str:
        """Return the name."""
        return self._name

    def shape(self) -> list[int]:
        """Return the shape, including the batch axis."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the data type as a TRITONSERVER_DataType."""
        return DATATYPES.index(self._datatype) + 1

    def is_cpu(self) -> bool:
        """Return whether the data is in CPU memory. In a worker, it always is."""
        return True

    def as_numpy(self) -> Array:
        """Return the array itself, not a copy: changing it changes the tensor.

        Raises:
            TritonModelException: the type is BF16 and ml_dtypes is not installed.
        """
        if self._datatype != "BF16":
            return self._array
        try:
            return self._array.view(numpy_types.element_dtype("BF16"))
        except ImportError:
            raise TritonModelException(
                f"Tensor {self._name!r} has the type BF16, which numpy does not support. Install ml_dtypes in "
                f"the worker's environment, or use DLPack (torch.from_dlpack(tensor))."
            ) from None

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the data, without copying it.

        Raises:
            TritonModelException: the tensor contains strings, which DLPack does not support.
        """
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException(f"Tensor {self._name!r}: DLPack does not support strings.")
        return export_dlpack(self._array, bfloat=self._datatype == "BF16")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Create a tensor from a DLPack capsule, or from an object with `__dlpack__`.

        Data in CPU memory is not copied.

        Raises:
            TritonModelException: the data is not contiguous in C order, or Triton does not support its type.
        """
        array, is_bfloat = import_dlpack(tensor)
        if not array.flags.c_contiguous:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order "
                "are supported."
            )
        return Tensor.of(name, array, "BF16") if is_bfloat else Tensor(name, array)

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype}, {self.shape()})"


def optional_tensors(given: Any, what: str) -> list[Tensor]:
    """Validate a list of tensors, which may be None, and return it.

    Raises:
        TypeError: the value is not a list of tensors.
    """
    found: Optional[list[Tensor]] = list(given) if isinstance(given, (list, tuple)) else None
    if found is None or not all(isinstance(one, Tensor) for one in found):
        raise TypeError(f"{what} must be a list of pb_utils.Tensor, got {given!r:.200}")
    return found


# ── DLPack, including bfloat16 and bool: numpy lacks the former, and supports the latter from 1.25 on ─
#
# DLPack 0.8, `dlpack.h`: a capsule named "dltensor" points to a DLManagedTensor, which begins with the DLTensor: data at
# byte 0, type code at byte 20. A bfloat16 tensor is exported, or imported, as 16-bit words whose type code is changed in the
# capsule; a bool tensor likewise, as bytes.


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
    """Wraps a capsule in an object with `__dlpack__`, which numpy requires."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


def export_dlpack(array: Array, *, bfloat: bool) -> Any:
    """Return a DLPack capsule of an array's data. With `bfloat`, the 16-bit words are declared as bfloat16."""
    if not array.flags.writeable:  # DLPack cannot represent read-only arrays, so numpy refuses them
        array = array.copy()
    is_bool = array.dtype == np.bool_
    words = array.view(np.uint8) if is_bool else array
    capsule = words.__dlpack__()  # type: ignore[attr-defined, unused-ignore]
    if bfloat:
        _type_code(capsule).value = _BFLOAT_CODE
    elif is_bool:
        _type_code(capsule).value = _BOOL_CODE
    return capsule


def import_dlpack(source: Any) -> tuple[Array, bool]:
    """Return the array from a capsule or an object with `__dlpack__`, and whether it contains bfloat16 words.

    Raises:
        TritonModelException: it is not a DLPack tensor, or its type or memory is not supported.
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
            f"Cannot use {type(source).__name__} as a DLPack tensor: {error}"
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
            raise ValueError("its data is not in CPU memory")
        return _capsule_of(to_cpu())
    return source.__dlpack__()
