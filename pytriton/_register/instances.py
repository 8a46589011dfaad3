"""The instances of a model: their number, and each one's device."""

from __future__ import annotations

import itertools
import operator
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, cast

from pytriton.autoscale import Instances, autoscale_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.run_options import Device

#: The default of `max_concurrency`.
MAX_CONCURRENCY = 64

#: Valid values of CUDA_VISIBLE_DEVICES: with others, such as "cuda:0", CUDA silently finds no GPU.
_VISIBLE_DEVICES = re.compile(r"((\d+|(GPU|MIG)-[^,]+)(,(\d+|(GPU|MIG)-[^,]+))*)?")


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
    said = {
        "instances": cast(Optional[int], instances),
        "the number of devices": len(devices) or None,
        "the number of callables": per_instance,
    }
    counts = {what: count for what, count in said.items() if count is not None}
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


# ── The GPUs of this machine: how many there are, and their names in CUDA ──

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: One folder per GPU if NVIDIA's driver is loaded; and their device files, which exist in containers.
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_NONE = ("", "-1", "NoDevFiles")
#: Present if GPUs are divided into slices (MIG), which CUDA then counts instead.
_SLICES = Path("/proc/driver/nvidia/capabilities")
#: Access to GPUs without countable files: Windows (WSL), Jetson, and AMD, which also reads CUDA's variable.
_OTHER_WAYS = ("dxg", "nvhost-gpu", "nvmap", "kfd")
#: Maximum number of digits; no machine has more GPUs.
_MAX_DIGITS = 6


def visible() -> list[str]:
    """Return the GPUs visible to a program started here, each as in $CUDA_VISIBLE_DEVICES."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        found = [name.strip() for name in named.split(",")]
        # CUDA ignores an invalid entry ("-1", "") and all that follow it.
        return list(itertools.takewhile(lambda name: name not in _NONE, found))
    return [str(index) for index in range(_count())]


def missing(devices: str) -> str | None:
    """Describe the GPUs of a $CUDA_VISIBLE_DEVICES that this machine lacks; None if it lacks none, judging by files.

    Ignores this process's own variable, since the given value replaces it.
    """
    names = [name for name in devices.split(",") if name not in _NONE]
    count = _known_count()
    if count is None or not names:
        return None
    if not count:
        return (
            f"{names[0][:80]}: this machine has no GPU that CUDA could use (/dev/nvidia0 does not exist; a container must "
            "be given its GPUs)"
        )
    for name in names:
        if name.isdecimal() and (len(name) > _MAX_DIGITS or int(name) >= count):
            those = "only GPU 0" if count == 1 else f"the GPUs 0 to {count - 1}"
            return f"{name[:80]}: this machine has {those}"
        ids = _ids() if name.startswith("GPU-") else None
        if ids is not None and not any(one.lower().startswith(name.lower()) for one in ids):
            return f"{name[:80]}: this machine has {', '.join(ids)}"
    return None


def _files() -> list[str]:
    return [one.name for one in _DEVICES.iterdir() if re.fullmatch(r"nvidia\d+", one.name)]


def _count() -> int:
    """Return the number of GPUs. A container may have device files for only some of the driver's GPUs."""
    files = len(_files())
    if not _DRIVER.is_dir():
        return files
    shown = len(list(_DRIVER.iterdir()))
    return min(files, shown) if files else shown


def _known_count() -> int | None:
    """Return the number of GPU indices in CUDA; None if only CUDA itself knows."""
    if any((_DEVICES / name).exists() for name in _OTHER_WAYS):
        return None
    if any(_SLICES.glob("gpu*/mig/gi*")):
        return None
    count = _count()
    # With a driver but no files: the first CUDA program creates them (nvidia-modprobe), or may not be allowed to.
    return None if count and not _files() else count


def _ids() -> list[str] | None:
    """Return the UUIDs of all GPUs; None if the driver does not report them (yet)."""
    found: list[str] = []
    for folder in sorted(_DRIVER.iterdir()) if _DRIVER.is_dir() else ():
        try:
            said = (folder / "information").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        one = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", said, re.MULTILINE)
        if one is None:
            return None
        found.append(one[1])
    return found or None
