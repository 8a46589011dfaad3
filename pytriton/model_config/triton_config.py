"""Converts a model's name, tensors and `ModelConfig` to Triton's model configuration.

The result is the JSON form of the ModelConfig message in Triton's model_config.proto, which the `config`
parameter of a model-repository load request expects. The dispatcher adds the backend, the instance groups and
the proxy's parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytriton._protocol.arguments import plain
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config.common import DynamicBatcher, QueuePolicy, require_integer
from pytriton.model_config.dtypes import to_config_datatype
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.warmup import check_warmups

__all__ = ["name_tensors", "to_triton_config"]

_DEFAULT_CONFIG = ModelConfig()


def name_tensors(tensors: Sequence[Tensor], prefix: str) -> list[tuple[str, Tensor]]:
    """Return pairs of name and tensor, with default names for unnamed tensors.

    Args:
        tensors: inputs or outputs of a model, in order
        prefix: "INPUT" or "OUTPUT". An unnamed tensor is named ``INPUT_<position>``, with positions from 1.

    Raises:
        PyTritonValidationError: two tensors have the same name, or one is not a `Tensor`
    """
    named: dict[str, Tensor] = {}
    for position, tensor in enumerate(tensors, start=1):
        if not isinstance(tensor, Tensor):
            raise PyTritonValidationError(
                f"{prefix.lower()}s must be a sequence of Tensor, got {tensor!r} at position "
                f"{position}. (A trailing comma after Tensor(...) in an assignment creates a tuple.)"
            )
        name = tensor.name or f"{prefix}_{position}"
        if name in named:
            raise PyTritonValidationError(
                f"Two {prefix.lower()} tensors are called {name!r}. Names must be unique."
            )
        named[name] = tensor
    return list(named.items())


def to_triton_config(
    model_name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    config: ModelConfig | None = None,
    version: int = 1,
) -> dict[str, Any]:
    """Convert a model's name, tensors and configuration to the JSON form of Triton's model configuration.

    Args:
        model_name: valid name of the model
        inputs: input tensors. A model without inputs is served without batching, even if `config` enables it,
            because Triton derives the batch size from the first input.
        outputs: output tensors
        config: batching, queueing and more; None: ``ModelConfig()``
        version: version number under which the model is served, starting at 1

    Returns:
        a dict of JSON values, without backend and instance groups

    Raises:
        PyTritonValidationError: a tensor is invalid, or `config` is not a ModelConfig
        PyTritonBadParameterError: a value in `config` is invalid, or the version is below 1

    Example:
        >>> import numpy as np
        >>> x, y = Tensor((-1,), np.float32, "x"), Tensor((), "FP32", "y")
        >>> to_triton_config("m", [x], [y])["input"]
        [{'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [-1]}]
    """
    if config is None:
        config = _DEFAULT_CONFIG
    elif isinstance(config, ModelConfig):
        config.validate()
    else:
        raise PyTritonValidationError(
            f"config must be a ModelConfig, got {config!r}. Example: ModelConfig(max_batch_size=64)."
        )
    _require_collections(inputs, outputs)
    batching = config.batching and len(inputs) > 0
    if config is not _DEFAULT_CONFIG and config.batching and not batching:
        warnings.warn(
            f"Model {model_name!r} has no inputs, so it is served without batching: one request at a time, and "
            "its outputs have no batch axis (an axis of size 1 is removed). To avoid this warning, set "
            "ModelConfig(batching=False).",
            stacklevel=2,
        )
    if not batching:
        _reject_scalars(inputs, outputs)
    document: dict[str, Any] = {
        "name": model_name,
        "max_batch_size": config.max_batch_size if batching else 0,
        "input": _inputs(inputs),
        "output": _outputs(outputs),
    }
    if config.model_warmup:
        check_warmups(config.model_warmup, name_tensors(inputs, "INPUT"))
    extra = dict(config.extra or {})
    _check_version(extra.get("version_policy"), version)
    # Triton allows only one scheduler per model, and dynamic batching requires a batch axis.
    if batching and config.batcher is not None and "sequence_batching" not in extra:
        document["dynamic_batching"] = dynamic_batching(config.batcher)
    if config.response_cache:
        document["response_cache"] = {"enable": True}
    if config.decoupled:
        document["model_transaction_policy"] = {"decoupled": True}
    if config.parameters:
        document["parameters"] = {
            key: {"string_value": _parameter_text(value)}
            for key, value in config.parameters.items()
        }
    if version != 1 or isinstance(version, bool):
        require_integer(version, "model_version", minimum=1)
        # By default, Triton serves the highest version.
        document["version_policy"] = {"specific": {"versions": [version]}}
    return {**document, **extra}


def _check_version(policy: Mapping[str, Any] | None, version: int) -> None:
    served = ((policy or {}).get("specific") or {}).get("versions")
    if served is not None and version not in [int(one) for one in served]:
        raise PyTritonBadParameterError(
            f"The `version_policy` serves the versions {list(served)}, but the model is registered "
            f"as version {version}, so nothing would be served. Add {version} to the policy, or leave "
            "out the policy."
        )


def _require_collections(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for name, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(tensors, Collection):
            example = "[Tensor(...)]" if tensors is not None or name == "outputs" else "[]"
            raise PyTritonValidationError(
                f"{name} must be a sequence of Tensor, got {tensors!r}. Write {name}={example}."
            )


def _reject_scalars(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for tensor in (*inputs, *outputs):
        if isinstance(tensor, Tensor) and not tensor.shape:
            raise PyTritonValidationError(
                f"The tensor {tensor.name or '(unnamed)'!r} has the shape (), but Triton does not "
                "support scalars in models without batching. Use the shape (1,)."
            )


def _inputs(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    entries = []
    for name, tensor in name_tensors(tensors, "INPUT"):
        entry = _tensor(name, tensor)
        if tensor.optional:
            entry["optional"] = True
        entries.append(entry)
    return entries


def _outputs(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    if any(isinstance(tensor, Tensor) and tensor.optional for tensor in tensors):
        raise PyTritonValidationError("Output tensors cannot be optional.")
    return [_tensor(name, tensor) for name, tensor in name_tensors(tensors, "OUTPUT")]


def _tensor(name: str, tensor: Tensor) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "data_type": to_config_datatype(tensor.dtype)}
    if tensor.shape:
        entry["dims"] = list(tensor.shape)
    else:
        # Triton rejects empty dims ("must specify 'dims'"). For the client, a scalar has dims [1]. For the
        # callable it is reshaped to no dimensions (besides the batch axis).
        entry.update(dims=[1], reshape={"shape": []})
    return entry


def dynamic_batching(batcher: DynamicBatcher) -> dict[str, Any]:
    """Convert a `DynamicBatcher` to the JSON form of Triton's ModelDynamicBatching message."""
    section: dict[str, Any] = {
        "max_queue_delay_microseconds": batcher.max_queue_delay_microseconds,
        "preserve_ordering": batcher.preserve_ordering,
    }
    if batcher.preferred_batch_size:
        section["preferred_batch_size"] = [int(size) for size in batcher.preferred_batch_size]
    if batcher.priority_levels:
        section["priority_levels"] = batcher.priority_levels
        section["default_priority_level"] = batcher.default_priority_level
    if batcher.default_queue_policy is not None:
        section["default_queue_policy"] = _queue_policy(batcher.default_queue_policy)
    if batcher.priority_queue_policy:
        # Keys of a JSON object are always strings, although the message's map has integer keys.
        section["priority_queue_policy"] = {
            str(priority): _queue_policy(policy)
            for priority, policy in batcher.priority_queue_policy.items()
        }
    return section


def _queue_policy(policy: QueuePolicy) -> dict[str, Any]:
    return {
        "timeout_action": policy.timeout_action.name,
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_size": policy.max_queue_size,
    }


def _parameter_text(value: str | int | bool | float) -> str:
    value = plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
