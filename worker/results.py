"""Checks a callable's results against the model's declaration, and passes them to the proxy.

Outputs in buffers of `empty_output`, and large outputs that can be lent, stay in place. All others are copied.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pytriton._protocol import linux
from pytriton._protocol.errors import shown
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import OWN, RequestRef, ResponseRef, TensorRef
from pytriton._protocol.lanes.tensors import Array, TextError
from pytriton._protocol.numpy_types import MASKED, is_masked, lost_by_cast
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.results import Pieces
from pytriton.proxy.types import Request
from pytriton.worker.fault_reports import ExecutionTimeout, reason
from pytriton.worker.output_buffers import OutputBuffers

#: The default name of an input.
_DEFAULT_NAME = re.compile(r"^INPUT_(\d+)$")
#: PyTriton's error for arrays of other kinds.
_KINDS = (
    ". Only bool, numeric, string, unicode and object arrays are supported by Triton "
    "(dtype.kind: biufOSU)"
)
#: A factory whose parameters all have defaults can be called with requests, so only its result gives it away.
_FACTORY = " If it creates the callable, register it with factory=True."
#: Advice for a callable that is written for @batch, but lacks the decorator.
_UNDECORATED = (
    " If the callable takes arrays by name and returns one dict, decorate it with @batch."
)


class ResultError(Exception):
    """The callable's result does not match the declaration; the text describes it in one line."""


class RowError(Exception):
    """The callable returned an exception as the result of a request, or of one of its rows."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def failure_kind(error: BaseException) -> str:
    """Return which of stats_page.FAILURES describes the exception that failed a call or a stream."""
    if isinstance(reason(error), PyTritonUnrecoverableError):
        return "unrecoverable"
    if isinstance(error, ExecutionTimeout):
        return "timeout"
    if isinstance(error, TextError):
        return "input"
    return "result" if isinstance(error, (ResultError, ArenaError)) else "callable"


class RefusedRequest(NamedTuple):
    """A request that fails individually: its position in the batch, and the exception to answer it with."""

    place: int
    error: BaseException


@dataclass(frozen=True)
class Output:
    """A declared output. `dims` excludes the batch axis; -1 stands for any size."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]


