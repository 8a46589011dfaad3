"""Warm-up requests, which a model processes before it counts as ready.

Each worker generates and processes them while it loads, not Triton. Therefore replacements, standby workers and
added instances are warmed up, too, and a failing warm-up fails the registration. Random data is the same on
every start, because it is seeded with the names of the warm-up and of the input.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pytriton._protocol.arguments import closest_keywords, plain
from pytriton._protocol.numpy_types import lost_by_cast
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.dtypes import normalise_dtype, to_numpy_dtype, to_triton_datatype
from pytriton.model_config.tensor import Tensor, shape_fits

__all__ = ["ModelWarmup", "WarmupInput", "check_warmups"]

_SOURCES = ("zero_data", "random_data", "input_data_file")


@closest_keywords
@dataclass
class WarmupInput:
    """Source of the values for one input of a warm-up request.

    Set exactly one of `zero_data`, `random_data` and `input_data_file`.

    Args:
        dtype: data type, as for `Tensor`
        shape: shape without the batch axis; without dynamic dimensions
        zero_data: use zeros (empty byte strings for BYTES)
        random_data: use random values, which are the same on every start
        input_data_file: use the array in a .npy file: a path, or a file opened for reading in binary mode. The array
            may have a batch axis; it is repeated or cut to the batch size. The file is read at registration.

    Raises:
        PyTritonBadParameterError: the dtype or shape is invalid, or not exactly one source is set

    Example:
        >>> WarmupInput(np.float32, (2,), zero_data=True).generate(batch_size=1)
        array([[0., 0.]], dtype=float32)
    """

    dtype: Any
    shape: tuple[int, ...]
    zero_data: bool = False
    random_data: bool = False
    input_data_file: str | Path | BinaryIO | None = None

    def __post_init__(self) -> None:
        self.dtype = normalise_dtype(self.dtype)
        self.shape = tuple(int(size) for size in self.shape)
        if any(size < 0 for size in self.shape):
            raise PyTritonBadParameterError(
                f"The shape of a warm-up input cannot have dynamic dimensions, got {self.shape}."
            )
        chosen = [source for source in _SOURCES if getattr(self, source)]
        if len(chosen) != 1:
            raise PyTritonBadParameterError(
                f"Set exactly one of {', '.join(_SOURCES)} for a warm-up input, "
                f"got {' and '.join(chosen) or 'none'}."
            )

    def generate(self, batch_size: int, seed: int = 0) -> NDArray[Any]:
        """Generate the input's array for one warm-up request.

        Args:
            batch_size: length of the batch axis; 0: no batch axis
            seed: seed of the pseudo-random numbers

        Returns:
            an array of shape ``(batch_size, *shape)``, or ``shape`` if `batch_size` is 0

        Raises:
            PyTritonBadParameterError: the file cannot be read, or its array does not fit `shape`
        """
        shape = (batch_size, *self.shape) if batch_size else self.shape
        dtype = to_numpy_dtype(to_triton_datatype(self.dtype))
        if self.input_data_file is not None:
            return self._fit(self._cast(self._load_file(), dtype), shape)
        if dtype.kind == "O":
            return self._byte_strings(shape, seed)
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

    def _byte_strings(self, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
        values = np.full(shape, b"", dtype=np.object_)
        if self.random_data:
            random = np.random.default_rng(seed)
            for index in np.ndindex(*shape):
                values[index] = random.bytes(8)
        return values

    def file_content(self) -> bytes:
        """Return the contents of `input_data_file`; empty if it is not set.

        Raises:
            PyTritonBadParameterError: the file cannot be read
        """
        if self.input_data_file is None:
            return b""
        try:
            if isinstance(self.input_data_file, (str, Path)):
                return Path(self.input_data_file).read_bytes()
            self.input_data_file.seek(0)
            return self.input_data_file.read()
        except OSError as error:
            raise PyTritonBadParameterError(
                f"Cannot read the `input_data_file` of a warm-up input: {error}"
            ) from error

    def _load_file(self) -> NDArray[Any]:
        try:
            # Object arrays would require unpickling; byte strings can be stored in numpy's S arrays.
            loaded: NDArray[Any] = np.load(io.BytesIO(self.file_content()), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise PyTritonBadParameterError(
                f"Cannot read an array from the `input_data_file` {self.input_data_file}: {error}. "
                "Write the file with np.save, and byte strings as an array of dtype S."
            ) from error
        return loaded

    def _cast(self, loaded: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        lost = lost_by_cast(loaded, dtype) if loaded.dtype.kind in "biuf" else None
        if lost is not None and dtype.kind != "O":
            raise PyTritonBadParameterError(
                f"Cannot convert the array in {self.input_data_file} to {dtype}, the warm-up input's dtype: {lost}."
            )
        return loaded.astype(dtype)

    def _fit(self, loaded: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if loaded.shape == self.shape:
            return np.array(np.broadcast_to(loaded, shape))
        batched = len(shape) > len(self.shape)
        if not batched or loaded.shape[1:] != self.shape or loaded.shape[:1] == (0,):
            raise PyTritonBadParameterError(
                f"The array in {self.input_data_file} has the shape {loaded.shape}, but the warm-up input has "
                f"the shape {self.shape}. The array must have that shape, optionally with a batch axis in front."
            )
        rows = np.arange(shape[0]) % loaded.shape[0]  # repeat or cut the file's batch
        taken: NDArray[Any] = loaded[rows]
        return taken


@closest_keywords
@dataclass
class ModelWarmup:
    """A warm-up request, which every worker of the model processes before it counts as ready.

    Args:
        name: name of the warm-up, shown in logs
        batch_size: length of the batch axis (1 for models without batching)
        inputs: input name -> source of its values
        count: how many times the callable processes the request

    Raises:
        PyTritonBadParameterError: a field is invalid

    Example:
        >>> warmup = ModelWarmup("zeros", 4, {"x": WarmupInput(np.float32, (2,), zero_data=True)})
        >>> warmup.arrays()["x"].shape
        (4, 2)
    """

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int = 1

    def __post_init__(self) -> None:
        for field in ("batch_size", "count"):
            value = plain(getattr(self, field))
            setattr(self, field, value)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PyTritonBadParameterError(
                    f"The `{field}` of warm-up {self.name!r} must be a positive integer, got {value!r}."
                )
        for input_name, source in self.inputs.items():
            if not isinstance(source, WarmupInput):
                raise PyTritonBadParameterError(
                    f"The input {input_name!r} of warm-up {self.name!r} must be a WarmupInput, "
                    f"got {source!r}."
                )

    def arrays(self, *, batching: bool = True) -> dict[str, NDArray[Any]]:
        """Generate the inputs of the request: a dict of input name to array. The result is always the same.

        Args:
            batching: whether the arrays have a batch axis

        Raises:
            PyTritonBadParameterError: a file cannot be read, or its array does not fit the input
        """
        return {
            name: source.generate(
                self.batch_size if batching else 0, zlib.crc32(f"{self.name}/{name}".encode())
            )
            for name, source in self.inputs.items()
        }


def check_warmups(warmups: Sequence[ModelWarmup], inputs: Sequence[tuple[str, Tensor]]) -> None:
    """Check that the model accepts the warm-up requests.

    Args:
        warmups: the warm-ups
        inputs: the model's inputs by name

    Raises:
        PyTritonBadParameterError: an input is unknown or missing, or its dtype or shape differs
    """
    import difflib  # imported here because it takes 2 ms in each worker

    declared = dict(inputs)
    for warmup in warmups:
        for name, source in warmup.inputs.items():
            if name not in declared:
                near = difflib.get_close_matches(name, declared, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise PyTritonBadParameterError(
                    f"Warm-up {warmup.name!r} defines data for {name!r}, which is not an input of the "
                    f"model.{hint} Inputs: {', '.join(declared)}."
                )
            _check_source(warmup.name, name, source, declared[name])
        missing = [n for n, one in declared.items() if not one.optional and n not in warmup.inputs]
        if missing:
            raise PyTritonBadParameterError(
                f"Warm-up {warmup.name!r} defines no data for the input {missing[0]!r}."
            )


def _check_source(warmup: str, name: str, source: WarmupInput, tensor: Tensor) -> None:
    given, wanted = to_triton_datatype(source.dtype), to_triton_datatype(tensor.dtype)
    if given != wanted:
        raise PyTritonBadParameterError(
            f"Warm-up {warmup!r} defines {given} data for the input {name!r}, whose data type is {wanted}."
        )
    if not shape_fits(source.shape, tensor.shape):
        raise PyTritonBadParameterError(
            f"Warm-up {warmup!r} defines data of shape {source.shape} for the input {name!r}, which has the "
            f"shape {tensor.shape} (shapes do not include the batch axis)."
        )
