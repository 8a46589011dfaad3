"""`ModelConfigParser`: reads Triton's model configuration, a dict or a file, into a `TritonModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytriton.exceptions import PyTritonModelConfigError
from pytriton.formats import pbtxt
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["ModelConfigParser"]


class ModelConfigParser:
    """Read the output of `ModelConfigGenerator`, `config.pbtxt` files, and a server's responses."""

    @classmethod
    def from_dict(cls, model_config_dict: Mapping[str, Any]) -> TritonModelConfig:
        """Read the JSON form of Triton's message ModelConfig.

        Args:
            model_config_dict: the fields by the proto's own names; 64-bit numbers may be strings

        Raises:
            PyTritonModelConfigError: the dict is not a model configuration
        """
        return TritonModelConfig.from_triton_config(model_config_dict)

    @classmethod
    def from_file(cls, config_path: str | Path) -> TritonModelConfig:
        """Read a `config.pbtxt` (protobuf text).

        A model whose file contains no name is named after its folder, as in a model repository.

        Args:
            config_path: path of the file

        Raises:
            PyTritonModelConfigError: the file cannot be read, or is not a model configuration
        """
        # Imported here because few need it.
        from google.protobuf import json_format, text_format

        path = Path(config_path)
        try:
            text = path.read_text(encoding="utf-8")
            message = text_format.Parse(text, pbtxt.message_class()())
        except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
            raise PyTritonModelConfigError(
                f"{path} cannot be read as a Triton model configuration: {error}"
            ) from error
        document = json_format.MessageToDict(message, preserving_proto_field_name=True)
        document.setdefault("name", path.resolve().parent.name)
        return cls.from_dict(document)
