"""The configuration of a model: its tensors, batching, queueing, cache and warm-up.

These are plain dataclasses that need no running server. `to_triton_config` converts them to Triton's model
configuration; `TritonModelConfig.from_triton_config` reads such a configuration.
"""

from __future__ import annotations

from pytriton.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    QueuePolicy,
    ResponseCache,
    TimeoutAction,
)
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.triton_config import to_triton_config
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.model_config.warmup import ModelWarmup, WarmupInput

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelConfig",
    "ModelWarmup",
    "QueuePolicy",
    "ResponseCache",
    "Tensor",
    "TensorSpec",
    "TimeoutAction",
    "TritonModelConfig",
    "WarmupInput",
    "to_triton_config",
]
