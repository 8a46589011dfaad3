"""TensorFlow SavedModels, called through the signature `serving_default` or the one that a parameter names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pytriton.formats.loaded import Array, FormatError, LoadedFile, TensorInfo, parameter
from pytriton.model_config.dtypes import to_triton_datatype


def load(path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a SavedModel, with the parameter TF_SIGNATURE_DEF of Triton's backend.

    Raises:
        FormatError: the model does not have the signature
    """
    tensorflow = importlib.import_module("tensorflow")
    model = tensorflow.saved_model.load(path)
    name = parameter(config, "TF_SIGNATURE_DEF", "serving_default")
    if name not in model.signatures:
        raise FormatError(
            f"{path} has no signature {name!r}; it has {', '.join(model.signatures) or 'none'}"
        )
    signature = model.signatures[name]
    inputs = {
        key: _info(key, spec) for key, spec in signature.structured_input_signature[1].items()
    }
    outputs = [_info(key, spec) for key, spec in signature.structured_outputs.items()]

    def infer(arrays: dict[str, Array]) -> dict[str, Array]:
        tensors = {key: tensorflow.constant(array) for key, array in arrays.items()}
        # Refer to the model here, since its variables are freed with it.
        answer = model.signatures[name](**tensors)
        return {key: value.numpy() for key, value in answer.items()}

    return LoadedFile(list(inputs.values()), outputs, infer)


def _info(name: str, spec: Any) -> TensorInfo:
    text = spec.dtype.name == "string"
    datatype = "BYTES" if text else to_triton_datatype(spec.dtype.as_numpy_dtype)
    return TensorInfo(name, datatype, tuple(-1 if size is None else size for size in spec.shape))
