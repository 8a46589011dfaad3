"""Decorators that split mixed batches: ``@group_by_keys`` and ``@group_by_values``, with `ConstantPadder`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.decorators.context import find_model_config
from pytriton.decorators.outputs import named_outputs
from pytriton.decorators.wrapping import Adapter, Decorator, Plan, decorate, single_result
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError

__all__ = [
    "ConstantPadder",
    "group_by_keys",
    "group_by_values",
    "require_inputs_by_name",
    "require_requests",
    "row_keys",
    "takes_requests",
]

_Array = NDArray[Any]
_Outputs = dict[str, _Array]
_Padder = Callable[[list[_Outputs]], list[_Outputs]]


def group_by_keys(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Call the wrapped callable once for each distinct set of input names in the list of requests.

    For models with optional inputs. Place it above ``@batch``. Responses are returned in the order of the requests.

    Raises (when called):
        PyTritonRuntimeError: used below ``@batch``, or the number of responses differs from that of the requests

    Example:
        >>> from pytriton.decorators import batch
        >>> from pytriton.proxy.types import Request
        >>> @group_by_keys
        ... @batch
        ... def total(a, b=0):
        ...     return {"sum": a + b}
        >>> one = np.ones((1, 1))
        >>> [int(response["sum"][0, 0]) for response in total([Request({"a": one}), Request({"a": one, "b": one})])]
        [1, 2]
    """
    return decorate(wrapped, _GroupByKeys())


