"""Limits that the daemon enforces on a worker and the processes it started: total memory and number of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection

import psutil
import structlog

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.worker_process import WorkerProcess

_log = structlog.get_logger(__name__)

#: Interval between checks of a worker with such limits. The kernel offers no notification.
_POLL_INTERVAL_S = 0.5


async def guard(worker: WorkerProcess, limits: messages.Limits, events: Events = LOG_ONLY) -> None:
    """Kill a worker and the processes it started if they exceed a hard limit. Return once the worker has exited."""
    reported = None
    while worker.alive:
        why, family = None, set[int]()
        try:
            family = _family(worker.pid)
            why = _exceeded_limit(worker.pid, family, limits)
        except (psutil.Error, OSError) as error:  # may be temporary, such as a lack of descriptors
            if reported != str(error):
                reported = str(error)
                _log.warning(
                    "could not measure a worker's resource usage",
                    worker=worker.name,
                    error=reported,
                )
        if why is not None and worker.kill_reason is None and worker.alive:
            events.emit(
                kinds.LIMIT_EXCEEDED, worker=worker.name, reason=why, numbers={"pid": worker.pid}
            )
            worker.kill_now(why)
            _kill_others(worker.pid, family)
        await asyncio.wait([worker.exited], timeout=_POLL_INTERVAL_S)


def _family(pid: int) -> set[int]:
    """Return the pids of the processes that a worker has started.

    These are its descendants, and the processes in its session whose parent has exited, as after a double fork.
    Processes that have left both are not found.
    """
    try:
        found = {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()
    for other in psutil.pids():
        if other != pid and other not in found and _session(other) == pid:
            found.add(other)
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update(child.pid for child in psutil.Process(other).children(recursive=True))
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _exceeded_limit(pid: int, family: Collection[int], limits: messages.Limits) -> str | None:
    """Describe the limit that a worker has exceeded, or return None."""
    if limits.processes is not None and len(family) > limits.processes:
        return f"it had {len(family)} processes, more than the limit of {limits.processes} (limits)"
    if limits.memory_limit is not None:
        used = sum(map(_own_memory, [pid, *family]))
        if used > limits.memory_limit:
            return f"it used {used} bytes of memory, more than the limit of {limits.memory_limit} (limits)"
    return None


def _kill_others(group: int, family: Collection[int]) -> None:
    """Kill the worker's descendants outside its process group. The caller kills the group."""
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                os.kill(pid, signal.SIGKILL)


def _own_memory(pid: int) -> int:
    """Return a process's resident bytes that are not shared, or 0 if it has exited."""
    try:
        info = psutil.Process(pid).memory_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return int(info.rss - info.shared)
