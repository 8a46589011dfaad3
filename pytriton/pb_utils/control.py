"""The model loading API: loads and unloads other models of the tritonserver by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from pytriton._protocol.words import with_article
from pytriton.pb_utils import host

__all__ = ["is_model_ready", "load_model", "unload_model"]


def load_model(
    model_name: str, config: str = "", files: Optional[Mapping[str, bytes]] = None
) -> None:
    """Load or reload a model; return when it is ready. A loaded version serves until then.

    The model comes from one of the daemon's model repositories, or from `files`. A registered model is
    served already: then nothing happens.

    Args:
        model_name: name of the model
        config: a configuration (JSON) that overrides the one in its folder; requires `files`
        files: contents by name, "file:1/model.onnx": the complete content of the model's folder

    Raises:
        TritonModelException: loading failed, with the reason; a loaded version keeps serving.
        TypeError: an argument has a wrong type.

    Example:
        >>> load_model("m", config=json.dumps(config), files={"file:1/model.onnx": data})  # doctest: +SKIP
    """
    _check(model_name=(model_name, str), config=(config, str))
    given = dict(files or {})
    for name, content in given.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise TypeError(
                f"load_model: files are bytes by name, got {type(content).__name__} for {name!r:.80}"
            )
    host.current().control("load", model_name, config=config, files=given)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Start to unload a model of a repository and return. Unloading a model that is not loaded is not an error.

    Args:
        model_name: name of the model
        unload_dependents: also unload the models that an ensemble consists of

    Raises:
        TritonModelException: the model is registered: its owner has to unregister it.
        TypeError: an argument has a wrong type.
    """
    _check(model_name=(model_name, str))
    host.current().control("unload", model_name, unload_dependents=bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready; without a version, whether any version of it is.

    Raises:
        TritonModelException: the version is invalid, or the daemon could not be reached.
        TypeError: an argument has a wrong type.
    """
    _check(model_name=(model_name, str), model_version=(model_version, str))
    return host.current().control("is_ready", model_name, model_version=model_version)


def _check(**given: tuple[Any, type]) -> None:
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} has to be {with_article(kind.__name__)}, got {value!r:.80}")