def group_by_values(
    *keys: str, pad_fn: _Padder | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the wrapped callable once for each distinct combination of values of the named inputs.

    Place it below ``@batch``. All rows of one call have the same values in these inputs. Inputs that the
    requests omit are ignored.

    Args:
        keys: names of the inputs; also ``"parameters"``, below ``@batch(parameters=True)``
        pad_fn: function that gives the outputs of all groups the same shape, such as `ConstantPadder`. It takes
            and returns a list with one dict of output name to array for each group.

    Raises (when called):
        PyTritonRuntimeError: used above ``@batch``, or the outputs of the groups cannot be concatenated
        PyTritonBadParameterError: a key is not an input of the model

    Example:
        >>> from pytriton.decorators import batch
        >>> from pytriton.proxy.types import Request
        >>> @batch
        ... @group_by_values("lang")
        ... def translate(text, lang):
        ...     return {"n": np.full((len(text), 1), len(text))}
        >>> requests = [Request({"text": np.array([[b"hi"]]), "lang": np.array([[lang]])})
        ...             for lang in (b"de", b"fr", b"de")]
        >>> [int(response["n"][0, 0]) for response in translate(requests)]
        [2, 1, 2]
    """
    return Decorator(_GroupByValues(keys, pad_fn))


class ConstantPadder:
    """Pads the outputs of several groups to the same shape; pass it as `pad_fn` of ``@group_by_values``.

    Each output is padded to the largest size in every dimension except the batch axis. Arrays of byte strings and
    strings are padded with empty ones.

    Args:
        pad_value: padding value for numeric arrays

    Example:
        >>> ConstantPadder(9)([{"y": np.array([[1, 2]])}, {"y": np.array([[3]])}])[1]["y"]
        array([[3, 9]])
    """

    def __init__(self, pad_value: Any = 0) -> None:
        self.pad_value = pad_value

    def __call__(self, batches_list: list[_Outputs]) -> list[_Outputs]:
        """Return the dicts with padded arrays: arrays of the same name get the same shape except for the batch axis.

        Args:
            batches_list: output name -> array, for each group

        Raises:
            PyTritonRuntimeError: arrays of the same name differ in dtype or number of dimensions, or
                have a dtype that cannot be padded
        """
        names = {name for outputs in batches_list for name in outputs}
        shapes = {
            name: _largest_shape(name, [out[name] for out in batches_list if name in out])
            for name in names
        }
        return [
            {name: self._padded(name, value, shapes[name]) for name, value in outputs.items()}
            for outputs in batches_list
        ]

    def _padded(self, name: str, value: _Array, shape: tuple[int, ...]) -> _Array:
        if value.shape[1:] == shape:
            return value
        if value.dtype.kind == "O":
            filler: Any = b""
        elif value.dtype.kind in "SU":
            filler = value.dtype.type()
        elif value.dtype.kind in "biuf" or value.dtype.name == "bfloat16":
            filler = self.pad_value
        else:
            raise PyTritonRuntimeError(f"Output {name!r} of dtype {value.dtype} cannot be padded.")
        padded = np.full((value.shape[0], *shape), filler, dtype=value.dtype)
        padded[tuple(slice(size) for size in value.shape)] = value
        return padded


def _largest_shape(name: str, values: list[_Array]) -> tuple[int, ...]:
    first = values[0]
    for value in values:
        # The item size of S and U arrays depends on their longest string, so compare only the kind.
        same = value.dtype.kind in "SU" and value.dtype.kind == first.dtype.kind
        if not same and value.dtype != first.dtype:
            raise PyTritonRuntimeError(
                f"Output {name!r} has different dtypes in different groups: {first.dtype} and "
                f"{value.dtype}. Arrays can only be padded if their dtypes agree."
            )
        if value.ndim != first.ndim:
            raise PyTritonRuntimeError(
                f"Output {name!r} has different numbers of dimensions in different groups: "
                f"{first.ndim} and {value.ndim}."
            )
    return tuple(max(sizes) for sizes in zip(*(value.shape[1:] for value in values)))


class _GroupByKeys(Adapter):
    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        require_requests("group_by_keys", args)
        requests, owner = args[-1], args[:-1]
        groups = _positions_by_key(frozenset(request.keys()) for request in requests)
        if len(groups) == 1:
            return [((*owner, requests), kwargs)], single_result

        def merge(results: list[Any]) -> list[Any]:
            return _in_order(groups, results, len(requests))

        calls = [((*owner, [requests[i] for i in group]), kwargs) for group in groups]
        return calls, merge


def _positions_by_key(keys: Iterable[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _in_order(groups: list[list[int]], results: list[Any], total: int) -> list[Any]:
    responses: list[Any] = [None] * total
    for group, result in zip(groups, results):
        if len(result) != len(group):
            raise PyTritonRuntimeError(
                f"The callable under @group_by_keys returned {len(result)} responses for "
                f"{len(group)} requests."
            )
        for position, response in zip(group, result):
            responses[position] = response
    return responses


class _GroupByValues(Adapter):
    def __init__(self, keys: tuple[str, ...], pad_fn: _Padder | None) -> None:
        self.keys = keys
        self.pad_fn = pad_fn

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        require_inputs_by_name("group_by_values", args)
        _require_keys(self.keys, kwargs, wrapped, args)
        grouping = [row_keys(kwargs[key]) for key in self.keys if key in kwargs]
        groups = _positions_by_key(zip(*grouping))
        if len(groups) <= 1:
            return [(args, kwargs)], single_result

        def merge(results: list[Any]) -> _Outputs:
            return self._merge([named_outputs(result, wrapped, args) for result in results], groups)

        return [(args, _take(kwargs, group)) for group in groups], merge

    def _merge(self, results: list[_Outputs], groups: list[list[int]]) -> _Outputs:
        if any(result.keys() != results[0].keys() for result in results):
            raise PyTritonRuntimeError(
                "The callable under @group_by_values returned different outputs for different groups: "
                f"{[sorted(result) for result in results]}."
            )
        for result, group in zip(results, groups):
            _check_rows(result, len(group))
        padded = results if self.pad_fn is None else self.pad_fn(results)
        back = np.argsort(np.concatenate([np.asarray(group) for group in groups]))
        return {name: _rows_in_order(name, padded, back) for name in padded[0]}


def _rows_in_order(name: str, results: list[_Outputs], back: NDArray[np.intp]) -> Any:
    if any(isinstance(result[name], list) for result in results):
        rows: list[Any] = [row for result in results for row in result[name]]
        return [rows[place] for place in back]
    return _concatenate(name, results)[back]


def _take(inputs: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    return {
        name: value[rows] if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }


def _check_rows(outputs: _Outputs, rows: int) -> None:
    for name, value in outputs.items():
        if isinstance(value, list) and len(value) == rows:
            continue
        if not np.shape(value)[:1] == (rows,):
            raise PyTritonRuntimeError(
                f"Output {name!r} has shape {np.shape(value)}, but its group in @group_by_values has "
                f"{rows} rows."
            )


def _concatenate(name: str, results: list[_Outputs]) -> _Array:
    try:
        return np.concatenate([result[name] for result in results])
    except ValueError:
        raise PyTritonRuntimeError(
            f"Output {name!r} has different shapes in different groups of @group_by_values: "
            f"{[result[name].shape for result in results]}. "
            "Pass pad_fn=ConstantPadder() to pad them to the largest shape."
        ) from None


def takes_requests(args: tuple[Any, ...]) -> bool:
    """Return whether a call's positional arguments contain the list of requests, as they do above ``@batch``."""
    return bool(args) and isinstance(args[-1], (list, tuple))


def require_inputs_by_name(decorator: str, args: tuple[Any, ...]) -> None:
    """Raise `PyTritonRuntimeError` if a decorator that needs inputs by name receives the list of requests."""
    if takes_requests(args):
        raise PyTritonRuntimeError(
            f"The @{decorator} decorator must be used after the @batch decorator."
        )


def require_requests(decorator: str, args: tuple[Any, ...]) -> None:
    """Raise `PyTritonRuntimeError` if a decorator that needs the list of requests receives inputs by name."""
    if not takes_requests(args):
        raise PyTritonRuntimeError(
            f"The @{decorator} decorator must be used before (above) the @batch decorator."
        )


def row_keys(values: _Array) -> list[Hashable]:
    """Return a hashable key for every row of an array. Equal rows have equal keys."""
    if values.dtype.kind in "OSU":
        return [_hashable(row) for row in values]
    contiguous = np.ascontiguousarray(values)
    return [row.tobytes() for row in contiguous]


def _hashable(row: Any) -> Hashable:
    if isinstance(row, dict):  # a request's parameters
        return frozenset(row.items())
    return tuple(row.ravel().tolist()) if np.ndim(row) else row


def _require_keys(
    keys: Iterable[str],
    inputs: Mapping[str, Any],
    wrapped: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """Raise `PyTritonBadParameterError` if a key is not an input of the model.

    The requests may omit an input of the model. If no model is being served, they must contain every key.
    """
    missing = [key for key in keys if key not in inputs]
    if not missing:
        return
    config = find_model_config(wrapped, args[0] if args else None)
    known = list(inputs)
    if config is not None and config.inputs is not None:
        known = [spec.name for spec in config.inputs]
    unknown = [key for key in missing if key not in known]
    if unknown:
        raise PyTritonBadParameterError(
            f"@group_by_values names {unknown[0]!r}, which is not an input. Inputs: {', '.join(known)}."
        )
