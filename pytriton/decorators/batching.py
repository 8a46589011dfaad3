"""``@batch`` and ``@sample``: from a list of requests to keyword arguments and back.

This is the hot path of every model that uses them. Four ways to one array per input, cheapest
first: a single request has its array already; a worker may have gathered the batch already
(`Pieces`); requests adjacent in memory are viewed as one array;
all others are concatenated. Responses are `Pieces`, too: the worker writes the whole array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pytriton._protocol.arguments import with_article
from pytriton.decorators.outputs import named_outputs
from pytriton.decorators.wrapping import Adapter, Decorator, Plan, decorate
from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.results import Pieces
from pytriton.proxy.types import Request

__all__ = ["batch", "gather", "get_inference_request_batch_size", "sample", "split"]

_Array = NDArray[Any]

# Getting an array's address is slow in Python. Measured for 8 arrays (2 busy cores, numpy 2): detecting
# adjacency 39 µs at any size; concatenating 4 µs at 64 B each, 11 µs at 16 KiB, 32 µs at 64 KiB, 406 µs at
# 600 KB. So smaller arrays are simply concatenated.
_ADJACENCY_MIN_BYTES = 64 * 1024


@overload
def batch(wrapped: Callable[..., Any]) -> Callable[..., Any]: ...
@overload
def batch(
    *, parameters: bool = ..., requests: bool = ...
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def batch(
    wrapped: Callable[..., Any] | None = None, *, parameters: bool = False, requests: bool = False
) -> Any:
    """Join the requests of a batch along their batch axis, and split the outputs again.

    The wrapped callable is called with one array per input as keyword arguments, each of shape
    ``(rows of all requests, *shape)``, and returns a dict of arrays by output name, or a list or
    tuple in the order of the model's outputs. An output may also be a list with an array for each
    row. An exception in place of a row becomes the response to the request of that row.

    Args:
        wrapped: the callable (when used without parentheses)
        parameters: also pass a keyword argument ``parameters``: an array of dicts, one for each
            row, with the parameters and forwarded headers of the row's request.
            Like an input, it is split by ``@group_by_values("parameters")``, padded by
            ``@pad_batch``, and reduced to one dict by ``@first_value("parameters")``.
        requests: also pass a keyword argument ``requests``: the list of the `Request` objects
            (requested output names, `is_cancelled`, `traced_span`)

    Raises (when called):
        PyTritonValidationError: the requests have different inputs (see `group_by_keys`), or the
            outputs cannot be named
        ValueError: an output's batch axis differs in length from that of the inputs

    Example:
        >>> @batch
        ... def double(x):
        ...     return {"y": x * 2}
        >>> double([Request({"x": np.ones((1, 2))}), Request({"x": np.zeros((2, 2))})])[1]["y"]
        array([[0., 0.],
               [0., 0.]])
        >>> @batch(parameters=True)
        ... def scale(x, parameters):
        ...     return {"y": x * np.array([[row["by"]] for row in parameters])}
        >>> scale([Request({"x": np.ones((1, 2))}, {"by": 3})])[0]["y"]
        array([[3., 3.]])
    """
    adapter = _Batch(parameters, requests)
    return Decorator(adapter) if wrapped is None else decorate(wrapped, adapter)


@overload
def sample(wrapped: Callable[..., Any]) -> Callable[..., Any]: ...
@overload
def sample(
    *, parameters: bool = ..., request: bool = ...
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def sample(
    wrapped: Callable[..., Any] | None = None, *, parameters: bool = False, request: bool = False
) -> Any:
    """Pass the first request's inputs as keyword arguments; for models without batching.

    Args:
        wrapped: the callable (when used without parentheses)
        parameters: also pass a keyword argument ``parameters``: the dict of the request's
            parameters and forwarded headers
        request: also pass a keyword argument ``request``: the `Request` itself

    Example:
        >>> @sample
        ... def double(x):
        ...     return {"y": x * 2}
        >>> double([Request({"x": np.ones(2)})])
        [{'y': array([2., 2.])}]
    """
    adapter = _Sample(parameters, request)
    return Decorator(adapter) if wrapped is None else decorate(wrapped, adapter)


def get_inference_request_batch_size(inference_request: Mapping[str, Any]) -> int:
    """Return the length of a request's batch axis.

    Raises:
        PyTritonValidationError: the request has no inputs, or its first one has no batch axis
    """
    for value in inference_request.values():
        shape = np.shape(value)
        if shape:
            return int(shape[0])
        break
    raise _no_batch_axis()


class _Batch(Adapter):
    names_inputs = True

    def __init__(self, parameters: bool, requests: bool) -> None:
        self.parameters = parameters
        self.requests = requests

    def handed_over(self) -> set[str]:
        said = {"parameters": self.parameters, "requests": self.requests}
        return {name for name, wanted in said.items() if wanted}

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        requests, owner = args[-1], args[:-1]
        inputs, sizes = gather(requests)
        if self.parameters:
            inputs = _with(inputs, "parameters", _by_row(requests, sizes))
        if self.requests:
            inputs = _with(inputs, "requests", list(requests))

        def merge(results: list[Any]) -> list[dict[str, Any]]:
            return split(named_outputs(results[0], wrapped, owner), sizes)

        return [(owner, {**inputs, **kwargs} if kwargs else inputs)], merge


class _Sample(Adapter):
    names_inputs = True

    def __init__(self, parameters: bool, request: bool) -> None:
        self.parameters = parameters
        self.request = request

    def handed_over(self) -> set[str]:
        said = {"parameters": self.parameters, "request": self.request}
        return {name for name, wanted in said.items() if wanted}

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        request, owner = args[-1][0], args[:-1]
        inputs = dict(request)
        if self.parameters:
            inputs = _with(inputs, "parameters", _parameters_of(request))
        if self.request:
            inputs = _with(inputs, "request", request)

        def merge(results: list[Any]) -> list[dict[str, Any]]:
            return [named_outputs(results[0], wrapped, owner)]

        return [(owner, {**inputs, **kwargs})], merge


def _parameters_of(request: Any) -> dict[str, Any]:
    return getattr(request, "parameters", None) or {}


def _by_row(requests: Sequence[Any], sizes: list[int]) -> _Array:
    """Return the requests' parameters, repeated for each row; once, if nothing is batched."""
    found = [_parameters_of(request) for request in requests]
    rows = np.empty(sum(sizes) if sizes else len(found), dtype=np.object_)
    start = 0
    for parameters, size in zip(found, sizes or [1]):
        rows[start : start + size] = parameters
        start += size
    return rows


