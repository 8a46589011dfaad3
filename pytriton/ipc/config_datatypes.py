"""Datatypes as model configurations spell them, under the names that requests have (datatypes.py); needs no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_config(data_type: str) -> str:
    """Return a datatype's name in requests for its name in model configurations.

    "TYPE_FP32" is "FP32" there, and strings are "BYTES" (model_config.proto, enum DataType).
    """
    name = data_type[len("TYPE_") :]
    return "BYTES" if name == "STRING" else name


def of_inputs(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the datatype of every tensor that Triton may give a model of this configuration, by name.

    Besides its inputs, these are what Triton's sequence batcher adds (`control_input`, `state`), and
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


def _of_control(control: Mapping[str, Any]) -> str:
    if control.get("int32_false_true"):
        return "INT32"
    if control.get("fp32_false_true"):
        return "FP32"
    if control.get("bool_false_true"):
        return "BOOL"
    return of_config(control["data_type"])  # a correlation id
