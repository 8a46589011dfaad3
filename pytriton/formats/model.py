"""The callable that serves a model file. It loads one file per version, and runs a batch at a time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton._protocol import datatypes, numpy_types
from pytriton._protocol.errors import described
from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.decorators.batching import gather, split
from pytriton.formats import table
from pytriton.formats.complete import check_fit, complete, completion_of, is_complete
from pytriton.formats.loaded import Array, FormatError, LoadedFile, names_of
from pytriton.formats.recipe import Recipe

__all__ = ["FolderModel", "load_file"]


def load_file(title: str, loader: str, path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a file.

    Args:
        title: name of the format
        loader: the module that loads the format
        path: the file
        config: the model's configuration

    Raises:
        FormatError: a package is missing (the text contains the command that installs it), or the file cannot be loaded
    """
    form = next(one for one in table.FORMATS if one.title == title)
    lacking = [module for module in form.packages if not _importable(module)]
    if lacking:
        raise FormatError(table.missing(form, sys.executable, lacking))
    try:
        loaded: LoadedFile = importlib.import_module(loader).load(path, config)
    except FormatError:
        raise
    except Exception as error:  # a framework may raise anything
        raise FormatError(f"{path} cannot be loaded: {described(error)}") from error
    return loaded


class FolderModel:
    """A callable that serves all versions of a model file; it accepts lists of requests.

    Attributes:
        completion: the configuration, completed from the file of the newest version
    """

    def __init__(self, recipe: Recipe) -> None:
        """Load every version.

        Raises:
            FormatError: a file cannot be loaded, or does not match the configuration
        """
        newest = max(recipe.files)
        path = recipe.files[newest]
        self._newest = load_file(recipe.title, recipe.loader, path, recipe.config)
        config = recipe.config
        check_fit(self._newest, config, path)
        if not is_complete(config):
            config = complete(config, self._newest, path)
        self.completion = completion_of(config)
        self._batching = int(config.get("max_batch_size", 0)) > 0
        self._inputs = names_of(config, "input")
        self._outputs = {
            str(entry["name"]): numpy_types.element_dtype(datatypes.of_config(entry["data_type"]))
            for entry in config["output"]
        }
        self._versions: dict[str, LoadedFile] = {}
        for version, path in sorted(recipe.files.items()):
            if version != newest:
                loaded = load_file(recipe.title, recipe.loader, path, config)
                check_fit(loaded, config, path)
                self._versions[str(version)] = loaded
        self._versions[str(newest)] = self._newest

    def __call__(self, requests: Sequence[Any]) -> list[dict[str, Array]]:
        """Return the outputs for each request. Requests for the same version with equal shapes are batched together."""
        answers: list[dict[str, Array]] = [{} for _ in requests]
        for version, indexes in self._groups(requests).items():
            group = [requests[index] for index in indexes]
            for index, answer in zip(indexes, self._answer(self._versions[version[0]], group)):
                answers[index] = answer
        return answers

    def _groups(self, requests: Sequence[Any]) -> dict[tuple[Any, ...], list[int]]:
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, request in enumerate(requests):
            version = str((request.parameters or {}).get(VERSION_PARAMETER, ""))
            if version not in self._versions:
                # The parameter was set by the client, not by the proxy, which sets it if there are several versions.
                version = ""
            shapes = tuple((name, array.shape[1:]) for name, array in request.items())
            # Without a batch axis nothing can be batched.
            alone = () if self._batching else (index,)
            key = (version or next(reversed(self._versions)), shapes, *alone)
            groups.setdefault(key, []).append(index)
        return groups

    def _answer(self, loaded: LoadedFile, requests: Sequence[Any]) -> list[dict[str, Array]]:
        if not self._batching:
            return [self._run(loaded, dict(requests[0].items()))]
        inputs, sizes = gather(requests)
        return list(split(self._run(loaded, inputs), sizes))

    def _run(self, loaded: LoadedFile, inputs: Mapping[str, Array]) -> dict[str, Array]:
        ordered = {name: inputs[name] for name in self._inputs if name in inputs}
        results = loaded.infer(ordered)
        return {name: _array(results[name], dtype) for name, dtype in self._outputs.items()}


def _array(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a result as an array. Only an array of objects is cast here: the worker casts other arrays if no values are lost."""
    array: Array = np.asanyarray(value)
    return array.astype(dtype) if array.dtype.kind == "O" else array


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise FormatError(
                f"the package {module} is installed in {sys.executable}, but cannot be imported: {error}"
            ) from error
        return False
    return True
