"""Functions for tensors and their configuration, data types, serialized strings, and loading other models.

The numbers of Triton's data types are those of TRITONSERVER_DataType (tritonserver.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import numpy.typing as npt

from pytriton._protocol import datatypes, numpy_types
from pytriton._protocol.arguments import with_article
from pytriton._protocol.lanes import tensors
from pytriton.pb_utils import host

if TYPE_CHECKING:
    from pytriton.pb_utils.requests import InferenceRequest, InferenceResponse
    from pytriton.pb_utils.tensor import Tensor


Array = npt.NDArray[Any]

#: In the order of TRITONSERVER_DataType, starting at 1.
DATATYPES = datatypes.TRITON_CODES[1:]
#: Data type in a model configuration -> numpy type. Without BF16, which numpy does not support.
TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}": (
        np.object_ if name == "BYTES" else numpy_types.NUMERIC[name].type
    )
    for name in DATATYPES
    if name != "BF16"
}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool  # as in Triton's own table


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """Return the input of a request that has the given name, or None."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """Return the output of a response that has the given name, or None."""
    return _named(inference_response.output_tensors(), name)


def _named(among: Iterable[Tensor], name: str) -> Optional[Tensor]:
    for tensor in among:
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> Optional[dict[str, Any]]:
    """Return the configuration of the input that has the given name, or None."""
    return _entry(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> Optional[dict[str, Any]]:
    """Return the configuration of the output that has the given name, or None."""
    return _entry(model_config, "output", name)


def _entry(model_config: dict[str, Any], side: str, name: str) -> Optional[dict[str, Any]]:
    for entry in model_config.get(side, []):
        if entry["name"] == name:
            found: dict[str, Any] = entry
            return found
    return None


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Return whether a model is decoupled according to its configuration."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def get_model_dir() -> str:
    """Return the folder of the model's version, which contains `model.py`."""
    folder = host.current().model_dir
    return folder if folder is not None else str(Path.cwd())


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type for a TRITONSERVER_DataType, or None."""
    if not 1 <= int(data_type) <= len(DATATYPES) or DATATYPES[int(data_type) - 1] == "BF16":
        return None
    name = DATATYPES[int(data_type) - 1]
    return np.object_ if name == "BYTES" else numpy_types.NUMERIC[name].type


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """Return the TRITONSERVER_DataType for a numpy type, or None."""
    name = datatype_of(np.dtype(data_type))
    return None if name is None else DATATYPES.index(name) + 1


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type for a data type of a model configuration, such as "TYPE_FP32".

    Raises:
        KeyError: the name is unknown.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def datatype_of(dtype: np.dtype[Any]) -> Optional[str]:
    """Return Triton's name for a numpy type, or None."""
    found = numpy_types.BY_DTYPE.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "OS":
        return "BYTES"
    if dtype.name == "bfloat16":  # of ml_dtypes
        return "BF16"
    return numpy_types.BY_DTYPE.get(dtype.newbyteorder("="))


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """Serialize a tensor in Triton's format: each element is preceded by its length in 4 bytes.

    Elements that are neither bytes nor str are converted with `str`. As in Triton's python backend, the result is ()
    for an empty tensor, and None if the dtype is not one for strings.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    try:
        return tensors.encode_bytes(input_tensor)
    except TypeError:
        texts = [item if isinstance(item, bytes) else str(item) for item in input_tensor.ravel()]
        array: Array = np.empty(len(texts), object)
        array[:] = texts
        return tensors.encode_bytes(array)


def deserialize_bytes_tensor(encoded_tensor: Any) -> Array:
    """Parse the result of `serialize_byte_tensor`, and return the elements as a flat object array of bytes."""
    data = memoryview(bytes(encoded_tensor))
    count = start = 0
    while start < len(data):
        start += 4 + int.from_bytes(data[start : start + 4], "little")
        count += 1
    return tensors.decode_bytes(data, [count])


# ── the model loading API: loads and unloads other models of the tritonserver by name ────────────────


def load_model(
    model_name: str, config: str = "", files: Optional[Mapping[str, bytes]] = None
) -> None:
    """Load or reload a model, and return when it is ready.

    If it is already loaded, the old version serves until then.

    The model comes from one of the daemon's model repositories, or from `files`. For a registered model nothing
    happens, because it is already being served.

    Args:
        model_name: name of the model
        config: model configuration (JSON) that replaces the one in its folder; requires `files`
        files: name -> contents of all files in the model's folder; names have the form "file:1/model.onnx"

    Raises:
        TritonModelException: loading failed; the message gives the reason. A version that is already loaded keeps
            serving.
        TypeError: an argument has the wrong type.

    Example:
        >>> load_model("m", config=json.dumps(config), files={"file:1/model.onnx": data})  # doctest: +SKIP
    """
    _check(model_name=(model_name, str), config=(config, str))
    given = dict(files or {})
    for name, content in given.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise TypeError(
                f"load_model: files must be a dict of name to bytes, got {type(content).__name__} for {name!r:.80}"
            )
    host.current().control("load", model_name, config=config, files=given)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Start unloading a model of a repository, and return immediately.

    Unloading a model that is not loaded is not an error.

    Args:
        model_name: name of the model
        unload_dependents: also unload the models of which an ensemble consists

    Raises:
        TritonModelException: the model was registered with the daemon, so it must be unregistered instead.
        TypeError: an argument has the wrong type.
    """
    _check(model_name=(model_name, str))
    host.current().control("unload", model_name, unload_dependents=bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready. Without a version, return whether any version of it is ready.

    Raises:
        TritonModelException: the version is invalid, or the daemon could not be reached.
        TypeError: an argument has the wrong type.
    """
    _check(model_name=(model_name, str), model_version=(model_version, str))
    return host.current().control("is_ready", model_name, model_version=model_version)


def _check(**given: tuple[Any, type]) -> None:
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {with_article(kind.__name__)}, got {value!r:.80}")
