"""Names of Triton's datatypes in requests and in model configurations (KServe v2, "Tensor Data Types").

Must not import numpy, which the daemon never loads; numpy_types.py has the dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Triton's datatypes in the order of their number in its C API (tritonserver.h, TRITONSERVER_DataType), each with its numpy
#: dtype; None if its elements have no fixed size.
DTYPE_NAMES: dict[str, str | None] = {
    "INVALID": None,
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": None,
    "BF16": "uint16",  # numpy has no such type: see `numpy_types.element_dtype`
}
#: Their names alone.
TRITON_CODES = tuple(DTYPE_NAMES)


def of_config(data_type: str) -> str:
    """Convert a datatype of a model configuration to its name in requests.

    "TYPE_FP32" becomes "FP32", "TYPE_STRING" becomes "BYTES" (model_config.proto, enum DataType).
    """
    name = data_type[len("TYPE_") :]
    return "BYTES" if name == "STRING" else name


def of_inputs(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the datatypes, by tensor name, of all tensors that Triton may pass to a model with this configuration.

    These are its inputs, the tensors that Triton's sequence batcher adds (`control_input`, `state`), and
    `batch_input` (model_config.proto, messages ModelSequenceBatching and BatchInput).
    """
    found = {entry["name"]: of_config(entry["data_type"]) for entry in config["input"]}
    sequences = config.get("sequence_batching", {})
    for entry in sequences.get("control_input", ()):
        for control in entry.get("control", ()):
            found[entry["name"]] = _of_control(control)
    for entry in sequences.get("state", ()):
        found[entry["input_name"]] = of_config(entry["data_type"])
    for entry in config.get("batch_input", ()):
        found.update(dict.fromkeys(entry["target_name"], of_config(entry["data_type"])))
    return found


#: Maximum values of the types that a sequence id's control input may have.
_MAX_SEQUENCE_IDS = {
    "TYPE_UINT64": 2**64 - 1,
    "TYPE_INT64": 2**63 - 1,
    "TYPE_UINT32": 2**32 - 1,
    "TYPE_INT32": 2**31 - 1,
}


def max_sequence_id(config: Mapping[str, Any]) -> int | None:
    """Return the largest sequence id that fits into the model's control input; None if there is no numeric one."""
    for entry in config.get("sequence_batching", {}).get("control_input", ()):
        for control in entry.get("control", ()):
            if control.get("kind") == "CONTROL_SEQUENCE_CORRID":
                return _MAX_SEQUENCE_IDS.get(control.get("data_type", ""))
    return None


def _of_control(control: Mapping[str, Any]) -> str:
    if control.get("int32_false_true"):
        return "INT32"
    if control.get("fp32_false_true"):
        return "FP32"
    if control.get("bool_false_true"):
        return "BOOL"
    return of_config(control["data_type"])  # a correlation id
