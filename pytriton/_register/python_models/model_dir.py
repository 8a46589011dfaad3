"""Triton's model configuration as people write it: config.pbtxt, read, completed, and split into its uses.

The schema is Triton's own (model_config.proto), as tritonclient carries it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytriton._register import gpus
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats import pbtxt

CONFIG_FILE = "config.pbtxt"
ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
#: Parameters that Triton's python backend would apply to the proxy instead of to the worker.
_NOT_FOR_THE_PROXY = (ENVIRONMENT_PARAMETER, "FORCE_CPU_ONLY_INPUT_TENSORS")
#: Fields that say where a model's code is: that is the dispatcher's business.
_CODE_FIELDS = (
    "name", "platform", "backend", "runtime", "instance_group", "default_model_filename",
    "cc_model_filenames", "version_policy",
)  # fmt: skip


def parse_config(text: str, where: str) -> Any:
    """Return the message ModelConfig that a config.pbtxt holds.

    Raises:
        PyTritonBadParameterError: it is malformed; names line and column.
    """
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, pbtxt.message_class()())
    except text_format.ParseError as error:
        raise PyTritonBadParameterError(f"{where} is no model configuration: {error}") from error


def config_of(document: Mapping[str, Any], where: str) -> Any:
    """Return the message ModelConfig of its JSON form.

    Raises:
        PyTritonBadParameterError: a field does not exist, or has a wrong value.
    """
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(dict(document), pbtxt.message_class()())
    except json_format.ParseError as error:
        raise PyTritonBadParameterError(f"{where} is no model configuration: {error}") from error


def plain(message: Any, *, full: bool = False) -> dict[str, Any]:
    """Return a message's JSON form, whole numbers as such.

    `full`: with fields that have their default, as Triton hands it to models.
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
    """Return the configuration for tritonserver: all but the place of the code, which is the dispatcher's business."""
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
    """Return the "model_config" that `initialize` gets: JSON with the defaults that Triton adds."""
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
        group.name = completed.name  # as Triton calls it then
    for index, group in enumerate(completed.instance_group):
        group.name = group.name or f"{completed.name}_{index}"
        group.count = group.count or 1
        if group.kind == group.KIND_AUTO:
            group.kind = group.KIND_CPU
    return json.dumps(plain(completed, full=True), separators=(",", ":"))


class Place(NamedTuple):
    """The name and the device of one instance, as `initialize` gets them."""

    name: str
    kind: str
    device: str


def places_of(config: Any) -> list[Place]:
    """Return the instances that the instance groups ask for; one on the CPU without any.

    Raises:
        PyTritonValidationError: GPUs are asked for that are not there.
    """
    places: list[Place] = []
    for index, group in enumerate(config.instance_group):
        name = group.name or f"{config.name}_{index}"
        count = group.count or 1
        if group.kind == group.KIND_GPU:
            places += [
                Place(f"{name}_{number}_gpu{gpu}", "GPU", gpu)
                for number in range(count)
                for gpu in _gpus(config, group)
            ]
        else:
            kind = "MODEL" if group.kind == group.KIND_MODEL else "CPU"
            places += [Place(f"{name}_{number}", kind, "0") for number in range(count)]
    return places or [Place(f"{config.name}_0", "CPU", "0")]


def devices_of(places: Sequence[Place], count: int) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of `count` instances, the GPUs in turn; none without any GPU.

    A GPU is hidden from instances that are not on it, and so it is number 0 to its own.
    """
    if not any(place.kind == "GPU" for place in places):
        return []
    there = gpus.visible()
    of_place = [there[int(place.device)] if place.kind == "GPU" else None for place in places]
    return [of_place[index % len(of_place)] for index in range(count)]


def _gpus(config: Any, group: Any) -> list[str]:
    """Return the GPUs of an instance group of KIND_GPU: those that it names, or all."""
    there = len(gpus.visible())
    if not there:
        raise PyTritonValidationError(
            f"Model {config.name!r} has an instance group of KIND_GPU and this machine has no GPU"
            + (f" (${gpus.VARIABLE} hides them)" if gpus.VARIABLE in os.environ else "")
            + ". Write KIND_CPU, or KIND_AUTO."
        )
    for gpu in group.gpus:
        if not 0 <= gpu < there:
            raise PyTritonValidationError(
                f"Model {config.name!r} has an instance group on GPU {gpu}, and this machine has the GPUs "
                f"{', '.join(map(str, range(there)))}. Mend `gpus` of its instance_group."
            )
    return [str(gpu) for gpu in group.gpus or range(there)]


def versions_of(folder: Path, file: str) -> list[int]:
    """Return the versions that a model folder has, ascending: its folders with a number for a name and the file in."""
    return sorted(
        int(entry.name)
        for entry in folder.iterdir()
        if entry.name.isdigit() and entry.name[0] != "0" and (entry / file).is_file()
    )


def chosen_versions(folder: Path, file: str, config: Any, wanted: int | None) -> list[int]:
    """Return the versions to serve, ascending: the wanted one, else those that the version policy chooses.

    Raises:
        PyTritonBadParameterError: there is none.
    """
    there = versions_of(folder, file)
    if not there:
        raise PyTritonBadParameterError(
            f"{folder} is no Python model: it has no numbered folder with a file {file}, such as {folder}/1/{file}."
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
            f"{folder}: its version_policy chooses none of its versions, which are {', '.join(map(str, there))}. "
            f"Mend it in {CONFIG_FILE}, or say which version to serve (version=)."
        )
    return found


def environment_of(config: Any, folder: Path | None) -> str | None:
    """Return the environment that EXECUTION_ENV_PATH names, if the configuration has it.

    Raises:
        PyTritonBadParameterError: there is nothing of that name.
    """
    if ENVIRONMENT_PARAMETER not in config.parameters:
        return None
    said = str(config.parameters[ENVIRONMENT_PARAMETER].string_value)
    path = said
    if folder is not None:
        path = said.replace("$$TRITON_MODEL_DIRECTORY", str(folder))
    if not os.path.exists(path):
        raise PyTritonBadParameterError(
            f"{ENVIRONMENT_PARAMETER}: there is no {path}"
            + (f" ({said} in the configuration)" if path != said else "")
            + ". It has to be a conda-pack archive, or the folder of an environment."
        )
    return path
