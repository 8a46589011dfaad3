"""`ModelConfigParser`: creates a `TritonModelConfig` from Triton's model configuration, a dict or a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytriton.exceptions import PyTritonModelConfigError
from pytriton.formats import pbtxt
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["ModelConfigParser"]


class ModelConfigParser:
    """Parser of model configurations: `config.pbtxt` files, and dicts as returned by a server."""

    @classmethod
    def from_dict(cls, model_config_dict: Mapping[str, Any]) -> TritonModelConfig:
        """Convert the JSON form of Triton's ModelConfig message.

        Args:
            model_config_dict: the fields, with their names from the proto file; 64-bit integers may be strings

        Raises:
            PyTritonModelConfigError: the dict is not a model configuration
        """
        return TritonModelConfig.from_triton_config(model_config_dict)

    @classmethod
    def from_file(cls, config_path: str | Path) -> TritonModelConfig:
        """Read a `config.pbtxt` file (protobuf text format).

        If the file does not contain the model's name, the name is that of its folder, as in a model repository.

        Args:
            config_path: path of the file

        Raises:
            PyTritonModelConfigError: the file cannot be read, or is not a model configuration
        """
        # Imported here because few programs need it.
        from google.protobuf import json_format, text_format

        path = Path(config_path)
        try:
            text = path.read_text(encoding="utf-8")
            message = text_format.Parse(text, pbtxt.message_class()())
        except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
            raise PyTritonModelConfigError(
                f"Cannot read {path} as a Triton model configuration: {error}"
            ) from error
        document = json_format.MessageToDict(message, preserving_proto_field_name=True)
        document.setdefault("name", path.resolve().parent.name)
        return cls.from_dict(document)
