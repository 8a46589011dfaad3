"""Converts inputs from the user's form to Triton's form, and outputs from Triton's form to the user's."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytriton._protocol.numpy_types import MASKED, is_masked
from pytriton.client.exceptions import (
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientValueError,
)
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.dtypes import to_triton_datatype
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

__all__ = [
    "Array",
    "Outputs",
    "check_convention",
    "decode",
    "encode",
    "named_inputs",
    "require_inputs",
    "restore",
]

Array = npt.NDArray[Any]
#: Name of an output -> its value.
Outputs = dict[str, Array]


def check_convention(positional: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise `PyTritonClientValueError` if inputs are passed both by position and by name."""
    if positional and named:
        raise PyTritonClientValueError(
            "Use either positional either keyword method arguments convention: got "
            f"{len(positional)} by position and {', '.join(sorted(named))} by name."
        )


def require_inputs(
    config: TritonModelConfig, positional: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raise `PyTritonClientValueError` if the model has inputs but none is passed."""
    if config.inputs and not positional and not named:
        names = _listed(spec.name for spec in config.inputs)
        raise PyTritonClientValueError(
            f"Provide input data: model {config.model_name} has the inputs {names}."
        )


def named_inputs(
    config: TritonModelConfig,
    positional: Sequence[Any],
    named: Mapping[str, Any],
    *,
    sample: bool,
) -> dict[str, Array]:
    """Return the inputs as arrays by name, in the shapes that Triton expects.

    Args:
        config: the model's configuration
        positional: inputs in the model's order; trailing optional ones may be omitted
        named: inputs by name, instead of `positional`
        sample: whether the inputs have no batch axis; it is added if the model batches

    Raises:
        PyTritonClientValueError: there are too many inputs, or an input is not an array, has an unsupported type, or
            has no rows
        PyTritonClientModelDoesntSupportBatchingError: `sample` is False, but the model does not batch
        RuntimeError: an array contains str, or objects that are not bytes
    """
    if not sample and not config.batching:
        raise PyTritonClientModelDoesntSupportBatchingError(
            f"Model {config.model_name} doesn't support batching - use infer_sample method instead"
        )
    specs = {spec.name: spec for spec in config.inputs or ()}
    given = _by_name(config, list(specs), positional) if positional else dict(named)
    arrays = {}
    for name, value in given.items():
        array = _checked(name, value)
        if sample and config.batching:
            array = array[np.newaxis, ...]
        elif not sample and array.ndim and array.shape[0] == 0:
            raise PyTritonClientValueError(
                f"Input {name!r} has no rows (its shape is {array.shape}). A batch must have at least one row."
            )
        arrays[name] = _wire_shape(array, specs.get(name), config)
    return arrays


def _by_name(
    config: TritonModelConfig, names: Sequence[str], positional: Sequence[Any]
) -> dict[str, Any]:
    if len(positional) > len(names):
        raise PyTritonClientValueError(
            f"Model {config.model_name} takes {len(names)} inputs ({_listed(names)}), "
            f"got {len(positional)} positional arguments."
        )
    return dict(zip(names, positional))  # optional inputs may be omitted


def _checked(name: str, value: Any) -> Array:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        raise PyTritonClientValueError(
            f"Input {name!r} must be a numpy array, got {type(value).__name__}. "
            "Convert it with np.asarray(value, dtype=...)."
        )
    if is_masked(value):
        raise PyTritonClientValueError(f"Input {name!r} {MASKED}.")
    if value.dtype.kind == "U":
        raise RuntimeError(
            f"Unicode inputs are not supported. Encode numpy array {name!r} with "
            "np.char.encode(array, 'utf-8')."
        )
    if value.dtype.kind == "O":
        _require_bytes(name, value)
    native: Array = value.astype(value.dtype.newbyteorder("="), copy=False)
    return native


def _require_bytes(name: str, array: Array) -> None:
    for item in array.flat:
        if not isinstance(item, bytes):
            raise RuntimeError(
                f"Input {name!r} has dtype object and holds {type(item).__name__} "
                f"({item!r:.60}). Use only bytes in arrays of objects; encode text with "
                "value.encode('utf-8')."
            )


def _is_scalar(spec: TensorSpec | None) -> bool:
    # Triton does not support tensors without any axis besides the batch axis, so they are sent with shape [1].
    return spec is not None and spec.shape == ()


def _wire_shape(array: Array, spec: TensorSpec | None, config: TritonModelConfig) -> Array:
    if _is_scalar(spec) and array.ndim == int(config.batching):
        return array[..., np.newaxis]
    return array


#: Cached, because computing it would take longer than the rest of a request's preparation.
_datatype = functools.lru_cache(maxsize=64)(to_triton_datatype)


def encode(arrays: Mapping[str, Array], module: Any) -> list[Any]:
    """Convert arrays to tritonclient's `InferInput` objects, with the classes of `module`.

    Raises:
        PyTritonClientValueError: Triton does not support the data type
    """
    tensors = []
    for name, array in arrays.items():
        try:
            datatype = _datatype(array.dtype)
        except PyTritonBadParameterError as error:
            raise PyTritonClientValueError(f"Input {name!r}: {error}") from None
        tensor = module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def decode(result: Any) -> Outputs:
    """Return the outputs of a tritonclient response as arrays by name, for either protocol."""
    response = result.get_response()
    if isinstance(response, dict):
        names = [output["name"] for output in response.get("outputs", ())]
    else:
        names = [output.name for output in response.outputs]
    return {name: result.as_numpy(name) for name in names}


def restore(outputs: Outputs, config: TritonModelConfig, *, sample: bool) -> Outputs:
    """Undo the reshaping by `named_inputs`: remove the axis that was added to scalars, and a sample's batch axis."""
    specs = {spec.name: spec for spec in config.outputs or ()}
    restored = {}
    for name, array in outputs.items():
        if _is_scalar(specs.get(name)) and array.ndim == 1 + config.batching:
            array = array[..., 0]
        restored[name] = array[0, ...] if sample and config.batching else array
    return restored


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
