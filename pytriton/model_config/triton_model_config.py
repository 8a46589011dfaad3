"""`TritonModelConfig`: a model configuration as known to the server, parsed from its JSON form."""

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
    """Name, numpy scalar type and shape (without the batch axis) of one input or output."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    optional: bool = False


@closest_keywords
@dataclass
class TritonModelConfig:
    """The configuration of a model as the server returns it and decorators receive it.

    Args:
        model_name: name of the model
        model_version: version number, from 1
        max_batch_size: maximum number of rows in one batch; 0 without batching
        batching: requests have a batch axis
        batcher: dynamic batching, None if batches are not combined
        instance_group: device kind -> number of instances; None is Triton's default
        decoupled: any number of responses per request
        backend_parameters: parameters of the model, as strings
        inputs: tensors the model takes, in order
        outputs: tensors the model returns, in order
        response_cache: whether repeated requests are answered from the cache
        model_warmup: warm-up requests (stored by the worker, not by the server)
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
        """Read Triton's model configuration from its JSON form.

        Args:
            document: the result of `to_triton_config`, or of the server's config endpoint
                (which may give int64 values as strings, as protobuf's JSON prescribes)
            version: version number the configuration belongs to

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
        # A group without a number has Triton's default, one; a single such group is shown as unset.
        counts[kind] = (counts[kind] or 1) + (count or 1) if kind in counts else count
    return counts
