"""The instances of a model: their number, and the device of each."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional, cast

from pytriton.autoscale import Instances, autoscale_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.run_options import Device

#: The default of `max_concurrency`.
MAX_CONCURRENCY = 64

#: What CUDA_VISIBLE_DEVICES may be: with anything else, "cuda:0" say, CUDA finds no GPU and does not say why.
_VISIBLE_DEVICES = re.compile(r"((\d+|(GPU|MIG)-[^,]+)(,(\d+|(GPU|MIG)-[^,]+))*)?")


def device_list(devices: Sequence[Device] | None) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each instance: "" hides all GPUs, None leaves it alone.

    Raises:
        PyTritonValidationError: an entry is no device
    """
    if devices is None:
        return []
    if isinstance(devices, (str, int)) or not isinstance(devices, Sequence):
        raise PyTritonValidationError(
            f"devices has to be a list with one entry for each instance, got {devices!r}. Write "
            f"devices=[{devices!r}] for one instance."
        )
    if not devices:
        raise PyTritonValidationError("devices=[] asks for no instance at all; leave it out.")
    return [None if device is None else _device_text(device) for device in devices]


def _device_text(device: Any) -> str:
    if isinstance(device, tuple):
        if not device or any(isinstance(part, tuple) or part in ("", "cpu") for part in device):
            raise PyTritonValidationError(
                f"devices: {device!r} has to name one or more GPUs for one instance, e.g. (0, 1)."
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
            f"devices: {device!r} is no device. A GPU's number (0), its UUID ('GPU-...'), a tuple "
            "of them for one instance on several GPUs, or 'cpu'."
        )
    return text


def count_instances(
    instances: Instances | None, devices: Sequence[str | None], per_instance: int | None
) -> int:
    """Return the number of instances; up to three options may say it, and they have to agree.

    Of a number that follows the load, it is the least, or 1 for a model that may sleep: devices are used in turn then.

    Raises:
        PyTritonValidationError: they contradict each other
    """
    autoscale = None if instances is None else autoscale_of(instances)
    if autoscale is not None:
        if per_instance is not None:
            raise PyTritonValidationError(
                "A list of callables, one for each instance, and a number of instances that follows the load do not go "
                "together. Pass one callable."
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
            "one instance; leave instances= out then."
        )
    return next(iter(counts.values()), 1)


def default_lanes(config: Mapping[str, Any]) -> int:
    """Return the number of lanes: two without batching; one with it, and for streams, sequences and queues with rules.

    Without batching, the next request travels while one is computed. With it, a second proxy would take what
    is queued before a batch has come together (docs/audits/performance.md has the figures). And what a
    second proxy has taken has left Triton's queue, whose priorities and time-outs must hold.
    """
    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    ruled = "sequence_batching" in config or any(config.get("dynamic_batching", {}).values())
    return 1 if decoupled or ruled or config.get("max_batch_size", 0) > 1 else 2


def default_concurrency(config: Mapping[str, Any], lanes: int | None) -> int:
    """Return how many batches, or streams, an asynchronous callable has under way in one worker.

    Batches need a lane each, so they are as many as there are `lanes`, if the user said that. One sequence's requests
    come one after the other, and its state is its lane's.
    """
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        return MAX_CONCURRENCY
    return lanes or (default_lanes(config) if "sequence_batching" in config else MAX_CONCURRENCY)
