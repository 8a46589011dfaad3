"""config.pbtxt: read with the message that tritonclient brings, as tritonserver itself reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE = "config.pbtxt"


class ConfigFileError(Exception):
    """A configuration cannot be read; names the file and the place in it."""


def read(path: Path) -> dict[str, Any]:
    """Return the JSON form of a file.

    Raises:
        ConfigFileError: it cannot be read, or is no model configuration.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, where: str = FILE) -> dict[str, Any]:
    """Return the JSON form of a configuration's text; sizes are numbers, not strings.

    Raises:
        ConfigFileError: it is no model configuration.
    """
    # The first use of gRPC's packages; protobuf is a dependency of tritonclient's.
    from google.protobuf import text_format
    from google.protobuf.json_format import MessageToDict
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        message = text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise ConfigFileError(f"{where} is not a model configuration: {error}") from error
    document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    for entry in (*document.get("input", ()), *document.get("output", ())):
        entry["dims"] = [int(size) for size in entry.get("dims", ())]
        if "reshape" in entry:
            entry["reshape"] = {"shape": [int(size) for size in entry["reshape"].get("shape", ())]}
    return document
