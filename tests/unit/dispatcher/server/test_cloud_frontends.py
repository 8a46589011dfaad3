"""Which clouds' frontends are enabled, at which address, and for which model."""

from __future__ import annotations

import pytest

from pytriton._host.ports import PortError
from pytriton.dispatcher.server import cloud_frontends
from pytriton.dispatcher.server.cloud_frontends import Cloud

_ROUTES = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ({}, None),
        ({"vertex-ai-default-model": "m"}, None),
        ({"allow-vertex-ai": "true"}, None),
        ({"allow-vertex-ai": "true", "vertex-ai-default-model": ""}, None),
        ({"allow-vertex-ai": "false", "vertex-ai-default-model": "m"}, None),
        ({"allow-vertex-ai": "true", "vertex-ai-default-model": "m"}, "m"),
    ],
)
def test_vertex_ai_needs_a_model_and_permission(options: dict[str, str], model: str | None) -> None:
    assert cloud_frontends.vertex_model(options) == model


@pytest.mark.parametrize(
    ("options", "environment", "found"),
    [
        ({}, {}, []),
        ({"sagemaker-port": "9"}, {}, []),
        ({"allow-sagemaker": "true"}, {}, [Cloud("sagemaker", 8080, "sagemaker-port")]),
        (
            {"allow-sagemaker": "true", "sagemaker-port": "9"},
            {},
            [Cloud("sagemaker", 9, "sagemaker-port")],
        ),
        ({"allow-vertex-ai": "true"}, _ROUTES, [Cloud("vertex_ai", 8080, "vertex-ai-port")]),
        (
            {},
            {**_ROUTES, "AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "7"},
            [Cloud("vertex_ai", 7, "vertex-ai-port")],
        ),
        (
            {"vertex-ai-port": "5", "allow-vertex-ai": "true"},
            {**_ROUTES, "AIP_HTTP_PORT": "7"},
            [Cloud("vertex_ai", 5, "vertex-ai-port")],
        ),
        ({"allow-vertex-ai": "false"}, {"AIP_MODE": "PREDICTION"}, []),
    ],
)
def test_their_addresses(
    options: dict[str, str], environment: dict[str, str], found: list[Cloud]
) -> None:
    assert cloud_frontends.served(options, environment) == found


def test_missing_vertex_ai_paths_are_refused() -> None:
    with pytest.raises(PortError, match="AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE must be set"):
        cloud_frontends.served({"allow-vertex-ai": "true"}, {})


@pytest.mark.parametrize(
    ("several", "folder"), [(None, None), ("false", None), ("true", "/opt/ml/models")]
)
def test_the_settings_passed_to_the_native_frontend(
    several: str | None, folder: str | None
) -> None:
    environment = {**_ROUTES, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "s"}
    if several is not None:
        environment["SAGEMAKER_MULTI_MODEL"] = several
    assert cloud_frontends.cloud_settings({"vertex-ai-default-model": "v"}, environment) == {
        "vertex": {"health": "/health", "predict": "/predict", "model": "v"},
        "sagemaker": {"model": "s", "folder": folder, "inference": "infer"},
    }
    environment["SAGEMAKER_TRITON_INFERENCE_TYPE"] = "generate_stream"
    assert (
        cloud_frontends.cloud_settings({}, environment)["sagemaker"]["inference"]
        == "generate_stream"
    )


def test_an_unknown_sagemaker_inference_type_is_refused() -> None:
    environment = {"SAGEMAKER_TRITON_INFERENCE_TYPE": "chat"}
    with pytest.raises(
        PortError, match="'chat', but must be one of infer, generate, generate_stream"
    ):
        cloud_frontends.served({"allow-sagemaker": "true"}, environment)
    assert cloud_frontends.served({}, environment) == []
