"""A model's folder in a repository: its config.pbtxt, instance groups, versions and environment.

The schema of config.pbtxt is Triton's own (model_config.proto), as included in tritonclient.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytriton._host import gpus
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats import pbtxt

CONFIG_FILE = "config.pbtxt"
ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
#: Parameters removed for tritonserver: its python backend would apply them to the proxy instead of the worker.
_NOT_FOR_THE_PROXY = (ENVIRONMENT_PARAMETER, "FORCE_CPU_ONLY_INPUT_TENSORS")
#: Fields that locate a model's code; the dispatcher sets them.
_CODE_FIELDS = (
    "name", "platform", "backend", "runtime", "instance_group", "default_model_filename",
    "cc_model_filenames", "version_policy",
)  # fmt: skip


def parse_config(text: str, where: str) -> Any:
    """Parse a config.pbtxt into a ModelConfig message.

    Raises:
        PyTritonBadParameterError: it is malformed; the text contains line and column
    """
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, pbtxt.message_class()())
    except text_format.ParseError as error:
        raise PyTritonBadParameterError(
            f"{where} is not a valid model configuration: {error}"
        ) from error


def config_of(document: Mapping[str, Any], where: str) -> Any:
    """Parse the JSON form of a ModelConfig message.

    Raises:
        PyTritonBadParameterError: a field does not exist, or has an invalid value
    """
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(dict(document), pbtxt.message_class()())
    except json_format.ParseError as error:
        raise PyTritonBadParameterError(
            f"{where} is not a valid model configuration: {error}"
        ) from error


def plain(message: Any, *, full: bool = False) -> dict[str, Any]:
    """Return the JSON form of a protobuf message, with integers as numbers.

    Args:
        message: a ModelConfig, or a part of one
        full: include fields with default values, as Triton does for models
    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, MutableMapping):
            if value or full:
                found[field.name] = {
                    str(key): _plain_value(field.message_type.fields_by_name["value"], one, full)
                    for key, one in value.items()
                }
        elif isinstance(value, MutableSequence):
            if len(value) or full:
                found[field.name] = [_plain_value(field, one, full) for one in value]
        elif field.message_type is not None or field.containing_oneof is not None:
            if message.HasField(field.name):
                found[field.name] = _plain_value(field, value, full)
        elif full or value != field.default_value:
            found[field.name] = _plain_value(field, value, full)
    return found


def _plain_value(field: Any, value: Any, full: bool) -> Any:
    if field.message_type is not None:
        return plain(value, full=full)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value


def config_for_triton(config: Any, versions: Sequence[int]) -> dict[str, Any]:
    """Return the configuration for tritonserver, without the fields that the dispatcher sets."""
    document = plain(config)
    for name in _CODE_FIELDS:
        document.pop(name, None)
    parameters = document.get("parameters", {})
    for name in _NOT_FOR_THE_PROXY:
        parameters.pop(name, None)
    document.setdefault("input", [])
    document.setdefault("output", [])
    document["version_policy"] = {"specific": {"versions": list(versions)}}
    return document


def config_for_model(config: Any) -> str:
    """Return the `model_config` argument of the model's `initialize`: JSON with the defaults that Triton adds."""
    completed = type(config)()
    completed.CopyFrom(config)
    completed.backend = "python"
    if not completed.default_model_filename:
        completed.default_model_filename = "model.py"
    if not completed.HasField("version_policy"):
        completed.version_policy.latest.num_versions = 1
    completed.optimization.input_pinned_memory.enable = True
    completed.optimization.output_pinned_memory.enable = True
    if not completed.instance_group:
        group = completed.instance_group.add()
        group.kind = group.KIND_CPU
        group.name = completed.name  # the name that Triton gives it
    for index, group in enumerate(completed.instance_group):
        group.name = group.name or f"{completed.name}_{index}"
        group.count = group.count or 1
        if group.kind == group.KIND_AUTO:
            group.kind = group.KIND_CPU
    return json.dumps(plain(completed, full=True), separators=(",", ":"))


class InstancePlace(NamedTuple):
    """The name and device of one instance, as passed to the model's `initialize`."""

    name: str
    kind: str
    device: str


