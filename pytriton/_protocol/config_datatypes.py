"""Maps datatypes in model configurations to their names in requests (datatypes.py). Does not need numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
