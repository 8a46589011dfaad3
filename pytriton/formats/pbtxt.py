"""Reads and writes config.pbtxt, with Triton's protobuf message as included in tritonclient."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "config.pbtxt"


class ConfigFileError(Exception):
    """A configuration cannot be read or written; the text says where and why."""


def read(path: Path) -> dict[str, Any]:
    """Read a config.pbtxt and return its JSON form.

    Raises:
        ConfigFileError: the file cannot be read, or is not a model configuration
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, where: str = FILE) -> dict[str, Any]:
    """Parse the text of a config.pbtxt and return its JSON form, in which dimensions are numbers.

    Args:
        text: the text
        where: origin of the text, for error messages

    Raises:
        ConfigFileError: the text is not a model configuration
    """
    # Imported here, since importing protobuf takes long.
    from google.protobuf import text_format
    from google.protobuf.json_format import MessageToDict

    try:
        message = text_format.Parse(text, message_class()())
    except text_format.ParseError as error:
        raise ConfigFileError(f"{where} is not a model configuration: {error}") from error
    document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    for entry in (*document.get("input", ()), *document.get("output", ())):
        entry["dims"] = [int(size) for size in entry.get("dims", ())]
        if "reshape" in entry:
            entry["reshape"] = {"shape": [int(size) for size in entry["reshape"].get("shape", ())]}
    return document


def write(config: Mapping[str, Any]) -> str:
    """Return the text of a config.pbtxt for a configuration in its JSON form.

    Raises:
        ConfigFileError: it is not a model configuration
    """
    from google.protobuf import json_format, text_format

    try:
        message = json_format.ParseDict(dict(config), message_class()())
    except json_format.ParseError as error:
        raise ConfigFileError(f"it is not a model configuration: {error}") from error
    return str(text_format.MessageToString(message))


@functools.cache
def message_class() -> Any:
    """Return the protobuf class of a model configuration.

    Only the file that defines it is loaded, because its package imports numpy and a complete client, which the daemon
    and the command line do not need. If the package is imported as well, protobuf treats both classes as the same.

    Raises:
        ImportError: tritonclient or protobuf is not installed
    """
    package = importlib.util.find_spec("tritonclient")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, "grpc", "model_config_pb2.py")
        spec = importlib.util.spec_from_file_location("pytriton_model_config_pb2", file)
        if file.exists() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.ModelConfig
    return importlib.import_module("tritonclient.grpc.model_config_pb2").ModelConfig
