"""Checks a registration before anything is started: its name, payloads, response cache and devices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import structlog

from pytriton._host import gpus
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.worker import slot_count

_log = structlog.get_logger("pytriton.dispatcher")
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
#: File names are limited to 255 bytes; the longest one derived from a model's name is its log file.
_MAX_NAME_LEN = 200
#: Maximum number of workers of a model. Each one is a process.
MAX_WORKERS = 1024
#: Maximum number of lanes per worker. Each one is a proxy, which is a process too.
MAX_LANES = 16
#: Maximum number of concurrent batches or streams of an asynchronous callable in one worker. Each batch occupies a
#: thread of tritonserver.
MAX_CONCURRENCY = 1024
#: Maximum duration of a lease: a provisional model outlives its client at most for this long.
MAX_LEASE_S = 3600
_LEASE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check(spec: messages.ModelSpec, payloads: Sequence[bytes]) -> None:
    """Refuse a registration that would be invalid on any machine.

    Raises:
        RemoteFailure: the name, the number of workers or a payload is invalid.
    """
    _check_name(spec.name)
    _check_instances(spec)
    _check_payloads(spec, payloads)


def check_cache(
    spec: messages.ModelSpec, config: DaemonConfig, *, frontend_is_native: bool
) -> None:
    """Refuse a model that enables the response cache if the daemon has no cache. tritonserver would only log this.

    NVIDIA's frontend serves the model without the cache, and a warning is logged.

    Raises:
        RemoteFailure: the model enables the response cache, and the daemon has none.
    """
    cached = spec.config.get("response_cache", {}).get("enable", False)
    if not cached or "cache-config" in config.tritonserver_options:
        return
    if not config.response_cache_size:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"model {spec.name} has response_cache=True, but this daemon has no response cache: start it with "
            "--response-cache-size 64MiB (in a script, pass TritonConfig(response_cache_byte_size=...) to Triton), or leave "
            "out response_cache",
        )
    if not frontend_is_native:
        _log.warning(
            "model is served without the response cache",
            model=spec.name,
            reason="NVIDIA's frontend is in use, and the key of Triton's own cache lacks parameters, headers, shapes and "
            "requested outputs: a client could get the response to a different request",
            fix="set frontend to native",
        )


def check_autoscale(spec: messages.ModelSpec, rules: messages.Autoscale, *, callables: int) -> None:
    """Refuse autoscaling bounds that cannot be enforced.

    Raises:
        RemoteFailure: the bounds are invalid, or this model does not support them.
    """
    what = f"model {spec.name} with autoscaling"
    why = ""
    times = (rules.up_after_s, rules.down_after_s, rules.idle_after_s)
    if not 0 <= rules.least <= rules.most <= MAX_WORKERS or not rules.most:
        why = f"from {rules.least} to {rules.most}: both bounds must be 0 to {MAX_WORKERS}, the smaller one first"
    elif not all(0 < seconds < math.inf for seconds in times):
        why = "up_after_s, down_after_s and idle_after_s must be above 0"
    elif not (0 < rules.target <= 1 and 0 < rules.weight < math.inf and rules.concurrency >= 1):
        why = "target must be above 0 and at most 1, weight above 0, and concurrency at least 1"
    elif callables > 1:
        why = "a list has one callable for each instance; register a single callable"
    elif "sequence_batching" in spec.config:
        why = "a sequence is bound to one instance, which cannot be stopped; set a fixed number"
    elif spec.isolation == "thread":
        why = "its workers are threads of the process that registered it; use isolation='process'"
    if why:
        raise RemoteFailure(ErrorKind.INVALID, f"{what}: {why}")


def why_it_cannot_suspend(spec: messages.ModelSpec) -> str:
    """Return the reason why a model cannot be suspended; "" if it can."""
    if "sequence_batching" in spec.config:
        return "a sequence is bound to one instance, which cannot be stopped"
    if spec.isolation == "thread":
        return "its workers are threads of the process that registered it"
    return ""


def check_devices(spec: messages.ModelSpec) -> None:
    """Refuse GPUs that do not exist: CUDA in a worker would silently fall back to the CPU or fail late.

    Raises:
        RemoteFailure: the machine has no device file for one of the GPUs.
    """
    for device in filter(None, spec.devices):
        why = gpus.missing(device)
        if why is not None:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f'model {spec.name}: devices= contains GPU {why}; leave devices out, or set it to "cpu"',
            )


def check_free(
    request: messages.Register, current: messages.ModelSpec | None, is_restoring: bool
) -> None:
    """Refuse a registration whose name is taken.

    Args:
        request: the registration
        current: the specification that currently serves the name
        is_restoring: whether a model of this name is being restored

    Raises:
        RemoteFailure: the name is taken or about to be restored, and `replace` is not set; or the current model is
            provisional.
    """
    name = request.spec.name
    why = ""
    if request.replace and current is not None and current.lease is not None:
        why = (
            f"model {name!r} is provisional: a new version is being rolled out on several nodes. Wait, or "
            "roll it back first."
        )
    elif not request.replace and current is not None:
        why = (
            f"a model named {name!r} is already registered. Unregister it first, choose another name, or "
            "pass replace=True (--replace) to replace it."
        )
    elif not request.replace and is_restoring:
        why = (
            f"a model named {name!r} was registered when the daemon last ran and is about to be served "
            "again. Wait for it, unregister it, or pass replace=True (--replace) to replace it."
        )
    if why:
        raise RemoteFailure(ErrorKind.EXISTS, why)


def check_lease(spec: messages.ModelSpec, *, can_roll_back: bool) -> None:
    """Refuse a provisional registration that could not be rolled back.

    Args:
        spec: the registration
        can_roll_back: whether both this model and the one it replaces are persisted

    Raises:
        RemoteFailure: it could not be rolled back, or its lease is invalid.
    """
    lease = spec.lease
    if lease is None:
        return
    why = ""
    if not _LEASE.fullmatch(lease.id):
        why = "its id must be 1 to 64 letters, digits, underscores and dashes"
    elif not 1 <= lease.duration_s <= MAX_LEASE_S:
        why = f"its duration_s is {lease.duration_s}: it must be 1 to {MAX_LEASE_S} seconds"
    elif not 0 <= lease.share <= 1:
        why = f"its share is {lease.share}: it must be 0 to 1"
    elif not can_roll_back:
        why = "a client-bound model, or one that replaces such a model, could not be rolled back"
    if why:
        raise RemoteFailure(ErrorKind.INVALID, f"model {spec.name} (provisional): {why}")


def _check_name(name: str) -> None:
    """Refuse a name that is unsafe as a directory name or in a URL."""
    if not _NAME.fullmatch(name) or name in (".", "..") or len(name) > _MAX_NAME_LEN:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{name[:80]!r} is not a valid model name: use at most {_MAX_NAME_LEN} letters, digits, dots, underscores "
            "and dashes",
        )


def _check_instances(spec: messages.ModelSpec) -> None:
    if slot_count(spec) > MAX_WORKERS:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{spec.instances} instances and {spec.standby_workers} standby workers: at most {MAX_WORKERS} workers are "
            "allowed, since each is a separate process",
        )
    for option in ("memory_request", "gpu_memory_request"):
        size = getattr(spec, option)
        if size is not None and size < 1:
            raise RemoteFailure(ErrorKind.INVALID, f"{option}={size}: it must be at least 1 byte")
    if not 0 <= spec.max_inflight_batches <= MAX_LANES:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"max_inflight_batches={spec.max_inflight_batches}: it must be between 1 and {MAX_LANES}, since each batch in flight needs a lane of its own",
        )
    if not 1 <= spec.max_concurrency <= MAX_CONCURRENCY:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"max_concurrency={spec.max_concurrency}: it must be between 1 and {MAX_CONCURRENCY}",
        )


def _check_payloads(spec: messages.ModelSpec, payloads: Sequence[bytes]) -> None:
    """Refuse a registration if the numbers of instances, devices and payloads do not match. Raises RemoteFailure."""
    if spec.autoscale is not None:
        check_autoscale(spec, spec.autoscale, callables=len(payloads) - spec.check)
    if spec.instances < 1:
        raise RemoteFailure(ErrorKind.INVALID, f"instances={spec.instances}: it must be at least 1")
    if spec.lazy and spec.isolation == "thread":
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"model {spec.name} cannot be lazy with isolation='thread': the process that registers it has already "
            "loaded it; use isolation='process'",
        )
    callables = len(payloads) - spec.check
    # The copy of a model that was scaled down on another daemon has more callables than instances.
    if callables != 1 and callables < spec.instances:
        raise RemoteFailure(
            ErrorKind.INVALID, f"{callables} callables were sent for {spec.instances} instances"
        )
    if spec.standby_workers and callables > 1:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"standby_workers={spec.standby_workers} with a list of callables: a standby worker can replace any instance, so "
            "all instances must have the same callable",
        )
    if spec.autoscale is None and spec.devices and len(spec.devices) != spec.instances:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{len(spec.devices)} devices were given for {spec.instances} instances",
        )
