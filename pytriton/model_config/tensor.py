"""`Tensor`: name, type and shape of one input or output of a model."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytriton._protocol.arguments import closest_keywords
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.dtypes import normalise_dtype

__all__ = ["Tensor", "shape_fits"]


@closest_keywords
@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Args:
        shape: size of each dimension; -1 for a dimension of any size. Does not include the batch axis.
        dtype: data type; `pytriton.model_config.dtypes.normalise_dtype` lists all spellings.
            Stored as a numpy scalar type (``np.float32``). ``str``, ``bytes`` and ``object`` all map to
            Triton's BYTES. An input declared as ``str`` arrives as an object array of ``str`` (decoded as UTF-8);
            one declared as ``bytes`` or ``object`` arrives as an object array of ``bytes``. numpy drops
            trailing NULs of ``bytes`` arrays, so use ``object`` for binary data.
        name: name of the tensor; default: ``INPUT_1``, ``INPUT_2``... or ``OUTPUT_1``, ``OUTPUT_2``...
            by position
        optional: requests may omit this input; not allowed for outputs

    Raises:
        PyTritonBadParameterError: Triton does not support the dtype, or the shape or name is invalid

    Example:
        >>> import numpy as np
        >>> Tensor(name="image", shape=(224, 224, 3), dtype=np.float32).shape
        (224, 224, 3)
    """

    shape: tuple[int, ...]
    dtype: Any
    name: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        # object.__setattr__ lets a frozen dataclass normalise its own fields.
        object.__setattr__(self, "shape", _validate_shape(self.shape, self.name))
        object.__setattr__(self, "dtype", normalise_dtype(self.dtype))
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise PyTritonBadParameterError(
                f"The name of a tensor must be a non-empty string, got {self.name!r}. "
                "Leave it out to get a name such as INPUT_1 or OUTPUT_1."
            )


def shape_fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Return whether an array's shape matches a tensor's declared shape, in which -1 matches any size."""
    return len(shape) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(shape, declared)
    )


def _validate_shape(shape: Any, name: str | None) -> tuple[int, ...]:
    where = f"shape of tensor {name!r}" if name else "shape of a tensor"
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
        raise PyTritonBadParameterError(
            f"The {where} must be a tuple of integers, got {shape!r}. "
            "Write (3,) for one dimension of size 3, or (-1,) for one dimension of any size."
        )
    return tuple(_validate_dimension(dimension, shape, where) for dimension in shape)


def _validate_dimension(dimension: Any, shape: Any, where: str) -> int:
    try:
        if isinstance(dimension, bool):
            raise TypeError
        size = operator.index(dimension)
    except TypeError:
        raise PyTritonBadParameterError(
            f"The {where} must consist of integers, got {dimension!r} in {shape!r}."
        ) from None
    if size < 1 and size != -1:
        raise PyTritonBadParameterError(
            f"The {where} contains {size} in {shape!r}. A dimension must be at least 1, "
            "or -1 for any size (including 0)."
        )
    return size
