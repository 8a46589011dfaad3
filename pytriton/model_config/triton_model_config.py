"""`TritonModelConfig`: a model configuration, parsed from the JSON form that the server returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytriton._protocol.arguments import closest_keywords
from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    QueuePolicy,
    ResponseCache,
    TimeoutAction,
)
from pytriton.model_config.dtypes import to_numpy_dtype
from pytriton.model_config.warmup import ModelWarmup

__all__ = ["TensorSpec", "TritonModelConfig"]

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, PyTritonBadParameterError)


@closest_keywords
@dataclass
class TensorSpec:
    """An input or output in a `TritonModelConfig`.

    Args:
        name: name of the tensor
        dtype: numpy scalar type, e.g. ``np.float32``; ``np.bytes_`` for BYTES
        shape: shape without the batch axis; -1 for dimensions of any size
        optional: whether requests may omit this input
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    optional: bool = False


@closest_keywords
@dataclass
class TritonModelConfig:
    """The configuration of a model, as clients get it from the server and decorators get it from the worker.

    Args:
        model_name: name of the model
        model_version: version number, starting at 1
        max_batch_size: maximum number of rows in one batch; 0 without batching
        batching: whether requests have a batch axis
        batcher: settings of the dynamic batcher; None: requests are not combined
        instance_group: device kind -> number of instances; None is Triton's default
        decoupled: whether a request may have any number of responses
        backend_parameters: the model's parameters, as strings
        inputs: input tensors, in order
        outputs: output tensors, in order
        response_cache: whether identical requests are answered from Triton's response cache
        model_warmup: warm-up requests, which only the worker knows; None in a configuration from the server
        backend: name of the Triton backend
    """

    model_name: str
    model_version: int = 1
    max_batch_size: int = 4
    batching: bool = True
    batcher: DynamicBatcher | None = field(default_factory=DynamicBatcher)
    instance_group: dict[DeviceKind, int | None] = field(default_factory=dict)
    decoupled: bool = False
    backend_parameters: dict[str, str] = field(default_factory=dict)
    inputs: Sequence[TensorSpec] | None = None
    outputs: Sequence[TensorSpec] | None = None
    response_cache: ResponseCache | None = None
    model_warmup: Sequence[ModelWarmup] | None = None
    backend: str = "python"

    @classmethod
    def from_triton_config(cls, document: Mapping[str, Any], version: int = 1) -> TritonModelConfig:
        """Convert the JSON form of Triton's model configuration.

        Args:
            document: the result of `to_triton_config`, or the response of the server's config endpoint,
                in which int64 values may be strings, as protobuf's JSON format prescribes
            version: the model's version number

        Raises:
            PyTritonModelConfigError: the document is not a model configuration
        """
        try:
            return _parse(document, version)
        except _MALFORMED as error:
            raise PyTritonModelConfigError(
                f"Not a Triton model configuration ({type(error).__name__}: {error}): {document!r}"
            ) from error


def _parse(document: Mapping[str, Any], version: int) -> TritonModelConfig:
    max_batch_size = int(document.get("max_batch_size", 0))
    cache = document.get("response_cache")
    batcher = document.get("dynamic_batching")
    return TritonModelConfig(
        model_name=document["name"],
        model_version=version,
        max_batch_size=max_batch_size,
        batching=max_batch_size > 0,
        batcher=None if batcher is None else _parse_batcher(batcher),
        instance_group=_parse_instances(document.get("instance_group", ())),
        decoupled=bool(document.get("model_transaction_policy", {}).get("decoupled", False)),
        backend_parameters={
            key: value["string_value"] for key, value in document.get("parameters", {}).items()
        },
        inputs=[_parse_tensor(entry) for entry in document.get("input", ())],
        outputs=[_parse_tensor(entry) for entry in document.get("output", ())],
        response_cache=None if cache is None else ResponseCache(bool(cache.get("enable", False))),
        backend=document.get("backend") or "python",
    )


def _parse_tensor(entry: Mapping[str, Any]) -> TensorSpec:
    dtype = to_numpy_dtype(entry["data_type"])
    scalar = np.bytes_ if dtype.kind == "O" else dtype.type  # as PyTriton shows BYTES
    shape = entry["dims"]
    if "reshape" in entry and entry["reshape"] is not None:
        shape = entry["reshape"].get("shape", ())
    return TensorSpec(
        name=entry["name"],
        dtype=scalar,
        shape=tuple(int(size) for size in shape),
        optional=bool(entry.get("optional", False)),
    )


def _parse_batcher(section: Mapping[str, Any]) -> DynamicBatcher:
    default_policy = section.get("default_queue_policy")
    policies = section.get("priority_queue_policy") or {}
    sizes = section.get("preferred_batch_size") or ()
    return DynamicBatcher(
        max_queue_delay_microseconds=int(section.get("max_queue_delay_microseconds", 0)),
        preferred_batch_size=[int(size) for size in sizes] or None,
        preserve_ordering=bool(section.get("preserve_ordering", False)),
        priority_levels=int(section.get("priority_levels", 0)),
        default_priority_level=int(section.get("default_priority_level", 0)),
        default_queue_policy=None if default_policy is None else _parse_policy(default_policy),
        priority_queue_policy={int(key): _parse_policy(value) for key, value in policies.items()}
        or None,
    )


def _parse_policy(section: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction[section.get("timeout_action", "REJECT")],
        default_timeout_microseconds=int(section.get("default_timeout_microseconds", 0)),
        allow_timeout_override=bool(section.get("allow_timeout_override", False)),
        max_queue_size=int(section.get("max_queue_size", 0)),
    )


def _parse_instances(groups: Sequence[Mapping[str, Any]]) -> dict[DeviceKind, int | None]:
    counts: dict[DeviceKind, int | None] = {}
    for group in groups:
        kind = DeviceKind[group.get("kind", "KIND_AUTO")]
        count = None if group.get("count") is None else int(group["count"])
        # A group without `count` has one instance, Triton's default. A single such group is shown as None.
        counts[kind] = (counts[kind] or 1) + (count or 1) if kind in counts else count
    return counts
