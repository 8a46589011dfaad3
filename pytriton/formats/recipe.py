"""The payload of a repository's model: the place of its files. Imports nothing heavy."""

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
    """The instructions for making the callable; each worker calls it once.

    Args:
        name: of the model
        title: of its format
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
        """Load all versions and return what serves them.

        Raises:
            FormatError: a file does not fit the configuration, or a package is missing.
        """
        serve: Callable[[Recipe], Callable[[Any], Any]]
        serve = importlib.import_module("pytriton.formats.model").FolderModel
        return serve(self)

    def payload(self) -> bytes:
        """Return it as workers get their callables; no code travels in it."""
        version = (sys.version_info[0], sys.version_info[1])
        return pack(Header(version, by_reference=True), pickle.dumps(self, protocol=5))
