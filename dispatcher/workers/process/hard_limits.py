"""Limits that a worker cannot keep by itself: the memory and the number of all processes that it started."""

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
from pytriton.dispatcher.workers.process.worker_process import WorkerProcess

_log = structlog.get_logger(__name__)

#: Seconds between two looks at a model with such limits: the kernel sends no event for them.
_LOOK_S = 0.5


async def guard(worker: WorkerProcess, limits: messages.Limits, events: Events = LOG_ONLY) -> None:
    """End a worker with all that it started when it passes a hard limit; return when it has ended.

    Without such a limit there is nothing to look at, and it returns at once.
    """
    if limits.memory_hard is None and limits.processes is None:
        return
    told = None
    while worker.alive:
        why, family = None, set[int]()
        try:
            family = _family(worker.pid)
            why = _passed(worker.pid, family, limits)
        except (
            psutil.Error,
            OSError,
        ) as error:  # say, no descriptor is left; a later look may find one
            if told != str(error):
                told = str(error)
                _log.warning("cannot look at what a worker uses", worker=worker.name, error=told)
        if why is not None and worker.condemned is None and worker.alive:
            events.tell(kinds.LIMIT, worker=worker.name, reason=why, numbers={"pid": worker.pid})
            worker.end_now(why)
            _end_others(worker.pid, family)
        await asyncio.wait([worker.exited], timeout=_LOOK_S)


def _family(pid: int) -> set[int]:
    """Return the processes that a worker has started.

    These are its descendants, and those whose parent has ended, as of a double fork: they are in the worker's session
    still, unless they have left that, too.
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


def _passed(pid: int, family: Collection[int], limits: messages.Limits) -> str | None:
    """Return which limit a worker has passed, None if none."""
    if limits.processes is not None and len(family) > limits.processes:
        return f"it had started {len(family)} processes, and may have {limits.processes} (limits)"
    if limits.memory_hard is not None:
        used = sum(map(_own_memory, [pid, *family]))
        if used > limits.memory_hard:
            return f"it used {used} bytes of memory, and may use {limits.memory_hard} (limits)"
    return None


def _end_others(group: int, family: Collection[int]) -> None:
    """Kill what has left the worker's group, which ends as a whole."""
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                os.kill(pid, signal.SIGKILL)


def _own_memory(pid: int) -> int:
    """Return a process's resident bytes that are not shared; 0 when it has ended meanwhile."""
    try:
        info = psutil.Process(pid).memory_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return int(info.rss - info.shared)
