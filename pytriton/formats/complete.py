"""Completion of a model's configuration from its file. Values in config.pbtxt take precedence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton._protocol import datatypes, messages
from pytriton.formats.loaded import FormatError, LoadedFile, TensorInfo

#: `max_batch_size` if config.pbtxt does not set it and the file allows any batch size.
DEFAULT_MAX_BATCH_SIZE = 64
#: Fields of a configuration that must not be passed to the proxy that represents the model in tritonserver.
_NOT_FOR_TRITON = (
    "backend",
    "cc_model_filenames",
    "default_model_filename",
    "instance_group",
    "optimization",
    "platform",
    "runtime",
    "version_policy",
)


def check_fit(loaded: LoadedFile, config: Mapping[str, Any], path: str) -> None:
    """Check that the tensors of a configuration match those that the file describes, if any.

    Raises:
        FormatError: a name or a data type differs
    """
    for what, known in (("input", loaded.inputs), ("output", loaded.outputs)):
        if known is None:
            continue
        of_file = {info.name: info.datatype for info in known}
        for entry in config.get(what, ()):
            name = str(entry["name"])
            datatype = datatypes.of_config(str(entry.get("data_type", "")))
            if name not in of_file:
                raise FormatError(
                    f"the configuration has an {what} {name!r}, but {path} does not; its {what}s "
                    f"are {', '.join(of_file)}"
                )
            if datatype and of_file[name] != datatype:
                raise FormatError(
                    f"{what} {name!r} has the data type {datatype} in the configuration, but {of_file[name]} in "
                    f"{path}"
                )


def is_complete(config: Mapping[str, Any]) -> bool:
    """Return True if a configuration declares inputs and outputs, each with data type and shape."""
    return all(
        config.get(what) and all("data_type" in one and one.get("dims") for one in config[what])
        for what in ("input", "output")
    )


def complete(config: Mapping[str, Any], loaded: LoadedFile, path: str) -> dict[str, Any]:
    """Return a configuration completed from the file: batching, and missing tensors, data types and shapes.

    Raises:
        FormatError: neither the configuration nor the file describes the tensors, or they contradict each other
    """
    check_fit(loaded, config, path)
    document = dict(config)
    known = [*(loaded.inputs or ()), *(loaded.outputs or ())]
    if "max_batch_size" not in document and not document.get("input"):
        batching = loaded.batching or (
            bool(known) and all(info.shape and info.shape[0] == -1 for info in known)
        )
        if batching:
            document["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
            if "sequence_batching" not in document:
                document.setdefault("dynamic_batching", {})
    batching = int(document.get("max_batch_size", 0)) > 0
    for what, infos in (("input", loaded.inputs), ("output", loaded.outputs)):
        document[what] = _tensors(document.get(what, ()), infos, batching, what, path)
    return document


def lanes_for(config: Mapping[str, Any]) -> int:
    """Return the number of lanes for a worker, by the rules for registered callables (`run_options.default_lanes`).

    0: the dispatcher chooses.
    """
    batching = int(config.get("max_batch_size", 0))
    return 1 if batching > 1 or any(config.get("dynamic_batching", {}).values()) else 0


def for_triton(config: Mapping[str, Any], versions: list[int]) -> dict[str, Any]:
    """Return the configuration of the proxy that represents the model in tritonserver."""
    document = {key: value for key, value in config.items() if key not in _NOT_FOR_TRITON}
    document.setdefault("max_batch_size", 0)
    if int(document["max_batch_size"]) == 0:
        document.pop("dynamic_batching", None)  # nothing can be batched
    document["version_policy"] = {"specific": {"versions": versions}}
    return document


def completion_of(config: Mapping[str, Any]) -> messages.Completion:
    """Return the part of a completed configuration that a worker reports to the dispatcher."""
    document = for_triton(config, [])
    return messages.Completion(
        document["input"],
        document["output"],
        int(document["max_batch_size"]),
        document.get("dynamic_batching"),
    )


def _tensors(
    said: Sequence[Mapping[str, Any]],
    infos: Sequence[TensorInfo] | None,
    batching: bool,
    what: str,
    path: str,
) -> list[dict[str, Any]]:
    if infos is None:
        if said and all("data_type" in one and one.get("dims") for one in said):
            return [dict(one) for one in said]
        raise FormatError(
            f"{path} does not contain the names, data types and shapes of its {what}s. Declare them in config.pbtxt, "
            f'for example: {what} [ {{ name: "{what.upper()}__0" data_type: TYPE_FP32 dims: [ -1, 28, 28 ] }} ]'
        )
    of_file = {info.name: _entry(info, batching) for info in infos}
    if not said:
        return list(of_file.values())
    return [{**of_file.get(str(one["name"]), {}), **_said(one)} for one in said]


def _said(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "dims" or value}


def _entry(info: TensorInfo, batching: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": info.name,
        "data_type": "TYPE_STRING" if info.datatype == "BYTES" else f"TYPE_{info.datatype}",
    }
    dims = list(info.shape[1:] if batching else info.shape)
    # Triton does not allow empty dims: see pytriton.model_config.triton_config.
    return {**entry, "dims": dims} if dims else {**entry, "dims": [1], "reshape": {"shape": []}}