def _with(inputs: dict[str, Any], keyword: str, value: Any) -> dict[str, Any]:
    if keyword in inputs:
        raise PyTritonValidationError(
            f"The model has an input called {keyword!r}, which conflicts with the decorator's {keyword}=True: "
            "both need that keyword. Rename the input."
        )
    return {**inputs, keyword: value}


def gather(requests: Sequence[Mapping[str, _Array]]) -> tuple[dict[str, Any], list[int]]:
    """Join requests along their batch axis.

    Returns:
        input name -> array, and the number of rows of each request; empty for a single
        request without inputs

    Raises:
        PyTritonValidationError: the list is empty, or the requests have different inputs
    """
    datas = [request.data if type(request) is Request else request for request in requests]
    if not datas:
        raise PyTritonValidationError("Cannot batch an empty list of requests.")
    first = datas[0]
    if len(datas) == 1:
        # A model without inputs does not batch: nothing defines the number of rows, or could be split.
        return dict(first), [_rows(first)] if first else []
    names = first.keys()
    for data in datas:
        if data.keys() != names:
            raise PyTritonValidationError(
                "Cannot batch requests with different set of inputs keys: "
                f"{sorted(names)} and {sorted(data.keys())}. Put @group_by_keys above @batch, or "
                "give optional inputs a value with @fill_optionals."
            )
    sizes = [_rows(data) for data in datas]
    joined: dict[str, Any] = {}
    for name in names:
        whole = requests.whole(name) if type(requests) is Pieces else None
        joined[name] = _join([data[name] for data in datas]) if whole is None else whole
    return joined, sizes


def _rows(data: Mapping[str, Any]) -> int:
    for value in data.values():
        return len(value)
    raise _no_batch_axis()


def _no_batch_axis() -> PyTritonValidationError:
    return PyTritonValidationError(
        "The request has no input with a batch axis, so its batch size is unknown."
    )


