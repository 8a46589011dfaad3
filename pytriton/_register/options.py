"""The options of a registration: merged with the declared ones, checked, and completed with defaults."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, cast

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.arguments import plain
from pytriton.autoscale import Instances, autoscale_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.run_options import OPTIONS, Device, RegisterOptions

if TYPE_CHECKING:
    from pytriton.declaration import Declaration

#: The default of each field, by name.
_SPEC_FIELDS = {field.name: field.default for field in msgspec.structs.fields(messages.ModelSpec)}
#: The default of `max_concurrency`.
MAX_CONCURRENCY = 64

#: Valid values of CUDA_VISIBLE_DEVICES: with others, such as "cuda:0", CUDA silently finds no GPU.
_VISIBLE_DEVICES = re.compile(r"((\d+|(GPU|MIG)-[^,]+)(,(\d+|(GPU|MIG)-[^,]+))*)?")


def check_names(function: str, passed: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError, as Python does, for an option that a function does not have."""
    for name in passed:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def merge_options(
    declaration: Declaration | None, passed: Mapping[str, Any], per_instance: int | None = None
) -> RegisterOptions:
    """Return the value of every option: as passed, else as declared, else the default.

    Raises:
        PyTritonValidationError: a declared option does not exist, or a value is invalid
    """
    passed = {name: value for name, value in passed.items() if value is not None}
    options = declaration.options if declaration else {}
    declared = {name: value for name, value in options.items() if value is not None}
    for name in declared:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PyTritonValidationError(
                f"@declare has an option {name!r} that register() does not accept.{hint} Valid options: "
                f"{', '.join(OPTIONS)}."
            )
    if declaration and declaration.strict:
        declared["strict"] = True
    if per_instance is not None or passed.keys() & {"instances", "devices"}:
        # The number of instances is one decision: options passed here replace all declared ones.
        declared.pop("instances", None)
        declared.pop("devices", None)
    defaults = {name: option.default for name, option in OPTIONS.items()}
    merged = {name: plain(value) for name, value in {**defaults, **declared, **passed}.items()}
    for name, value in merged.items():
        if value is not None:
            OPTIONS[name].check(name, value)
    _check_isolation(merged)
    return cast(RegisterOptions, merged)


def spec_fields(options: RegisterOptions) -> dict[str, Any]:
    """Return the options that are fields of `messages.ModelSpec` with the same name.

    Options left to a default elsewhere are omitted, unless the field may be None.
    """
    return {
        name: OPTIONS[name].message(value)
        for name, value in options.items()
        if name in _SPEC_FIELDS and not (value is None and _SPEC_FIELDS[name] is not None)
    }


def _check_isolation(merged: Mapping[str, Any]) -> None:
    if merged["isolation"] == "process":
        return
    unsupported = [
        f"{name}={merged[name]!r}"
        for name, option in OPTIONS.items()
        if option.of_process and merged[name] != option.default
    ]
    if unsupported:
        raise PyTritonValidationError(
            "isolation='thread' runs the callable in this process and does not support "
            f"{', '.join(unsupported)}: a thread cannot be killed or limited, and shares its process's "
            f"environment. Omit {'it' if len(unsupported) == 1 else 'them'}, or use isolation='process'."
        )


def device_list(devices: Sequence[Device] | None) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each instance: "" hides all GPUs, None leaves it unchanged.

    Raises:
        PyTritonValidationError: an entry is not a device
    """
    if devices is None:
        return []
    if isinstance(devices, (str, int)) or not isinstance(devices, Sequence):
        raise PyTritonValidationError(
            f"devices must be a list with one entry per instance, got {devices!r}. Write "
            f"devices=[{devices!r}] for one instance."
        )
    if not devices:
        raise PyTritonValidationError("devices=[] contains no instance; omit it.")
    return [None if device is None else _device_text(device) for device in devices]


def _device_text(device: Any) -> str:
    if isinstance(device, tuple):
        if not device or any(isinstance(part, tuple) or part in ("", "cpu") for part in device):
            raise PyTritonValidationError(
                f"devices: {device!r} must name one or more GPUs for one instance, e.g. (0, 1)."
            )
        return ",".join(_device_text(part) for part in device)
    if isinstance(device, str):
        text = "" if device == "cpu" else device
    else:
        try:
            text = "no number" if isinstance(device, bool) else str(operator.index(device))
        except TypeError:
            text = "no number"
    if not _VISIBLE_DEVICES.fullmatch(text):
        raise PyTritonValidationError(
            f"devices: {device!r} is not a device. Use a GPU's number (0), its UUID ('GPU-...'), a tuple "
            "of them for one instance on several GPUs, or 'cpu'."
        )
    return text


def count_instances(
    instances: Instances | None, devices: Sequence[str | None], per_instance: int | None
) -> int:
    """Return the number of instances. Up to three options may determine it, and they must agree.

    For a number that follows the load, this is the minimum, or 1 for a model that may be suspended; devices are then
    assigned in turn.

    Raises:
        PyTritonValidationError: the options contradict each other
    """
    autoscale = None if instances is None else autoscale_of(instances)
    if autoscale is not None:
        if per_instance is not None:
            raise PyTritonValidationError(
                "A list of callables, one per instance, cannot be combined with a number of instances that follows the load. "
                "Pass one callable."
            )
        return max(1, autoscale.least)
    passed = {
        "instances": cast(Optional[int], instances),
        "the number of devices": len(devices) or None,
        "the number of callables": per_instance,
    }
    counts = {what: count for what, count in passed.items() if count is not None}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{what} is {count}" for what, count in counts.items())
        raise PyTritonValidationError(
            f"These contradict each other: {words}. Each device and each callable of a list gets "
            "one instance; omit instances= in that case."
        )
    return next(iter(counts.values()), 1)


def default_lanes(config: Mapping[str, Any]) -> int:
    """Return the number of lanes: two without batching; one with it, and for streams, sequences and queues with rules.

    Without batching, the next request is transferred while one is computed. With batching, a second proxy would take
    queued requests before a batch is full (docs/audits/performance.md has measurements). And requests taken by a
    second proxy have left Triton's queue, whose priorities and timeouts must apply.
    """
    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    ruled = "sequence_batching" in config or any(config.get("dynamic_batching", {}).values())
    return 1 if decoupled or ruled or config.get("max_batch_size", 0) > 1 else 2


def default_concurrency(config: Mapping[str, Any], lanes: int | None) -> int:
    """Return how many batches, or streams, an asynchronous callable processes concurrently in one worker.

    Each batch needs a lane, so the number is that of `lanes` if the user set it. Requests of a sequence are sequential,
    and its state belongs to its lane.
    """
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        return MAX_CONCURRENCY
    return lanes or (default_lanes(config) if "sequence_batching" in config else MAX_CONCURRENCY)
