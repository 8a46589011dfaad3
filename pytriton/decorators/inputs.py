"""Decorators that change the inputs of a call: defaults, padding, scalar values, the Triton context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton._protocol.numpy_types import MASKED, is_masked
from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.batching import get_inference_request_batch_size
from pytriton.decorators.context import CONTEXT_ATTRIBUTE, find_model_config, get_triton_context
from pytriton.decorators.grouping import (
    require_inputs_by_name,
    require_requests,
    row_keys,
    takes_requests,
)
from pytriton.decorators.outputs import named_outputs
from pytriton.decorators.wrapping import Adapter, Decorator, Plan, decorate, single_result
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.model_config.dtypes import to_triton_datatype
from pytriton.model_config.tensor import shape_fits
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.types import Request

__all__ = ["fill_optionals", "first_value", "pad_batch", "triton_context"]

_Array = NDArray[Any]
_SPECIAL_KEYS = (TRITON_CONTEXT_FIELD_NAME, CONTEXT_ATTRIBUTE)


def fill_optionals(**defaults: _Array) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Fill in default values for optional inputs that a request omits. Place it above ``@batch``.

    Args:
        defaults: default of each input: an array of the input's dtype and shape, without the batch axis

    Raises:
        PyTritonBadParameterError: a default is not a numpy array. When called: the model does not have such an
            input, or the input's dtype or shape differs.

    Example:
        >>> from pytriton.decorators import batch
        >>> @fill_optionals(factor=np.array(2.0))
        ... @batch
        ... def scale(x, factor):
        ...     return {"y": x * factor[:, None]}
        >>> scale([Request({"x": np.ones((1, 2))})])[0]["y"]
        array([[2., 2.]])
    """
    for name, value in defaults.items():
        if is_masked(value):
            raise PyTritonBadParameterError(f"The default of {name!r} in @fill_optionals {MASKED}.")
        if not isinstance(value, (np.ndarray, np.generic)):
            raise PyTritonBadParameterError(
                f"The default of {name!r} in @fill_optionals must be a numpy array without the "
                f"batch axis, got {type(value).__name__}. Write np.array(..., dtype=...)."
            )
    return Decorator(_FillOptionals(defaults))


