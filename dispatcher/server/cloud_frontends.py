"""The frontends of two clouds, Amazon SageMaker's and Google Vertex AI's, which tritonserver's options switch on.

NVIDIA's frontend of Vertex AI starts only when its default model is loaded (Triton 2.51), and a registration needs a
server. So tritonserver starts without that frontend. As soon as the model is served, tritonserver is started once more,
with the frontend, and loads all models before it opens a port: whoever reaches Vertex AI's port reaches the model.

The native front has both from its start: as long as the model is not there, it says that it is not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pytriton._host.ports import PortError

#: Clouds reach their containers from outside.
ADDRESS = "0.0.0.0"
_PORT = "8080"
#: Where SageMaker puts models of multi-model endpoints, which it then has loaded.
_SAGEMAKER_MODELS = "/opt/ml/models"
#: Says which of Triton's endpoints /invocations is.
_INFERENCE_TYPE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_INFERENCE_TYPES = ("infer", "generate", "generate_stream")


class Cloud(NamedTuple):
    """An endpoint of one.

    Attributes:
        protocol: what the native front calls it
        port: where it listens
        setting: the option that says so
    """

    protocol: str
    port: int
    setting: str


def vertex_model(options: Mapping[str, object]) -> str | None:
    """Return the name of Vertex AI's default model that tritonserver's options ask for, None if they ask for none."""
    name = options.get("vertex-ai-default-model")
    return str(name) if name and options.get("allow-vertex-ai") == "true" else None


def served(options: Mapping[str, object], environment: Mapping[str, str]) -> list[Cloud]:
    """Return the endpoints that are to be served, by the options' and the clouds' own variables.

    Raises:
        PortError: Vertex AI does not say which paths it asks, or SageMaker asks for an inference that there is not.
    """
    found = []
    if options.get("allow-sagemaker") == "true":
        kind = environment.get(_INFERENCE_TYPE) or _INFERENCE_TYPES[0]
        if kind not in _INFERENCE_TYPES:
            raise PortError(
                f"{_INFERENCE_TYPE} is {kind!r}; it takes one of {', '.join(_INFERENCE_TYPES)}"
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
                f"Vertex AI is to be served (allow-vertex-ai), and {' and '.join(missing)} of its environment "
                "are missing, which say where it asks"
            )
        port = str(options.get("vertex-ai-port", environment.get("AIP_HTTP_PORT", _PORT)))
        found.append(Cloud("vertex_ai", int(port), "vertex-ai-port"))
    return found


def told(options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the native front is told of the clouds' paths and models; see program/settings.h."""
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