def _join(arrays: list[_Array]) -> _Array:
    if arrays[0].nbytes >= _ADJACENCY_MIN_BYTES:
        whole = _adjacent(arrays)
        if whole is not None:
            return whole
    return np.concatenate(arrays)


def _adjacent(arrays: list[_Array]) -> _Array | None:
    """Return the array of which `arrays` are consecutive slices along axis 0, or None."""
    first = arrays[0]
    base, dtype, shape = first.base, first.dtype, first.shape[1:]
    if not isinstance(base, np.ndarray) or not base.flags.c_contiguous:
        return None
    start = end = _address(first)
    for array in arrays:
        if array.base is not base or array.shape[1:] != shape or array.dtype != dtype:
            return None
        if not array.flags.c_contiguous or _address(array) != end:
            return None
        end += array.nbytes
    if base.ndim == first.ndim and base.shape[1:] == shape and base.dtype == dtype:
        if end - start == base.nbytes:
            return base
        low = (start - _address(base)) // first.strides[0]
        return base[low : low + (end - start) // first.strides[0]]
    if dtype.hasobject or base.dtype.hasobject:
        return None
    # The base has another shape or type, e.g. it is the bytes of a whole arena.
    offset = start - _address(base)
    raw: _Array = base.reshape(-1).view(np.uint8)[offset : offset + end - start]
    return raw.view(dtype).reshape(-1, *shape)


def _address(array: _Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def split(outputs: dict[str, Any], sizes: list[int]) -> list[dict[str, Any]]:
    """Split outputs into responses along their batch axis; the pieces are views.

    Without sizes (see `gather`) the outputs form the only response.

    Raises:
        ValueError: an output is not an array, or its batch axis differs from the requests' total size
    """
    if not sizes:
        return [outputs]
    total = sum(sizes)
    for value in outputs.values():
        if _length(value) != total:
            raise _wrong_sizes(outputs, total)
    in_rows = any(type(value) is list for value in outputs.values())
    if len(sizes) == 1 and not in_rows:
        return [outputs]
    bounds = [(end - size, end) for size, end in zip(sizes, accumulate(sizes))]
    slices = {name: [value[low:high] for low, high in bounds] for name, value in outputs.items()}
    if in_rows:
        slices = {name: [_joined(name, rows) for rows in parts] for name, parts in slices.items()}
    responses = [_response(dict(zip(slices, row))) for row in zip(*slices.values())]
    arrays = {name: value for name, value in outputs.items() if type(value) is np.ndarray}
    return Pieces(responses, arrays, {name: slices[name] for name in arrays})


def _joined(name: str, rows: Any) -> Any:
    """Return one request's rows as an array, or the exception found in place of a row."""
    if type(rows) is not list:
        return rows
    error = next((row for row in rows if isinstance(row, BaseException)), None)
    return _stacked(name, rows) if error is None else error


def _response(outputs: dict[str, Any]) -> Any:
    """Return the response to one request: an exception in place of an output replaces all of it."""
    for value in outputs.values():
        if isinstance(value, BaseException):
            return value
    return outputs


def _stacked(name: str, rows: list[Any]) -> _Array:
    if rows and isinstance(rows[0], (str, bytes)):  # numpy's own types would cut off trailing NULs
        return np.array(rows, np.object_)
    try:
        return np.stack(rows)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Output `{name}`: the rows of one request do not form an array: {error}"
        ) from None


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:  # a scalar has no batch axis
        return -1


def _wrong_sizes(outputs: dict[str, Any], total: int) -> ValueError:
    for name, value in outputs.items():
        if not hasattr(value, "shape"):  # its length counts something else, such as letters
            return ValueError(
                f"Output `{name}` is {with_article(type(value).__name__)}, not a numpy array. "
                f"Expected: an array with batch size {total}, the number of rows of the inputs."
            )
    found = ", ".join(
        f"{name}: {_length(value)}" if _length(value) >= 0 else f"{name}: no batch axis"
        for name, value in outputs.items()
    )
    return ValueError(
        f"Received output tensors with different batch sizes: {found}. "
        f"Expected batch size: {total}, the number of rows of the inputs."
    )