class ResultWriter:
    """Validator and writer of the results of one model's callable.

    Args:
        model: its name
        outputs: the declared outputs
        batching: whether results have a batch axis
        strict: whether results must match the declaration exactly
        chooses: whether the callable chooses which outputs to return to a request for all
        buffers: where `empty_output` allocates
    """

    def __init__(
        self,
        model: str,
        outputs: Sequence[Output],
        *,
        batching: bool,
        strict: bool,
        chooses: bool = False,
        buffers: OutputBuffers | None = None,
    ) -> None:
        self._model = model
        self._outputs = outputs
        self._declared = {output.name for output in outputs}
        names = [output.name for output in outputs]
        #: Whether the outputs were declared without names, so that the callable's outputs are matched by order.
        self._unnamed = not strict and names == [f"OUTPUT_{i + 1}" for i in range(len(names))]
        self._batching = batching
        self._strict = strict
        self._chooses = chooses
        only = self._outputs[0] if len(self._outputs) == 1 and not batching else None
        #: The name of the only output, if its value can be a single string.
        self._text = (
            only.name if only and only.datatype == "BYTES" and only.dims in ((1,), (-1,)) else None
        )
        self._buffers = buffers or OutputBuffers()

    def check(self, results: Any, count: int) -> Sequence[Any]:
        """Check that the callable's results are a list of `count` items, and return them.

        Raises:
            ResultError: they are not a list, or have another length.
        """
        if type(results) is not list and not _is_list(results):
            raise ResultError(
                f"Outputs returned by `{self._model}` model callable must be list of response dicts with "
                f"numpy arrays. Got {shown(results)}.{_hint(results)}"
            )
        if len(results) != count:
            raise ResultError(
                f"Number of outputs returned by `{self._model}` inference callable ({len(results)}) does "
                f"not match number of requests ({count}) received from Triton."
            )
        return results  # type: ignore[no-any-return]

    def write(
        self,
        results: Sequence[Any],
        requests: Sequence[RequestRef],
        lane: Lane,
        refused: list[RefusedRequest] | None = None,
    ) -> list[ResponseRef]:
        """Write one response per request, with only the outputs that the client requested.

        With `refused`, a request whose result is an exception or does not match the declaration does not fail the others:
        it is appended to that list, and the caller must replace its empty response.

        Raises:
            BaseException: without `refused`, an exception returned as a result.
            ResultError: without `refused`, names, batch axis, type or (strict) shape do not match the declaration.
            ArenaError: not enough memory.
        """
        if type(results) is Pieces:
            refs = self._write_pieces(results, requests, lane)
            if refs is not None:
                return refs
        responses = []
        for place, (result, request) in enumerate(zip(results, requests)):
            try:
                outputs = self._response(result, request, lane)
            except (ResultError, RowError) as error:
                cause = error.error if isinstance(error, RowError) else error
                if refused is None:
                    raise cause from None
                refused.append(RefusedRequest(place, cause))
                outputs = []
            responses.append(ResponseRef(outputs))
        return responses

    def text_output(self, requests: Sequence[RequestRef]) -> str | None:
        """Return the output's name if a callable may answer these requests with a single string, else None."""
        if self._text is None or len(requests) != 1:
            return None
        requested = requests[0].requested
        return self._text if not requested or self._text in requested else None

    def _write_pieces(
        self, results: Pieces, requests: Sequence[RequestRef], lane: Lane
    ) -> list[ResponseRef] | None:
        """Write each output as one array, of which each request gets a slice. Return None if the general path is
        needed.
        """
        requested = requests[0].requested
        rows = [request.inputs[0].shape[0] for request in requests if request.inputs]
        alike = all(request.requested == requested for request in requests)
        if self._strict or not self._batching or not alike or len(rows) != len(requests):
            return None
        wholes = []
        for output in self._outputs:
            if requested and output.name not in requested:
                continue
            whole = results.whole(output.name)
            if (
                type(whole) is not np.ndarray
                or whole.ndim != len(output.dims) + 1
                or whole.dtype is not output.dtype
                or output.datatype == "BYTES"
            ):
                return None
            if [len(result[output.name]) for result in results] != rows:
                return None
            wholes.append((output, whole))
        if not wholes or not sum(rows):
            return None
        columns = [
            _rows_of(self._write_or_lend(output, whole, lane), rows) for output, whole in wholes
        ]
        return [ResponseRef(list(refs)) for refs in zip(*columns)]

    def _response(self, result: Any, request: RequestRef, lane: Lane) -> list[TensorRef]:
        if type(result) is not dict and not isinstance(result, (Mapping, Request)):
            if isinstance(result, BaseException):
                raise RowError(result)
            raise ResultError(
                f"Outputs returned by `{self._model}` model callable must be list of response dicts with "
                f"numpy arrays. Got a list with {shown(result)}."
            )
        if type(result) is Request:
            result = self._rename_request(result)
        elif self._unnamed and self._declared.isdisjoint(result):
            result = self._rename_in_order(result)
        if self._strict:
            self._refuse_undeclared(result)
        requested: Container[str] = request.requested
        # Triton's core names all outputs if the client names none.
        if self._chooses and len(request.requested) in (0, len(self._outputs)):
            requested = result
        return [
            self._output(output, result, request, lane)
            for output in self._outputs
            if not requested or output.name in requested
        ]

    def _output(
        self, output: Output, result: Mapping[str, Any], request: RequestRef, lane: Lane
    ) -> TensorRef:
        try:
            value: Any = result[output.name]
        except KeyError:
            strange = [name for name in result if not isinstance(name, str)]
            if strange:
                raise ResultError(
                    f"Not all keys returned by `{self._model}` model callable are string: "
                    f"{shown(strange[0])}."
                ) from None
            raise ResultError(
                f"Model `{self._model}` returned no output `{output.name}`; it returned "
                f"{', '.join(f'`{name}`' for name in result) or 'nothing'}."
            ) from None
        if type(value) is not np.ndarray:
            value = self._array(output, value)
        if self._batching:
            self._check_batch_axis(output, value, request)
        if value.ndim != len(output.dims) + self._batching:
            one_row = value.ndim == len(output.dims) + 1 and len(value) == 1
            if request.inputs or self._batching or not one_row:
                self._refuse_rank(output, value)
            value = value[0]  # made for a batch, although the size is unknown
        if self._strict:
            self._check_shape(output, value)
        if output.datatype == "BYTES":
            return self._write_bytes(output, value, lane)
        if value.dtype is not output.dtype and value.dtype != output.dtype:
            self._check_dtype(output, value)
        return self._write_or_lend(output, value, lane)

    def _write_or_lend(self, output: Output, array: Array, lane: Lane) -> TensorRef:
        if self._buffers.used and array.dtype == output.dtype:
            ref = self._buffers.place(lane, output.name, output.datatype, array)
            if ref is not None:
                return ref
        return write_or_lend(lane, output.name, output.datatype, array, output.dtype)

    def _rename_request(self, request: Request) -> Mapping[str, Any]:
        """Give output names to the arrays of a request that was returned as its own answer (`lambda requests: requests`).

        INPUT_1 becomes OUTPUT_1 (these are the names of unnamed tensors), and a single input becomes the single output.
        """
        if any(name in request for name in self._declared):
            return request
        if len(request) == len(self._outputs) == 1:
            return {self._outputs[0].name: next(iter(request.values()))}
        return {_DEFAULT_NAME.sub(r"OUTPUT_\1", name): value for name, value in request.items()}

    def _rename_in_order(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rename outputs, such as `{"add": ..., "sub": ...}`, to OUTPUT_1, OUTPUT_2, … in order.

        An example in PyTriton's documentation (response cache) relies on this.
        """
        if len(result) != len(self._outputs) or not all(isinstance(name, str) for name in result):
            return result
        return {output.name: value for output, value in zip(self._outputs, result.values())}

    def _refuse_undeclared(self, result: Mapping[str, Any]) -> None:
        for name in result:
            if name not in self._declared:
                raise ResultError(
                    f"Returned output `{name}` is not defined in model config for model `{self._model}`."
                )

    def _array(self, output: Output, value: Any) -> Array:
        if isinstance(value, np.ndarray):
            if is_masked(value):
                raise self._error(output, MASKED)
            return value
        if not isinstance(value, (np.generic, int, float, bool, str, bytes)):
            raise ResultError(
                f"Not all values returned by `{self._model}` model callable are numpy arrays: output "
                f"`{output.name}` is {shown(value)}, not a numpy array."
            )
        # numpy's own string dtypes would cut off trailing NULs
        return np.array(value, object if isinstance(value, (str, bytes)) else None)

    def _write_bytes(self, output: Output, array: Array, lane: Lane) -> TensorRef:
        if array.dtype.kind not in "OSU":
            raise self._error(output, f"has dtype {array.dtype}, but must be bytes, str or object")
        try:
            data = tensors.encode_bytes(array)
        except TypeError as error:
            row = next((one for one in array.flat if isinstance(one, BaseException)), None)
            if row is not None:
                raise RowError(row) from None
            raise self._error(output, str(error)) from error
        return tensors.write_raw(lane, output.name, "BYTES", array.shape, data)

    def _check_batch_axis(self, output: Output, array: Array, request: RequestRef) -> None:
        if array.ndim == 0:
            raise self._error(output, "is a scalar and lacks the batch axis")
        if request.inputs and array.shape[0] != request.inputs[0].shape[0]:
            raise self._error(
                output,
                f"has {array.shape[0]} rows along the batch axis (shape {array.shape}), "
                f"but the request has {request.inputs[0].shape[0]}",
            )

    def _refuse_rank(self, output: Output, array: Array) -> None:
        """Raise for an output whose number of axes differs from the declaration."""
        if self._strict:
            self._check_shape(output, array)
        shape = array.shape[1:] if self._batching else array.shape
        batch = " without the batch axis" if self._batching else ""
        raise self._error(
            output,
            f"has {len(shape)} axes{batch} (shape {shape}), but {len(output.dims)} are declared: {output.dims}",
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
        if self._strict:
            raise self._error(output, f"has invalid type. Returned: {given}. Expected: {declared}")
        by_values = given.kind in "iubf" and declared.kind in "iub"
        castable = by_values or _castable(given, declared)
        lost = lost_by_cast(array, declared) if castable else None
        if lost is None and castable:
            return
        known = given.kind in "biufOSU" or given.name == "bfloat16"
        raise self._error(
            output,
            f"has dtype {given}, which cannot be cast to {declared} without losing values"
            + (f": {lost}" if lost else "" if known else _KINDS),
        )

    def _error(self, output: Output, what: str) -> ResultError:
        return ResultError(f"Output `{output.name}` of model `{self._model}` {what}.")


def _rows_of(whole: TensorRef, rows: Sequence[int]) -> list[TensorRef]:
    """Split a reference to an array into references to consecutive slices, which have these numbers of rows."""
    row = whole.shape[1:]
    nbytes = whole.nbytes // whole.shape[0]
    offset = whole.offset
    refs = []
    for count in rows:
        shape = [count, *row]
        size = count * nbytes
        refs.append(TensorRef(whole.name, whole.datatype, shape, whole.memory, offset, size))
        offset += size
    return refs


def _hint(results: Any) -> str:
    if isinstance(results, Mapping):
        return _UNDECORATED
    return _FACTORY if callable(results) else ""


def _is_list(results: Any) -> bool:
    return isinstance(results, Sequence) and not isinstance(results, (str, bytes, Mapping))


def _castable(given: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    # "same_kind" allows float64 to float32; numpy knows only some casts of ml_dtypes' types (kind "V").
    if "V" in (given.kind, declared.kind):
        return given.kind in "fiubV" and declared.kind in "fV" and given.type is not np.void
    return np.can_cast(given, declared, "same_kind")


# ── transfer of an output to the proxy: copied into the lane's arena or, if large, lent ──────────────

#: Below this size, copying costs no more than checking the pages and waiting for the proxy.
_SMALLEST = 1 << 20


def write_or_lend(
    lane: Lane, name: str, datatype: str, array: Array, dtype: np.dtype[np.generic]
) -> TensorRef:
    """Copy an output to the lane's arena as C-contiguous `dtype`, or lend it; return a reference to it.

    A lent array stays in place and is appended to `lane.lent`, which keeps it alive until the proxy has read it.

    Raises:
        ArenaError: not enough memory for a copy.
    """
    if lane.reads and array.nbytes >= _SMALLEST and _can_be_lent(array, dtype):
        lane.lent.append(array)
        start = tensors.address(array)
        return TensorRef(name, datatype, list(array.shape), OWN, start, array.nbytes)
    return tensors.write(lane, name, datatype, array, dtype)


def _can_be_lent(array: Array, dtype: np.dtype[np.generic]) -> bool:
    # Ask the kernel, because other processes may be unable to read memory mapped by a device driver (pinned memory).
    return (
        array.flags.c_contiguous
        and array.dtype == dtype
        and linux.is_readable(tensors.address(array), array.nbytes)
    )
