"""`Tensor`: a name and an array, in Triton's data types."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from pytriton._protocol import datatypes
from pytriton._protocol.cast_checks import MASKED, is_masked
from pytriton.pb_utils import dlpack
from pytriton.pb_utils.errors import TritonModelException
from pytriton.pb_utils.helpers import DATATYPES, datatype_of

__all__ = ["Tensor"]

Array = npt.NDArray[Any]


class Tensor:
    """An input or output of a model.

    BF16, which numpy lacks, is stored as 16-bit words; with the package ml_dtypes, `as_numpy` returns
    them as its `bfloat16` and the constructor accepts such arrays. DLPack passes them to frameworks that
    support the type.

    Example:
        >>> tensor = Tensor("y", np.zeros((2, 3), np.float32))
        >>> tensor.name(), tensor.shape(), tensor.as_numpy().dtype.name
        ('y', [2, 3], 'float32')
    """

    __slots__ = ("_array", "_datatype", "_name")

    def __init__(self, name: str, tensor: Array, /) -> None:
        """Create a tensor; raise TypeError or TritonModelException for an invalid name, array or dtype."""
        if not isinstance(name, str) or not isinstance(tensor, np.ndarray):
            raise TypeError(
                f"Tensor takes a name and a numpy array, got {type(name).__name__} and {type(tensor).__name__}"
            )
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if is_masked(tensor):
            raise TritonModelException(f"Tensor {name!r} {MASKED}.")
        datatype = datatype_of(tensor.dtype)
        if datatype is None:
            raise TritonModelException(
                f"Tensor {name!r}: the dtype {tensor.dtype} is not supported."
                + (" Texts have to be of the dtype object." if tensor.dtype.kind == "U" else "")
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
        """Return a tensor of a known valid array (for BF16: its words). For workers."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        tensor._datatype = datatype
        return tensor

    @property
    def datatype(self) -> str:
        """Return Triton's name of the type ("FP32")."""
        return self._datatype

    @property
    def raw(self) -> Array:
        """Return the array; for BF16 its words."""
        return self._array

    def name(self) -> str:
        """The name."""
        return self._name

    def shape(self) -> list[int]:
        """Return the shape, including the batch axis."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the type as a TRITONSERVER_DataType."""
        return DATATYPES.index(self._datatype) + 1

    def is_cpu(self) -> bool:
        """Return whether the data are in CPU memory: always, in a worker."""
        return True

    def as_numpy(self) -> Array:
        """Return the array itself: changing it changes the tensor.

        Raises:
            TritonModelException: BF16 without ml_dtypes.
        """
        if self._datatype != "BF16":
            return self._array
        try:
            return self._array.view(datatypes.element_dtype("BF16"))
        except ImportError:
            raise TritonModelException(
                f"Tensor {self._name!r} is of type BF16, which numpy does not have. Install ml_dtypes into the "
                "worker's environment, or take the tensor by DLPack (torch.from_dlpack(tensor))."
            ) from None

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the data, without a copy.

        Raises:
            TritonModelException: strings, which DLPack does not support.
        """
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException(f"Tensor {self._name!r}: DLPack has no strings.")
        return dlpack.export(self._array, bfloat=self._datatype == "BF16")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Return a tensor of a DLPack capsule, or of an object with `__dlpack__`; data on the CPU are not copied.

        Raises:
            TritonModelException: it is not contiguous in C order, or Triton lacks the type.
        """
        array, is_bfloat = dlpack.take(tensor)
        if not array.flags.c_contiguous:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order "
                "are supported."
            )
        return Tensor.of(name, array, "BF16") if is_bfloat else Tensor(name, array)

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype}, {self.shape()})"


def optional_tensors(given: Any, what: str) -> list[Tensor]:
    """Validate an optional list of tensors and return it.

    Raises:
        TypeError: not a list of tensors.
    """
    found: Optional[list[Tensor]] = list(given) if isinstance(given, (list, tuple)) else None
    if found is None or not all(isinstance(one, Tensor) for one in found):
        raise TypeError(f"{what} has to be a list of pb_utils.Tensor, got {given!r:.200}")
    return found
