"""OpenAPI document of tritonserver's HTTP API, with the inputs and outputs of each model.

Sources: the OpenAPI Specification 3.1.0, the KServe v2 protocol, and Triton's generate extension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pytriton._protocol.messages.client import ModelInfo
from pytriton.dispatcher.telemetry.dashboard.examples import (
    DeclaredTensor,
    example_request,
    inputs,
    is_decoupled,
    outputs,
)

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}


def document(models: Iterable[ModelInfo], http_url: str, version: str) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        models: served models
        http_url: base URL of the API; "" if unknown
        version: version of the daemon
    """
    paths = _general()
    for model in models:
        paths.update(_of_model(model))
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "pytriton-daemon",
            "version": version,
            "description": "The KServe v2 protocol over HTTP, with Triton's extensions.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _object({"error": _TEXT}, ["error"])}},
    }
    if http_url:
        found["servers"] = [{"url": http_url}]
    return found


def _general() -> dict[str, Any]:
    return {
        "/v2/health/live": {"get": _operation("Check whether the server is live", "health", {})},
        "/v2/health/ready": {
            "get": _operation("Check whether the server and all its models are ready", "health", {})
        },
        "/v2": {
            "get": _operation(
                "Get the server's name, version and extensions",
                "server",
                _object(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "extensions": {"type": "array", "items": _TEXT},
                    }
                ),
            )
        },
    }


def _of_model(model: ModelInfo) -> dict[str, Any]:
    path = f"/v2/models/{quote(model.name, safe='')}"
    tags = {"tags": [model.name]}
    found = {
        path: {
            "get": {
                **_operation("Get the model's inputs and outputs", "model", {"type": "object"}),
                **tags,
            }
        },
        f"{path}/ready": {
            "get": {**_operation("Check whether the model is ready", "model", {}), **tags}
        },
    }
    if is_decoupled(model.config):
        stream = {
            "summary": "Infer with a stream of responses, as server-sent events",
            **tags,
            "requestBody": _body(_flat(inputs(model.config)), None),
            "responses": {
                "200": {
                    "description": "one `data: {…}` line per response",
                    "content": {"text/event-stream": {"schema": _TEXT}},
                },
                **_errors(),
            },
        }
        return {**found, f"{path}/generate_stream": {"post": stream}}
    infer = {
        **_operation("Infer", "model", _answer(outputs(model.config))),
        **tags,
        "requestBody": _body(_request(inputs(model.config)), example_request(model.config)),
    }
    return {**found, f"{path}/infer": {"post": infer}}


def _operation(summary: str, tag: str, schema: _Schema) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "success"}
    if schema:
        answer["content"] = {"application/json": {"schema": schema}}
    return {"summary": summary, "tags": [tag], "responses": {"200": answer, **_errors()}}


def _errors() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    content = {"application/json": {"schema": schema}}
    return {"default": {"description": "an error and its reason", "content": content}}


def _body(schema: _Schema, example: Any) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": schema}
    if example is not None:
        media["example"] = example
    return {"required": True, "content": {"application/json": media}}


def _object(properties: Mapping[str, _Schema], required: Iterable[str] = ()) -> _Schema:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def _request(tensors: list[DeclaredTensor]) -> _Schema:
    return _object(
        {
            "id": _TEXT,
            "parameters": {"type": "object"},
            "inputs": {"type": "array", "items": {"oneOf": [_tensor(one) for one in tensors]}},
            "outputs": {"type": "array", "items": _object({"name": _TEXT}, ["name"])},
        },
        ["inputs"],
    )


def _answer(tensors: list[DeclaredTensor]) -> _Schema:
    return _object(
        {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "id": _TEXT,
            "outputs": {"type": "array", "items": {"oneOf": [_tensor(one) for one in tensors]}},
        }
    )


def _tensor(one: DeclaredTensor) -> _Schema:
    shape = ", ".join("any" if size < 0 else str(size) for size in one.shape)
    return {
        **_object(
            {
                "name": {"const": one.name},
                "datatype": {"const": one.datatype},
                "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "data": {"type": "array", "items": _element(one.datatype)},
            },
            ["name", "datatype", "shape", "data"],
        ),
        "description": f"shape ({shape})" + (", optional" if one.optional else ""),
    }


def _flat(tensors: list[DeclaredTensor]) -> _Schema:
    """Return the schema of a request to the generate extension. Each input is a field of the request."""
    properties = {
        one.name: {"oneOf": [_element(one.datatype), {"type": "array"}]} for one in tensors
    }
    return _object(properties, [one.name for one in tensors if not one.optional])


def _element(datatype: str) -> _Schema:
    if datatype == "BYTES":
        return _TEXT
    if datatype == "BOOL":
        return {"type": "boolean"}
    return {"type": "number" if datatype.startswith(("FP", "BF")) else "integer"}
