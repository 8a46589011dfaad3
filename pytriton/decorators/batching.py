"""``@batch`` and ``@sample``: convert a list of requests to keyword arguments, and outputs to responses.

This is the hot path of every model that uses them. An input's array is obtained in the cheapest of four
ways: from the only request; from the batch that the worker has already gathered (`Pieces`); as a view, if
the requests are adjacent in memory; otherwise by concatenation. Responses are `Pieces`, too, so that the
worker can write each output as one array.
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

# Reading an array's address is slow in Python. Measured for 8 arrays (2 busy cores, numpy 2): detecting
# adjacency takes 39 µs at any size; concatenating takes 4 µs at 64 B each, 11 µs at 16 KiB, 32 µs at 64 KiB,
# 406 µs at 600 KB. Smaller arrays are therefore concatenated.
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
    """Concatenate the requests of a batch along the batch axis, and split the outputs into responses.

    The wrapped callable receives each input as a keyword argument, an array of shape
    ``(rows of all requests, *shape)``. It returns a dict of arrays by output name, or a list or
    tuple in the order of the model's outputs. An output may also be a list with one array for each
    row. If the list contains an exception instead of a row's array, that row's request fails with it.

    Args:
        wrapped: the callable (if the decorator is used without parentheses)
        parameters: also pass a keyword argument ``parameters``: an array with one dict for each
            row, which contains the parameters and forwarded headers of the row's request.
            Like an input, it is split by ``@group_by_values("parameters")``, padded by
            ``@pad_batch``, and reduced to one dict by ``@first_value("parameters")``.
        requests: also pass a keyword argument ``requests``: the list of `Request` objects, for
            their requested output names, `is_cancelled` and `traced_span`

    Raises (when called):
        PyTritonValidationError: the requests have different inputs (see `group_by_keys`), or the
            returned outputs do not match the model's outputs
        ValueError: the batch axis of an output and that of the inputs differ in length

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
    """Pass the first request's inputs as keyword arguments. Meant for models without batching.

    Args:
        wrapped: the callable (if the decorator is used without parentheses)
        parameters: also pass a keyword argument ``parameters``: a dict of the request's
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
    """Return the batch size of a request: the length of the first axis of its first input.

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
    passes_inputs_by_name = True

    def __init__(self, parameters: bool, requests: bool) -> None:
        self.parameters = parameters
        self.requests = requests

    def added_keywords(self) -> set[str]:
        settings = {"parameters": self.parameters, "requests": self.requests}
        return {name for name, wanted in settings.items() if wanted}

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
    passes_inputs_by_name = True

    def __init__(self, parameters: bool, request: bool) -> None:
        self.parameters = parameters
        self.request = request

    def added_keywords(self) -> set[str]:
        settings = {"parameters": self.parameters, "request": self.request}
        return {name for name, wanted in settings.items() if wanted}

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
    """Return an array with the parameters of each row's request; without batching, those of the single request."""
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
            f"The model has an input called {keyword!r}, which conflicts with the keyword argument that the "
            f"decorator adds for {keyword}=True. Rename the input."
        )
    return {**inputs, keyword: value}


def gather(requests: Sequence[Mapping[str, _Array]]) -> tuple[dict[str, Any], list[int]]:
    """Concatenate the inputs of requests along the batch axis.

    Returns:
        a dict of input name to array, and a list with the number of rows of each request. Both are empty for a
        single request without inputs.

    Raises:
        PyTritonValidationError: the list is empty, or the requests have different inputs
    """
    datas = [request.data if type(request) is Request else request for request in requests]
    if not datas:
        raise PyTritonValidationError("Cannot batch an empty list of requests.")
    first = datas[0]
    if len(datas) == 1:
        # A model without inputs does not batch: there is nothing that defines a number of rows.
        return dict(first), [_rows(first)] if first else []
    names = first.keys()
    for data in datas:
        if data.keys() != names:
            raise PyTritonValidationError(
                "Cannot batch requests with different set of inputs keys: "
                f"{sorted(names)} and {sorted(data.keys())}. Place @group_by_keys above @batch, or "
                "set defaults for optional inputs with @fill_optionals."
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
    """Return one array that covers all `arrays` if they are adjacent in memory, otherwise None."""
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
    # The base has another shape or dtype, for example if it is the memory of a whole arena.
    offset = start - _address(base)
    raw: _Array = base.reshape(-1).view(np.uint8)[offset : offset + end - start]
    return raw.view(dtype).reshape(-1, *shape)


def _address(array: _Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def split(outputs: dict[str, Any], sizes: list[int]) -> list[dict[str, Any]]:
    """Split outputs along the batch axis into one response for each request. The arrays are views.

    Args:
        outputs: output name -> array, or list of rows
        sizes: number of rows of each request, from `gather`; empty: return `outputs` as the only response

    Raises:
        ValueError: an output has no batch axis, or the length of that axis is not the sum of `sizes`
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
    """Return one request's rows as an array, or the first exception among them."""
    if type(rows) is not list:
        return rows
    error = next((row for row in rows if isinstance(row, BaseException)), None)
    return _stacked(name, rows) if error is None else error


def _response(outputs: dict[str, Any]) -> Any:
    """Return the response to one request: its outputs, or the first exception among them."""
    for value in outputs.values():
        if isinstance(value, BaseException):
            return value
    return outputs


def _stacked(name: str, rows: list[Any]) -> _Array:
    if rows and isinstance(rows[0], (str, bytes)):  # numpy's string types would drop trailing NULs
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
        if not hasattr(value, "shape"):  # its length is no batch size, for example that of a string
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
