"""`ModelConfigGenerator`: converts a `TritonModelConfig` to Triton's model configuration, a dict or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import require_integer
from pytriton.model_config.dtypes import to_config_datatype
from pytriton.model_config.triton_config import dynamic_batching
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

__all__ = ["ModelConfigGenerator"]


class ModelConfigGenerator:
    """Converter from a `TritonModelConfig` to Triton's format. `ModelConfigParser` does the reverse.

    Args:
        config: the configuration. Its `model_warmup` is left out, because workers run the warm-up, not Triton.

    Example:
        >>> config = TritonModelConfig("m", batching=False)
        >>> ModelConfigGenerator(config).get_config()["max_batch_size"]
        0
    """

    def __init__(self, config: TritonModelConfig) -> None:
        self._config = config

    def get_config(self) -> dict[str, Any]:
        """Return the JSON form of Triton's ModelConfig message, with the field names of the proto file.

        Raises:
            PyTritonBadParameterError: a field is out of range
        """
        config = self._config
        document: dict[str, Any] = {"name": config.model_name, "backend": config.backend}
        document.update(_batching(config))
        if config.instance_group:
            document["instance_group"] = [
                {"kind": kind.value} if count is None else {"kind": kind.value, "count": count}
                for kind, count in config.instance_group.items()
            ]
        if config.decoupled:
            document["model_transaction_policy"] = {"decoupled": True}
        if config.backend_parameters:
            document["parameters"] = {
                key: {"string_value": str(value)}
                for key, value in config.backend_parameters.items()
            }
        if config.inputs:
            document["input"] = _tensors(config.inputs)
        if config.outputs:
            if any(spec.optional for spec in config.outputs):
                raise PyTritonBadParameterError("Output tensors cannot be optional.")
            document["output"] = _tensors(config.outputs)
        if config.response_cache is not None:
            document["response_cache"] = {"enable": config.response_cache.enable}
        return document

    def to_file(self, config_path: str | Path) -> None:
        """Write the configuration in protobuf text format, as in a `config.pbtxt` file.

        Args:
            config_path: path of the file. Missing folders are created, an existing file is replaced.

        Raises:
            PyTritonBadParameterError: a field is out of range
            OSError: the file cannot be written
        """
        # Imported here because it loads grpc, which takes 0.3 s.
        from google.protobuf import json_format, text_format
        from tritonclient.grpc import model_config_pb2

        message = json_format.ParseDict(self.get_config(), model_config_pb2.ModelConfig())
        path = Path(config_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_format.MessageToString(message), encoding="utf-8")


def _batching(config: TritonModelConfig) -> dict[str, Any]:
    if not config.batching:
        return {"max_batch_size": 0}
    section: dict[str, Any] = {
        "max_batch_size": require_integer(config.max_batch_size, "max_batch_size", minimum=1)
    }
    if config.batcher is not None:
        config.batcher.validate()
        section["dynamic_batching"] = dynamic_batching(config.batcher)
    return section


def _tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [_tensor(spec) for spec in specs]


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": spec.name,
        "data_type": to_config_datatype(spec.dtype),
        "dims": list(spec.shape),
    }
    if not spec.shape:
        entry.update(dims=[1], reshape={"shape": []})  # how Triton represents a scalar
    if spec.optional:
        entry["optional"] = True
    return entry
