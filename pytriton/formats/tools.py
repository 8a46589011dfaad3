"""A model of another tool as a typed function: what its loader returns, and the program that describes it.

The program runs in the workers' environment. Standard input: a JSON object with `loader`, `location`, `name` and
`route`, of which the last two may be null. Standard output, its last line: a JSON object with `name`, `config` and
`web`, or with `error`: a sentence.
"""

from __future__ import annotations

import dataclasses
import glob
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol.errors import described
from pytriton.exceptions import PyTritonError
from pytriton.formats.loaded import FormatError
from pytriton.formats.recipe import ToolRecipe
from pytriton.model_config import to_triton_config
from pytriton.typed.model import Decode, model_of, served
from pytriton.typed.signature import Signature

__all__ = ["ToolModel", "file_at", "has_gpu", "main", "serve"]


@dataclasses.dataclass(frozen=True)
class ToolModel:
    """A model of another tool, opened but not loaded.

    Args:
        name: its own name
        signature: the parameters of a request, and the result
        load: loads the model, and returns the function that `signature` describes
        decode: returns the arguments in a body, given its Content-Type; None: as a typed function's
        content: the bodies that `decode` accepts, as the content of an OpenAPI request body
        prefix: what its route begins with, before its name, so that the tool's clients work unchanged
        put: whether the route accepts PUT like POST
    """

    name: str
    signature: Signature
    load: Callable[[], Callable[..., Any]]
    decode: Decode | None = None
    content: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prefix: str = "/"
    put: bool = False


def serve(recipe: ToolRecipe) -> Callable[[Any], Any]:
    """Load a model and return its inference callable.

    Raises:
        FormatError: it cannot be loaded.
    """
    model = _opened(recipe.loader, recipe.location)
    callable_: Callable[[Any], Any] = served(model.load(), model.signature, model.decode)
    return callable_


def has_gpu() -> bool:
    """Return whether this worker may use a GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and bool(glob.glob("/dev/nvidia[0-9]*"))


def _opened(loader: str, location: str) -> ToolModel:
    try:
        model: ToolModel = importlib.import_module(loader).open_model(location)
    except FormatError:
        raise
    except Exception as error:  # a tool may raise anything
        raise FormatError(f"{location} cannot be opened: {described(error)}") from error
    return model


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        model = _opened(question["loader"], question["location"])
        name = question["name"] or re.sub(r"[^\w.-]", "_", model.name)
        typed = model_of(dataclasses.replace(model.signature, name=name))
        web = typed.route(question["route"] or f"{model.prefix}{name}", put=model.put)
    except (FormatError, PyTritonError) as error:
        traceback.print_exc()
        return {"error": str(error)}
    if model.content:
        web.operation["requestBody"] = {"required": True, "content": dict(model.content)}
    config = to_triton_config(name, typed.inputs, typed.outputs, typed.config)
    return {"name": name, "config": config, "web": msgspec.to_builtins(web)}


def file_at(location: str, title: str) -> Path:
    """Return the path of a model.

    Raises:
        FormatError: there is none.
    """
    path = Path(location)
    if not path.exists():
        raise FormatError(f"{title}: there is no {path}")
    return path


def main() -> None:
    """Read the input and print the result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model's own code prints is no answer
    answers.write("\n" + json.dumps(_answer(json.load(sys.stdin))) + "\n")
    answers.close()
