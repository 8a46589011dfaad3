"""Warm-up: requests that a model is given before it is called ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.dtypes import normalise_dtype, to_numpy_dtype, to_triton_datatype

__all__ = ["ModelWarmup", "WarmupInput"]

_SOURCES = ("zero_data", "random_data", "input_data_file")


@dataclass
class WarmupInput:
    """Where the values of one warm-up input come from. Exactly one source has to be chosen.

    Args:
        dtype: data type, as for `Tensor`
        shape: shape without the batch axis; every dimension is known
        zero_data: zeros (empty strings for BYTES)
        random_data: random values, the same ones on every start
        input_data_file: path of a .npy file, with or without a batch axis

    Raises:
        PyTritonBadParameterError: unusable dtype or shape, or not exactly one source
    """

    dtype: Any
    shape: tuple[int, ...]
    zero_data: bool = False
    random_data: bool = False
    input_data_file: str | Path | None = None

    def __post_init__(self) -> None:
        self.dtype = normalise_dtype(self.dtype)
        self.shape = tuple(int(size) for size in self.shape)
        if any(size < 0 for size in self.shape):
            raise PyTritonBadParameterError(
                f"A warm-up input needs a shape without dynamic dimensions, got {self.shape}."
            )
        chosen = [source for source in _SOURCES if getattr(self, source)]
        if len(chosen) != 1:
            raise PyTritonBadParameterError(
                f"A warm-up input needs exactly one of {', '.join(_SOURCES)}; "
                f"got {' and '.join(chosen) or 'none'}."
            )

    def generate(self, batch_size: int, seed: int = 0) -> NDArray[Any]:
        """Make the array of one warm-up request.

        Args:
            batch_size: size of the batch axis; 0 for a model without one
            seed: start of the pseudo-random numbers

        Returns:
            array of shape ``(batch_size, *shape)``, or ``shape`` when `batch_size` is 0

        Raises:
            PyTritonBadParameterError: the file's array does not fit `shape`
        """
        shape = (batch_size, *self.shape) if batch_size else self.shape
        dtype = to_numpy_dtype(to_triton_datatype(self.dtype))
        if self.input_data_file is not None:
            return self._from_file(shape, dtype, Path(self.input_data_file))
        if dtype.kind == "O":
            return self._texts(shape, seed)
        if self.zero_data:
            return np.zeros(shape, dtype)
        random = np.random.default_rng(seed)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
        if dtype.kind == "b":
            return random.integers(0, 2, shape).astype(dtype)
        values: NDArray[Any] = random.random(shape)
        return values.astype(dtype)

    def _texts(self, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
        values = np.full(shape, b"", dtype=np.object_)
        if self.random_data:
            random = np.random.default_rng(seed)
            for index in np.ndindex(*shape):
                values[index] = random.bytes(8)
        return values

    def _from_file(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: Path) -> NDArray[Any]:
        # Object arrays would have to be unpickled; byte strings fit into numpy's S arrays.
        loaded: NDArray[Any] = np.load(path, allow_pickle=False).astype(dtype)
        if loaded.shape == self.shape:
            return np.array(np.broadcast_to(loaded, shape))
        batched = len(shape) > len(self.shape)
        if not batched or loaded.shape[1:] != self.shape or loaded.shape[:1] == (0,):
            raise PyTritonBadParameterError(
                f"The array in {path} has the shape {loaded.shape}; a warm-up input of shape "
                f"{self.shape} needs that shape, or it with a batch axis in front."
            )
        rows = np.arange(shape[0]) % loaded.shape[0]  # repeat or cut the file's batch
        taken: NDArray[Any] = loaded[rows]
        return taken


@dataclass
class ModelWarmup:
    """One kind of warm-up request.

    Args:
        name: name of the warm-up, for logs
        batch_size: size of the batch axis (1 for models without batching)
        inputs: input name -> where its values come from
        count: how many times the request is made
    """

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int = 1

    def __post_init__(self) -> None:
        for field in ("batch_size", "count"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PyTritonBadParameterError(
                    f"The `{field}` of warm-up {self.name!r} must be an integer from 1, "
                    f"got {value!r}."
                )
        for input_name, source in self.inputs.items():
            if not isinstance(source, WarmupInput):
                raise PyTritonBadParameterError(
                    f"The input {input_name!r} of warm-up {self.name!r} must be a WarmupInput, "
                    f"got {source!r}."
                )
