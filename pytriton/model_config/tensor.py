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
        shape: size of each dimension, -1 if it may differ between requests. Excludes the batch axis of
            a batching model.
        dtype: data type, see `pytriton.model_config.dtypes.normalise_dtype` for all the spellings.
            Stored as a numpy scalar type (``np.float32``). ``str``, ``bytes`` and ``object`` all map to
            Triton's BYTES: an input of ``str`` arrives as an object array of ``str`` (UTF-8), the others
            as one of
            ``bytes``. numpy drops trailing NULs of ``bytes`` arrays, so use
            ``object`` for binary data.
        name: name of the tensor; default: ``INPUT_1``, ``INPUT_2``... and ``OUTPUT_1``...
            by position
        optional: a client need not send this input (inputs only)

    Raises:
        PyTritonBadParameterError: a dtype unknown to Triton, an invalid shape or name

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
        object.__setattr__(self, "shape", _checked_shape(self.shape, self.name))
        object.__setattr__(self, "dtype", normalise_dtype(self.dtype))
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise PyTritonBadParameterError(
                f"The name of a tensor has to be a non-empty string, got {self.name!r}. "
                "Leave it out for INPUT_1/OUTPUT_1 names."
            )


def shape_fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Return whether an array of this shape fits a tensor's declaration, where -1 matches any size."""
    return len(shape) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(shape, declared)
    )


def _checked_shape(shape: Any, name: str | None) -> tuple[int, ...]:
    where = f"shape of tensor {name!r}" if name else "shape of a tensor"
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
        raise PyTritonBadParameterError(
            f"The {where} has to be a tuple of integers, got {shape!r}. "
            "Write (3,) for one dimension of 3 and (-1,) for one of any size."
        )
    return tuple(_checked_dimension(dimension, shape, where) for dimension in shape)


def _checked_dimension(dimension: Any, shape: Any, where: str) -> int:
    try:
        if isinstance(dimension, bool):
            raise TypeError
        size = operator.index(dimension)
    except TypeError:
        raise PyTritonBadParameterError(
            f"The {where} has to consist of integers, got {dimension!r} in {shape!r}."
        ) from None
    if size < 1 and size != -1:
        raise PyTritonBadParameterError(
            f"The {where} has the dimension {size} in {shape!r}: a size must be at least 1, "
            "or -1 for any size (0 included)."
        )
    return size
