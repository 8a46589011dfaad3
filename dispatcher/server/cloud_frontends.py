"""The endpoints for Amazon SageMaker and Google Vertex AI, if tritonserver's options enable them.

NVIDIA's Vertex AI frontend starts only if its default model is loaded (Triton 2.51), but a model can only be registered
once the server runs. tritonserver therefore starts without that frontend. Once the model is registered, tritonserver
restarts with it and loads all models before it opens a port, so that clients of Vertex AI's port always find the model.
The native frontend serves both endpoints from the start, and reports "not ready" until the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pytriton._host.ports import PortError

#: Listening address: cloud platforms connect from outside of the container.
ADDRESS = "0.0.0.0"
_PORT = "8080"
#: Directory in which SageMaker puts the models of a multi-model endpoint before it loads them.
_SAGEMAKER_MODELS = "/opt/ml/models"
#: Environment variable that selects the Triton endpoint behind SageMaker's /invocations.
_INFERENCE_TYPE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_INFERENCE_TYPES = ("infer", "generate", "generate_stream")


class Cloud(NamedTuple):
    """Endpoint of a cloud platform.

    Attributes:
        protocol: name of the endpoint in the native frontend's settings
        port: port to listen on
        setting: option of tritonserver that sets the port
    """

    protocol: str
    port: int
    setting: str


def vertex_model(options: Mapping[str, object]) -> str | None:
    """Return the name of Vertex AI's default model from tritonserver's options; None if Vertex AI is not enabled."""
    name = options.get("vertex-ai-default-model")
    return str(name) if name and options.get("allow-vertex-ai") == "true" else None


def served(options: Mapping[str, object], environment: Mapping[str, str]) -> list[Cloud]:
    """Return the cloud endpoints that tritonserver's options and the clouds' environment variables enable.

    Raises:
        PortError: a variable of Vertex AI is missing, or SageMaker's inference type is unknown
    """
    found = []
    if options.get("allow-sagemaker") == "true":
        kind = environment.get(_INFERENCE_TYPE) or _INFERENCE_TYPES[0]
        if kind not in _INFERENCE_TYPES:
            raise PortError(
                f"{_INFERENCE_TYPE} is {kind!r}, but must be one of {', '.join(_INFERENCE_TYPES)}"
            )
        port = str(options.get("sagemaker-port", _PORT))
        found.append(Cloud("sagemaker", int(port), "sagemaker-port"))
    on_vertex = "true" if environment.get("AIP_MODE") == "PREDICTION" else "false"
    if options.get("allow-vertex-ai", on_vertex) == "true":
        missing = [
            f"AIP_{name}_ROUTE"
            for name in ("HEALTH", "PREDICT")
            if not environment.get(f"AIP_{name}_ROUTE")
        ]
        if missing:
            raise PortError(
                f"Vertex AI is enabled (allow-vertex-ai), but {' and '.join(missing)} must be set in "
                "the environment, to define the paths to serve"
            )
        port = str(options.get("vertex-ai-port", environment.get("AIP_HTTP_PORT", _PORT)))
        found.append(Cloud("vertex_ai", int(port), "vertex-ai-port"))
    return found


def cloud_settings(options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of the native frontend's settings document (see startup/settings.h) about cloud platforms:
    paths and models.
    """
    return {
        "vertex": {
            "health": environment.get("AIP_HEALTH_ROUTE"),
            "predict": environment.get("AIP_PREDICT_ROUTE"),
            "model": options.get("vertex-ai-default-model"),
        },
        "sagemaker": {
            "model": environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
            "folder": _SAGEMAKER_MODELS
            if environment.get("SAGEMAKER_MULTI_MODEL") == "true"
            else None,
            "inference": environment.get(_INFERENCE_TYPE) or _INFERENCE_TYPES[0],
        },
    }
