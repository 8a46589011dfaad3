"""The model loading API: other models of the tritonserver, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from pytriton._protocol.wording import with_article
from pytriton.pb_utils import host

__all__ = ["is_model_ready", "load_model", "unload_model"]


def load_model(
    model_name: str, config: str = "", files: Optional[Mapping[str, bytes]] = None
) -> None:
    """Have a model served, or served anew; returns when it is, and what was there serves until then.

    It is one of the daemon's model repositories, or comes as files. One that is registered is served
    already: then there is nothing to do.

    Args:
        model_name: the model
        config: its configuration, JSON, instead of the one in its folder; has to come with `files`
        files: contents by name, "file:1/model.onnx": all that the model's folder is to hold

    Raises:
        TritonModelException: it cannot be loaded; says why. What was there serves on.
        TypeError: an argument is of another type.

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
    """Have a model of a repository unloaded; returns when that has begun. One that is not loaded is no error.

    Args:
        model_name: the model
        unload_dependents: those that an ensemble consists of, too

    Raises:
        TritonModelException: it is registered: then whoever did that unregisters it.
        TypeError: an argument is of another type.
    """
    _check(model_name=(model_name, str))
    host.current().control("unload", model_name, unload_dependents=bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready; without a version, whether any version of it is.

    Raises:
        TritonModelException: that is no version, or the daemon could not be asked.
        TypeError: an argument is of another type.
    """
    _check(model_name=(model_name, str), model_version=(model_version, str))
    return host.current().control("is_ready", model_name, model_version=model_version)


def _check(**given: tuple[Any, type]) -> None:
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} has to be {with_article(kind.__name__)}, got {value!r:.80}")
