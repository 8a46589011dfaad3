"""The model loading API: other models of the tritonserver, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from pytriton.pb_utils import host

__all__ = ["is_model_ready", "load_model", "unload_model"]


def load_model(
    model_name: str, config: str = "", files: Optional[Mapping[str, bytes]] = None
) -> None:
    """Have tritonserver load a model of its repository, or load it anew.

    Args:
        model_name: a model of the repository
        config: its configuration, JSON; empty: the one that it has
        files: contents by path, "file:1/model.onnx" for instance

    Raises:
        TritonModelException: it cannot be loaded; says why.
    """
    host.current().control("load", model_name, config=config, files=dict(files or {}))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have tritonserver unload a model; returns when it has begun to.

    Raises:
        TritonModelException: it refused.
    """
    host.current().control("unload", model_name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model is ready; without a version, whether any version of it is.

    Raises:
        TritonModelException: tritonserver could not be asked.
    """
    return host.current().control("is_ready", model_name, model_version=model_version)