def places_of(config: Any) -> list[InstancePlace]:
    """Return the instances that the instance groups define, or one instance on the CPU if there are no groups.

    Raises:
        PyTritonValidationError: the machine lacks the requested GPUs
    """
    places: list[InstancePlace] = []
    for index, group in enumerate(config.instance_group):
        name = group.name or f"{config.name}_{index}"
        count = group.count or 1
        if group.kind == group.KIND_GPU:
            places += [
                InstancePlace(f"{name}_{number}_gpu{gpu}", "GPU", gpu)
                for number in range(count)
                for gpu in _gpus(config, group)
            ]
        else:
            kind = "MODEL" if group.kind == group.KIND_MODEL else "CPU"
            places += [InstancePlace(f"{name}_{number}", kind, "0") for number in range(count)]
    return places or [InstancePlace(f"{config.name}_0", "CPU", "0")]


def devices_of(places: Sequence[InstancePlace], count: int) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of `count` instances, cycling through `places`; [] if none is on a GPU.

    Each instance only sees its own GPU, as number 0.
    """
    if not any(place.kind == "GPU" for place in places):
        return []
    there = gpus.visible()
    of_place = [there[int(place.device)] if place.kind == "GPU" else None for place in places]
    return [of_place[index % len(of_place)] for index in range(count)]


def _gpus(config: Any, group: Any) -> list[str]:
    """Return the GPUs of an instance group with KIND_GPU: the listed ones, or all if it lists none."""
    there = len(gpus.visible())
    if not there:
        raise PyTritonValidationError(
            f"Model {config.name!r} has an instance group of KIND_GPU, but this machine has no GPU"
            + (
                f" (${gpus.VARIABLE} is set and may hide its GPUs)"
                if gpus.VARIABLE in os.environ
                else ""
            )
            + ". Use KIND_CPU or KIND_AUTO."
        )
    for gpu in group.gpus:
        if not 0 <= gpu < there:
            raise PyTritonValidationError(
                f"Model {config.name!r} has an instance group on GPU {gpu}, but this machine has the GPUs "
                f"{', '.join(map(str, range(there)))}. Correct `gpus` of its instance_group."
            )
    return [str(gpu) for gpu in group.gpus or range(there)]


def versions_of(folder: Path, file: str) -> list[int]:
    """Return the versions in a model's folder, ascending: the numbered folders that contain the file."""
    return sorted(
        int(entry.name)
        for entry in folder.iterdir()
        if entry.name.isdigit() and entry.name[0] != "0" and (entry / file).is_file()
    )


def chosen_versions(folder: Path, file: str, config: Any, wanted: int | None) -> list[int]:
    """Return the versions to serve, ascending: the requested one, otherwise those that the version policy selects.

    Raises:
        PyTritonBadParameterError: there is none
    """
    there = versions_of(folder, file)
    if not there:
        raise PyTritonBadParameterError(
            f"{folder} is not a Python model: it has no numbered folder with a file {file}, such as {folder}/1/{file}."
        )
    if wanted is not None:
        if wanted not in there:
            raise PyTritonBadParameterError(
                f"{folder} has no version {wanted}; it has {', '.join(map(str, there))}."
            )
        return [wanted]
    policy = config.version_policy
    which = policy.WhichOneof("policy_choice")
    if which == "specific":
        found = [version for version in there if version in policy.specific.versions]
    elif which == "all":
        found = there
    else:
        found = there[-max(1, policy.latest.num_versions) :]
    if not found:
        raise PyTritonBadParameterError(
            f"{folder}: its version_policy selects none of its versions {', '.join(map(str, there))}. "
            f"Correct it in {CONFIG_FILE}, or choose a version (version=)."
        )
    return found


def environment_of(config: Any, folder: Path | None) -> str | None:
    """Return the path of the environment in the parameter EXECUTION_ENV_PATH; None if the configuration does not set it.

    Raises:
        PyTritonBadParameterError: the path does not exist
    """
    if ENVIRONMENT_PARAMETER not in config.parameters:
        return None
    said = str(config.parameters[ENVIRONMENT_PARAMETER].string_value)
    path = said
    if folder is not None:
        path = said.replace("$$TRITON_MODEL_DIRECTORY", str(folder))
    if not os.path.exists(path):
        raise PyTritonBadParameterError(
            f"{ENVIRONMENT_PARAMETER}: {path} does not exist"
            + (f" ({said} in the configuration)" if path != said else "")
            + ". It must be a conda-pack archive, or the folder of an environment."
        )
    return path
