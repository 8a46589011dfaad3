"""Check what a callable returned against the model's declaration, and lay it down in the lane's arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytriton.ipc import tensors
from pytriton.ipc.lane import Lane, RequestRef, ResponseRef, TensorRef
from pytriton.ipc.tensors import Array
from pytriton.proxy.types import Request


class ResultError(Exception):
    """The callable returned something else than the model declares; the text names it in one line."""


@dataclass(frozen=True)
class Output:
    """One declared output. `dims` is without the batch axis; -1 is any size."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]


class ResultWriter:
    """Checks and writes the results of one model's callable."""

    def __init__(
        self, model: str, outputs: Sequence[Output], *, batching: bool, strict: bool
    ) -> None:
        self._model = model
        self._outputs = outputs
        self._batching = batching
        self._strict = strict

    def write(self, results: Any, requests: Sequence[RequestRef], lane: Lane) -> list[ResponseRef]:
        """Return one response per request; only outputs that the client asked for are written.

        Raises:
            ResultError: number, names, batch axis, type or (strict) shape are not as declared.
            ArenaError: no memory for them.
        """
        if isinstance(results, (str, bytes, Mapping)) or not isinstance(results, Sequence):
            raise ResultError(
                f"Outputs returned by `{self._model}` model callable must be list of response dicts with "
                f"numpy arrays. Got {_describe(results)}."
            )
        if len(results) != len(requests):
            raise ResultError(
                f"Number of outputs returned by `{self._model}` inference callable ({len(results)}) does "
                f"not match number of requests ({len(requests)}) received from Triton."
            )
        return [
            ResponseRef(self._response(result, request, lane))
            for result, request in zip(results, requests)
        ]

    def _response(self, result: Any, request: RequestRef, lane: Lane) -> list[TensorRef]:
        if not isinstance(result, (Mapping, Request)):
            raise ResultError(
                f"Outputs returned by `{self._model}` model callable must be list of response dicts with "
                f"numpy arrays. Got a list with {_describe(result)}."
            )
        if self._strict:
            self._refuse_undeclared(result)
        return [
            self._write_output(output, self._value(output, result), request, lane)
            for output in self._outputs
            if not request.requested or output.name in request.requested
        ]

    def _refuse_undeclared(self, result: Mapping[str, Any]) -> None:
        declared = {output.name for output in self._outputs}
        for name in result:
            if name not in declared:
                raise ResultError(
                    f"Returned output `{name}` is not defined in model config for model `{self._model}`."
                )

    def _value(self, output: Output, result: Mapping[str, Any]) -> Array:
        value: Any
        try:
            value = result[output.name]
        except KeyError:
            raise ResultError(
                f"Model `{self._model}` returned no output `{output.name}`; it returned "
                f"{', '.join(f'`{name}`' for name in result) or 'nothing'}."
            ) from None
        if not isinstance(value, np.ndarray):
            if not isinstance(value, (np.generic, int, float, bool, str, bytes)):
                raise self._error(output, f"is {_describe(value)}, not a numpy array")
            # numpy's own dtypes for strings would cut off trailing NULs
            value = np.array(value, object if isinstance(value, (str, bytes)) else None)
        array: Array = value
        return array

    def _write_output(
        self, output: Output, array: Array, request: RequestRef, lane: Lane
    ) -> TensorRef:
        self._check_batch_axis(output, array, request)
        if self._strict:
            self._check_shape(output, array)
        if output.datatype == "BYTES":
            if array.dtype.kind not in "OSU":
                raise self._error(output, f"has dtype {array.dtype}, expected bytes, str or object")
            try:
                data = tensors.encode_bytes(array)
            except TypeError as error:
                raise self._error(output, str(error)) from error
            return tensors.write_raw(lane, output.name, "BYTES", array.shape, data)
        self._check_dtype(output, array)
        return tensors.write(lane, output.name, output.datatype, array, output.dtype)

    def _check_batch_axis(self, output: Output, array: Array, request: RequestRef) -> None:
        if not self._batching:
            return
        if array.ndim == 0:
            raise self._error(output, "is a scalar, it lacks the batch axis")
        if request.inputs and array.shape[0] != request.inputs[0].shape[0]:
            raise self._error(
                output,
                f"has {array.shape[0]} rows along the batch axis (shape {array.shape}) "
                f"for a request of {request.inputs[0].shape[0]}",
            )

    def _check_shape(self, output: Output, array: Array) -> None:
        shape = array.shape[1:] if self._batching else array.shape
        fits = len(shape) == len(output.dims) and all(
            want in (-1, got) for want, got in zip(output.dims, shape)
        )
        if not fits:
            raise self._error(
                output, f"has invalid shapes. Returned: {shape}. Expected: {output.dims}"
            )

    def _check_dtype(self, output: Output, array: Array) -> None:
        given, declared = array.dtype, output.dtype
        if given == declared:
            return
        if self._strict:
            raise self._error(output, f"has invalid type. Returned: {given}. Expected: {declared}")
        if given.kind in "iub" and declared.kind in "iu":
            castable = np.can_cast(given, declared) or _in_range(array, declared)
        else:
            castable = _castable(given, declared)
        if not castable:
            raise self._error(
                output,
                f"has dtype {given}, which cannot be cast to {declared} without losing values",
            )

    def _error(self, output: Output, what: str) -> ResultError:
        return ResultError(f"Output `{output.name}` of model `{self._model}` {what}.")


def _castable(given: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    # "same_kind" lets float64 become float32; of ml_dtypes' types (kind "V") numpy knows only some
    # casts.
    if "V" in (given.kind, declared.kind):
        return given.kind in "fiubV" and declared.kind in "fV" and given.type is not np.void
    return np.can_cast(given, declared, "same_kind")


def _in_range(array: Array, declared: np.dtype[Any]) -> bool:
    if array.size == 0:
        return True
    limits = np.iinfo(declared)
    return bool(int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def _describe(value: object) -> str:
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text[:80]}{'…' if len(text) > 80 else ''}"
