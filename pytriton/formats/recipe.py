"""The payload of a repository's model: the location of its files. Imports nothing heavy."""

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
    """Instructions for creating the callable; called once by each worker.

    Args:
        name: name of the model
        title: title of its format
        loader: module that loads the format
        config: its complete configuration
        files: version -> path of its file
    """

    name: str
    title: str
    loader: str
    config: Mapping[str, Any]
    files: Mapping[int, str]

    def __call__(self) -> Callable[[Any], Any]:
        """Load all versions and return the callable that serves them.

        Raises:
            FormatError: a file does not fit the configuration, or a package is missing.
        """
        serve: Callable[[Recipe], Callable[[Any], Any]]
        serve = importlib.import_module("pytriton.formats.model").FolderModel
        return serve(self)

    def payload(self) -> bytes:
        """Return the recipe as a worker's payload; it contains no code."""
        version = (sys.version_info[0], sys.version_info[1])
        return pack(Header(version, by_reference=True), pickle.dumps(self, protocol=5))
