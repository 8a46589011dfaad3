"""The payload of a model that is loaded from files: their paths, and its configuration. Does not import numpy."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pytriton._protocol.payload import Header, pack


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A factory for the callable that serves a model file. Each worker unpickles it and calls it once.

    Args:
        name: name of the model
        title: name of the format
        loader: the module that loads the format
        config: the model's configuration
        files: version -> path of the file
    """

    name: str
    title: str
    loader: str
    config: Mapping[str, Any]
    files: Mapping[int, str]

    def __call__(self) -> Callable[[Any], Any]:
        """Load all versions and return the callable that serves them.

        Raises:
            FormatError: a package is missing, or a file cannot be loaded or does not match the configuration
        """
        serve: Callable[[Recipe], Callable[[Any], Any]]
        serve = importlib.import_module("pytriton.formats.model").FolderModel
        return serve(self)

    def payload(self) -> bytes:
        """Return the payload for workers: the pickled recipe, without code."""
        return _payload(self)


@dataclasses.dataclass(frozen=True)
class ToolRecipe:
    """Instructions for creating the callable of another tool's model; called once by each worker.

    Args:
        loader: module that opens the model
        location: where it is, in the tool's own notation
    """

    loader: str
    location: str

    def __call__(self) -> Callable[[Any], Any]:
        """Load the model and return the callable that serves it."""
        serve: Callable[[ToolRecipe], Callable[[Any], Any]]
        serve = importlib.import_module("pytriton.formats.tools").serve
        return serve(self)

    def payload(self) -> bytes:
        """Return the payload for workers: the pickled recipe, without code."""
        return _payload(self)


def _payload(recipe: Recipe | ToolRecipe) -> bytes:
    version = (sys.version_info[0], sys.version_info[1])
    return pack(Header(version, by_reference=True), pickle.dumps(recipe, protocol=5))