def pad_batch(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Pad a batch to a preferred size by repeating its last row, and remove the additional rows from the outputs.

    Place it below ``@batch``. The batch is padded to the smallest of the model's `preferred_batch_size` values and
    its `max_batch_size` that is large enough. If no model is being served, the batch is not changed.

    Raises (when called):
        PyTritonRuntimeError: used above ``@batch``
    """
    return decorate(wrapped, _PadBatch())


def first_value(
    *keys: str, squeeze_single_values: bool = True, strict: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace an input's batch of equal rows with a single row. Place it below ``@batch``.

    Without ``@batch``, it applies to each request separately.

    An input of shape ``(batch, *shape)`` is replaced by its first row, of shape ``shape``. Keys that are not
    among the inputs are ignored.

    Args:
        keys: names of the inputs
        squeeze_single_values: convert a row of one element to a scalar: a numpy scalar, or bytes
        strict: require all rows to be equal

    Raises:
        PyTritonBadParameterError: a key is reserved
        PyTritonRuntimeError: when called: rows differ, or the model does not batch

    Example:
        >>> from pytriton.decorators import batch
        >>> @batch
        ... @first_value("factor")
        ... def scale(x, factor):
        ...     return {"y": x * factor}
        >>> scale([Request({"x": np.ones((2, 1)), "factor": np.full((2, 1), 3.0)})])[0]["y"]
        array([[3.],
               [3.]])
    """
    for key in keys:
        if key in _SPECIAL_KEYS:
            raise PyTritonBadParameterError(
                f"@first_value cannot be used with the special key {key!r}, which is not an input."
            )
    return Decorator(_FirstValue(keys, squeeze_single_values, strict))


def triton_context(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a `TritonContext` to the callable as the keyword argument ``triton_context``.

    ``triton_context.model_config`` is the configuration of the model being served, and
    ``triton_context.model_configs[callable]`` that of any callable served by this process.

    Raises (when called):
        PyTritonValidationError: the callable is not being served, and no context was set
    """
    return decorate(wrapped, _PassContext())


class _FillOptionals(Adapter):
    def __init__(self, defaults: dict[str, Any]) -> None:
        self.defaults = {name: np.asarray(value) for name, value in defaults.items()}
        self._checked: TritonModelConfig | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_FillOptionals, (self.defaults,))

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        require_requests("fill_optionals", args)
        owner = args[:-1]
        config = find_model_config(wrapped, owner[0] if owner else None)
        if config is not None and config is not self._checked:
            _check_defaults(self.defaults, config)
            self._checked = config
        batching = config is None or config.batching
        requests = [self._filled(request, batching) for request in args[-1]]
        return [((*owner, requests), kwargs)], single_result

    def _filled(self, request: Any, batching: bool) -> Any:
        missing = [name for name in self.defaults if name not in request.keys()]  # noqa: SIM118
        if not missing:
            return request
        filled = dict(request)
        repeats = (get_inference_request_batch_size(request),) if batching else ()
        for name in missing:
            default = self.defaults[name]
            # Copy the broadcast array, which is read-only: callables may write to their inputs.
            filled[name] = np.array(np.broadcast_to(default, (*repeats, *default.shape)))
        return _changed(request, filled)


def _changed(request: Any, inputs: dict[str, Any]) -> Any:
    """Return a copy of a request in which some inputs are replaced."""
    changed = {**request, **inputs}
    if not isinstance(request, Request):
        return changed
    return Request(
        changed,
        request.parameters,
        request.span,
        request.requested_output_names,
        request.cancelled,
        request._origin,
    )


def _check_defaults(defaults: Mapping[str, _Array], config: TritonModelConfig) -> None:
    specs = {spec.name: spec for spec in config.inputs or ()}
    for name, default in defaults.items():
        if name not in specs:
            raise PyTritonBadParameterError(
                f"@fill_optionals has a default for {name!r}, which is not an input of model "
                f"{config.model_name!r}. Inputs: {', '.join(specs)}."
            )
        _check_default(name, default, specs[name], config.model_name)


def _check_default(name: str, default: _Array, spec: TensorSpec, model_name: str) -> None:
    expected = to_triton_datatype(spec.dtype)
    if to_triton_datatype(default.dtype) != expected:
        raise PyTritonBadParameterError(
            f"The default of {name!r} in @fill_optionals has dtype {default.dtype}; the input of "
            f"model {model_name!r} has {np.dtype(spec.dtype)}. Write np.array(..., dtype=...)."
        )
    if not shape_fits(default.shape, spec.shape):
        raise PyTritonBadParameterError(
            f"The default of {name!r} in @fill_optionals has shape {default.shape}; the input of "
            f"model {model_name!r} has shape {tuple(spec.shape)} (without the batch axis)."
        )


class _PadBatch(Adapter):
    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        require_inputs_by_name("pad_batch", args)
        config = find_model_config(wrapped, args[0] if args else None)
        rows = next((len(v) for v in kwargs.values() if isinstance(v, np.ndarray)), 0)
        size = rows if config is None or not config.batching else _padded_size(rows, config)
        if size == rows or rows == 0:
            return [(args, kwargs)], single_result
        # Repeat the last row, for example with row numbers 0 1 2 2 2.
        take = np.minimum(np.arange(size), rows - 1)
        padded = {
            name: value[take] if isinstance(value, np.ndarray) else value
            for name, value in kwargs.items()
        }

        def merge(results: list[Any]) -> dict[str, Any]:
            outputs = named_outputs(results[0], wrapped, args)
            return {
                name: value[:rows] if _has_rows(value, size) else value
                for name, value in outputs.items()
            }

        return [(args, padded)], merge


def _has_rows(value: Any, rows: int) -> bool:
    return len(value) == rows if isinstance(value, list) else np.shape(value)[:1] == (rows,)


def _padded_size(rows: int, config: TritonModelConfig) -> int:
    preferred = (config.batcher.preferred_batch_size if config.batcher else None) or ()
    sizes = [size for size in (*preferred, config.max_batch_size) if size >= rows]
    return min(sizes, default=rows)


class _FirstValue(Adapter):
    def __init__(self, keys: tuple[str, ...], squeeze: bool, strict: bool) -> None:
        self.keys = keys
        self.squeeze = squeeze
        self.strict = strict

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        config = find_model_config(wrapped, args[0] if args else None)
        if config is not None and not config.batching:
            raise PyTritonRuntimeError(
                f"The @first_value decorator can only be used with a batching model; "
                f"{config.model_name!r} has batching=False."
            )
        if takes_requests(args):
            requests = [_changed(request, self._unpacked(request)) for request in args[-1]]
            return [((*args[:-1], requests), kwargs)], single_result
        return [(args, {**kwargs, **self._unpacked(kwargs)})], single_result

    def _unpacked(self, inputs: Mapping[str, _Array]) -> dict[str, Any]:
        return {key: self._first(key, inputs[key]) for key in self.keys if key in inputs}

    def _first(self, key: str, values: _Array) -> Any:
        if self.strict and len(set(row_keys(values))) > 1:
            raise PyTritonRuntimeError(
                f"The values of input {key!r} differ within the batch, but @first_value requires equal "
                f"values. Place @group_by_values({key!r}) above it, or use strict=False."
            )
        first = values[0]
        if self.squeeze and np.size(first) == 1 and isinstance(first, np.ndarray):
            return first.reshape(())[()]
        return first


class _PassContext(Adapter):
    def added_keywords(self) -> set[str]:
        return {"triton_context"}

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        context = get_triton_context(wrapped, args[0] if args else None)
        return [(args, {**kwargs, TRITON_CONTEXT_FIELD_NAME: context})], single_result
