"""Names that users of PyTriton import; bases and members are in the snapshot of the public API."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import get_type_hints

import pytest

from pytriton import constants
from pytriton.decorators import InferenceRequests, InferenceResults, InputNames
from pytriton.proxy.types import Request, Requests, Response, Responses

#: Module -> names that PyTriton's documents and examples import from it.
NAMES = {
    "pytriton": "client model_config triton",
    "pytriton.check.utils": "DEFAULT_LOG_FORMAT ProcessMonitoring ScriptThread "
    "TestMonitoringContext find_free_port get_current_container_version "
    "search_warning_on_too_verbose_log_level verify_docker_image_in_readme_same_as_tested",
    "pytriton.client": "AsyncioDecoupledModelClient AsyncioModelClient DecoupledModelClient "
    "FuturesModelClient ModelClient",
    "pytriton.client.client": "AsyncioDecoupledModelClient AsyncioModelClient BaseModelClient "
    "DecoupledModelClient FuturesModelClient ModelClient",
    "pytriton.client.utils": "create_client_from_url wait_for_model_ready wait_for_server_ready",
    "pytriton.client.auth": "create_auth_headers extract_access_token_from_headers",
    "pytriton.client.exceptions": "PyTritonClientError PyTritonClientTimeoutError",
    "pytriton.client.warnings": "NotSupportedTimeoutWarning",
    "pytriton.constants": "DEFAULT_GRPC_PORT DEFAULT_HTTP_PORT DEFAULT_METRICS_PORT PYTRITON_HOME "
    "TRITON_CONTEXT_FIELD_NAME",
    "pytriton.decorators": "ConstantPadder InferenceRequest InferenceRequests InferenceResult "
    "InferenceResults InputNames ModelConfigDict TritonContext batch convert_output "
    "fill_optionals first_value get_inference_request_batch_size get_model_config "
    "get_triton_context group_by_keys group_by_values pad_batch sample triton_context",
    "pytriton.exceptions": "PyTritonBadParameterError PyTritonError PyTritonInvalidOperationError "
    "PyTritonModelConfigError PyTritonRuntimeError PyTritonUnrecoverableError "
    "PyTritonValidationError",
    "pytriton.model_config": "DeviceKind DynamicBatcher ModelConfig QueuePolicy Tensor "
    "TimeoutAction",
    "pytriton.model_config.common": "DeviceKind DynamicBatcher ModelWarmup QueuePolicy "
    "ResponseCache TimeoutAction WarmupInput",
    "pytriton.model_config.generator": "ModelConfigGenerator",
    "pytriton.model_config.model_config": "ModelConfig",
    "pytriton.model_config.parser": "ModelConfigParser",
    "pytriton.model_config.tensor": "Tensor",
    "pytriton.model_config.triton_model_config": "DeviceKind DynamicBatcher QueuePolicy "
    "ResponseCache TensorSpec TimeoutAction TritonModelConfig",
    "pytriton.proxy.telemetry": "get_telemetry_tracer set_telemetry_tracer",
    "pytriton.proxy.types": "Request Requests Response Responses",
    "pytriton.triton": "DEFAULT_PROTECTED_ENDPOINTS DefaultTritonLifecyclePolicy RemoteTriton "
    "TRITON_ACCESS_HEADER Triton TritonConfig TritonLifecyclePolicy TritonSecurityConfig "
    "VALID_TRITON_ENDPOINTS VertextAILifecyclePolicy",
    "pytriton.utils.workspace": "CleanupWarning Workspace",
}


@pytest.mark.parametrize("module", NAMES)
def test_modules_have_pytritons_names(module: str) -> None:
    found = import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


def test_annotations_can_be_resolved_at_run_time() -> None:
    """As frameworks do that read a callable's annotations."""

    def infer(requests: InferenceRequests, names: InputNames) -> InferenceResults:
        return [dict(request) for request in requests]

    def undecorated(requests: Requests) -> Responses:
        return [Response(request.data) for request in requests]

    for function in (infer, undecorated):
        assert set(get_type_hints(function)) >= {"requests", "return"}
    assert get_type_hints(undecorated)["requests"] == list[Request]


def test_the_context_has_the_keywords_name() -> None:
    assert constants.TRITON_CONTEXT_FIELD_NAME == "triton_context"


def test_fields_of_dataclasses_are_in_pytritons_order() -> None:
    """They may be passed by position; our own fields come last."""
    orders = {
        "ModelConfig": "batching max_batch_size batcher response_cache decoupled model_warmup",
        "Tensor": "shape dtype name optional",
        "DynamicBatcher": "max_queue_delay_microseconds preferred_batch_size preserve_ordering "
        "priority_levels default_priority_level default_queue_policy priority_queue_policy",
        "QueuePolicy": "timeout_action default_timeout_microseconds allow_timeout_override "
        "max_queue_size",
        "ModelWarmup": "name batch_size inputs count",
        "WarmupInput": "dtype shape zero_data random_data input_data_file",
        "TritonModelConfig": "model_name model_version max_batch_size batching batcher "
        "instance_group decoupled backend_parameters inputs outputs response_cache model_warmup",
        "TensorSpec": "name dtype shape optional",
    }
    module = import_module("pytriton.model_config")
    for name, order in orders.items():
        fields = [field.name for field in dataclasses.fields(getattr(module, name))]
        assert fields[: len(order.split())] == order.split(), name
