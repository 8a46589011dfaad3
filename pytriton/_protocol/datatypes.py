"""Triton's datatypes and numpy's dtypes: the one table between them (KServe v2, "Tensor Data Types").

numpy has no BF16: a process with ml_dtypes uses its bfloat16. One without it (the proxy) treats such
a tensor as 16-bit words and does not interpret them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: Triton's datatype -> numpy dtype, for all fixed-size types that numpy supports.
NUMERIC: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),
}

#: Triton's datatypes by their number in its C API (tritonserver.h, TRITONSERVER_DataType).
TRITON_CODES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
    "FP64", "BYTES", "BF16",
)  # fmt: skip


def element_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype in which a worker's callable receives a datatype; object for BYTES.

    Raises:
        ImportError: BF16 needs ml_dtypes, which is not installed in this environment.
        KeyError: unknown datatype.
    """
    if datatype == "BYTES":
        return np.dtype(object)
    if datatype == "BF16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                "a tensor of type BF16 needs the package ml_dtypes in the worker's environment: "
                "pip install ml_dtypes"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return NUMERIC[datatype]


# ── Maps datatypes in model configurations to their names in requests (datatypes.py). Does not need numpy ──


def of_config(data_type: str) -> str:
    """Return the request datatype for a datatype of a model configuration.

    "TYPE_FP32" becomes "FP32", "TYPE_STRING" becomes "BYTES" (model_config.proto, enum DataType).
    """
    name = data_type[len("TYPE_") :]
    return "BYTES" if name == "STRING" else name


def of_inputs(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the datatype, by name, of every tensor that Triton may pass to a model of this configuration.

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
    """Return the largest sequence id that fits the model's control input; None if the input is not numeric."""
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
