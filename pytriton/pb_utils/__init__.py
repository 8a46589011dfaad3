"""Implements `triton_python_backend_utils`, the module that a Triton `model.py` imports.

A worker installs it under that name before it imports the model, so that `import triton_python_backend_utils as
pb_utils` works without tritonserver. In a script or test, `install()` does the same:

    >>> from pytriton import pb_utils
    >>> pb_utils.install()  # doctest: +SKIP
    >>> import model  # a model.py, doctest: +SKIP

Names and behavior follow the documentation of Triton's python backend; docs/how-to/model-py.md lists the
differences.
"""

from __future__ import annotations

import sys

from pytriton.pb_utils.errors import TritonError, TritonModelException
from pytriton.pb_utils.helpers import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_model_dir,
    get_output_config_by_name,
    get_output_tensor_by_name,
    is_model_ready,
    load_model,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    unload_model,
    using_decoupled_model_transaction_policy,
)
from pytriton.pb_utils.logger import Logger
from pytriton.pb_utils.metrics import Metric, MetricFamily
from pytriton.pb_utils.model_config import ModelConfig
from pytriton.pb_utils.requests import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    ResponseSender,
)
from pytriton.pb_utils.tensor import Tensor

#: The name under which models import this package.
MODULE_NAME = "triton_python_backend_utils"

__all__ = [
    "MODULE_NAME",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseSender",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "install",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


def install() -> None:
    """Make `import triton_python_backend_utils` import this package in this process."""
    sys.modules[MODULE_NAME] = sys.modules[__name__]
