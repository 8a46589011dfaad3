"""Converts a callable's return value to a dict of outputs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytriton.decorators.context import find_model_config
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["convert_output", "named_outputs"]


def convert_output(
    outputs: Any,
    wrapped: Callable[..., Any] | None = None,
    instance: Any | None = None,
    model_config: TritonModelConfig | None = None,
) -> dict[str, Any]:
    """Convert a callable's return value to a dict of outputs by name; for custom decorators.

    Args:
        outputs: a dict by name, or a list or tuple in the order of the model's outputs
        wrapped: the decorated callable, used to find the model's configuration
        instance: if `wrapped` is a method, the object it belongs to
        model_config: the model's configuration, if already known

    Returns:
        outputs by name. If no model is being served (in a unit test), the items of a list are named
        ``OUTPUT_1``, ``OUTPUT_2``..., like unnamed tensors.

    Raises:
        PyTritonValidationError: `outputs` is not a dict, list or tuple, or its length differs from the number of
            outputs in the configuration

    Example:
        >>> convert_output([1, 2])
        {'OUTPUT_1': 1, 'OUTPUT_2': 2}
    """
    if isinstance(outputs, dict):
        return outputs
    if not isinstance(outputs, (list, tuple)):
        if isinstance(outputs, Mapping):  # e.g. a Request
            return dict(outputs)
        raise _unsupported(outputs, wrapped, model_config or _config_of(wrapped, instance))
    model_config = model_config or _config_of(wrapped, instance)
    if model_config is None or model_config.outputs is None:
        return {f"OUTPUT_{position}": value for position, value in enumerate(outputs, start=1)}
    names = [spec.name for spec in model_config.outputs]
    if len(outputs) != len(names):
        raise PyTritonValidationError(
            f"Outputs length different than config outputs length: {len(outputs)} returned, "
            f"{len(names)} configured ({', '.join(names)})."
        )
    return dict(zip(names, outputs))


def _config_of(
    wrapped: Callable[..., Any] | None, instance: Any | None
) -> TritonModelConfig | None:
    return None if wrapped is None else find_model_config(wrapped, instance)


def _unsupported(
    outputs: Any, wrapped: Callable[..., Any] | None, config: TritonModelConfig | None
) -> PyTritonValidationError:
    name, model = getattr(wrapped, "__name__", ""), getattr(config, "model_name", "")
    by = (f" of {name}()" if name else "") + (f" (model {model})" if model else "")
    missing = " Is a `return` missing?" if outputs is None else ""
    return PyTritonValidationError(
        f"Unsupported output type {type(outputs)}{by}.{missing} Return a dict of output name to numpy array, or a "
        "list or tuple of arrays in the order of the model's outputs."
    )


def named_outputs(
    outputs: Any, wrapped: Callable[..., Any], args: tuple[Any, ...]
) -> dict[str, Any]:
    """Convert a call's return value to outputs by name, or raise it if it is an exception.

    `args` are the call's positional arguments; for a method, the first one is `self`.
    """
    if type(outputs) is dict:  # the common case
        return outputs
    if isinstance(outputs, BaseException):  # returned instead of raised
        raise outputs
    return convert_output(outputs, wrapped, args[0] if args else None)
