"""``@group_by_keys``, ``@group_by_values`` and `ConstantPadder`: splitting mixed batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.decorators.context import find_model_config
from pytriton.decorators.outputs import named_outputs
from pytriton.decorators.wrapping import Adapter, Decorator, Plan, decorate, only
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError

__all__ = [
    "ConstantPadder",
    "group_by_keys",
    "group_by_values",
    "require_inputs_by_name",
    "require_keys",
    "require_requests",
    "row_keys",
    "takes_requests",
]

_Array = NDArray[Any]
_Outputs = dict[str, _Array]
_Padder = Callable[[list[_Outputs]], list[_Outputs]]


def group_by_keys(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Call the wrapped callable once per distinct set of inputs; keep the order of responses.

    Place it above ``@batch``, for models with optional inputs.
    """
    return decorate(wrapped, _GroupByKeys())


def group_by_values(
    *keys: str, pad_fn: _Padder | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the wrapped callable once per distinct combination of values of some inputs.

    Place it below ``@batch``. All rows of one call have the same values in these inputs. Inputs that the
    requests omit are ignored.

    Args:
        keys: names of the inputs; also ``"parameters"``, below ``@batch(parameters=True)``
        pad_fn: makes the groups' outputs fit together, see `ConstantPadder`; takes and returns a
            list of dicts of arrays

    Raises (when called):
        PyTritonRuntimeError: used above ``@batch``, or outputs of groups do not fit together
        PyTritonBadParameterError: the model has no such input

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
    """Pad outputs of several groups with a constant to their largest shape.

    The batch axis is left alone. Byte strings and texts are padded with empty ones.

    Args:
        pad_value: padding value for numbers
    """

    def __init__(self, pad_value: Any = 0) -> None:
        self.pad_value = pad_value

    def __call__(self, batches_list: list[_Outputs]) -> list[_Outputs]:
        """Pad every array to the largest shape that its name has in the list.

        Raises:
            PyTritonRuntimeError: arrays of one name differ in dtype or number of dimensions, or
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
        # The item size of S and U arrays depends on the texts: only the kind has to agree.
        same = value.dtype.kind in "SU" and value.dtype.kind == first.dtype.kind
        if not same and value.dtype != first.dtype:
            raise PyTritonRuntimeError(
                f"Output {name!r} has different dtypes in different groups: {first.dtype} and "
                f"{value.dtype}; arrays can only be padded to fit if they agree."
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
            return [((*owner, requests), kwargs)], only

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
        require_keys("group_by_values", self.keys, kwargs, wrapped, args)
        grouping = [row_keys(kwargs[key]) for key in self.keys if key in kwargs]
        groups = _positions_by_key(zip(*grouping))
        if len(groups) <= 1:
            return [(args, kwargs)], only

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
                f"Output {name!r} of shape {np.shape(value)} does not have the {rows} rows of its "
                "group in @group_by_values."
            )


def _concatenate(name: str, results: list[_Outputs]) -> _Array:
    try:
        return np.concatenate([result[name] for result in results])
    except ValueError:
        raise PyTritonRuntimeError(
            f"Output {name!r} has different shapes in different groups of @group_by_values: "
            f"{[result[name].shape for result in results]}. "
            "Pass pad_fn=ConstantPadder() to pad them to the largest."
        ) from None


def takes_requests(args: tuple[Any, ...]) -> bool:
    """Return whether a decorated callable was called with the list of requests, not with inputs by name."""
    return bool(args) and isinstance(args[-1], (list, tuple))


def require_inputs_by_name(decorator: str, args: tuple[Any, ...]) -> None:
    """Raise `PyTritonRuntimeError` if a decorator stands where it receives no inputs."""
    if takes_requests(args):
        raise PyTritonRuntimeError(
            f"The @{decorator} decorator must be used after the @batch decorator."
        )


def require_requests(decorator: str, args: tuple[Any, ...]) -> None:
    """Raise `PyTritonRuntimeError` if a decorator that takes the list of requests receives inputs by name."""
    if not takes_requests(args):
        raise PyTritonRuntimeError(
            f"The @{decorator} decorator must be used before (above) the @batch decorator."
        )


def row_keys(values: _Array) -> list[Hashable]:
    """Return a hashable value for every row of an array; equal for equal rows."""
    if values.dtype.kind in "OSU":
        return [_hashable(row) for row in values]
    contiguous = np.ascontiguousarray(values)
    return [row.tobytes() for row in contiguous]


def _hashable(row: Any) -> Hashable:
    if isinstance(row, dict):  # parameters of a request
        return frozenset(row.items())
    return tuple(row.ravel().tolist()) if np.ndim(row) else row


def require_keys(
    decorator: str,
    keys: Iterable[str],
    inputs: Mapping[str, Any],
    wrapped: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """Raise `PyTritonBadParameterError` for a key that is not an input of the model.

    An input of the model that the requests omit is allowed. If no model is being served,
    every key has to be present.
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
            f"@{decorator} names {unknown[0]!r}, which is not an input. Inputs: {', '.join(known)}."
        )
