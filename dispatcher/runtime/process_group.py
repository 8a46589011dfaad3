"""Ends process groups: kill all processes, but leave time for resource trackers to clean up.

`multiprocessing` starts a tracker beside a program that creates shared memory or semaphores, and joblib another one.
When that program and its children have exited, for whatever reason, the tracker removes what they left in /dev/shm.
Nothing else can.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from pytriton._protocol import linux

#: Identifies the command line of a tracker, including that of joblib.
TRACKER = b"resource_tracker import main"
#: Timeout for trackers. They wait for the processes whose objects they remove, which have been killed by then.
CLEAN_UP_S = 5.0


async def end_group(group: int) -> None:
    """Kill the rest of a group whose leader has exited. Return when its trackers have exited, too."""
    trackers = kill_group(group)
    if trackers:
        await _ended(trackers)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def kill_group(group: int) -> Sequence[int]:
    """Kill all processes of a group except its trackers. Return these; some may be about to exit."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return []  # the usual case: all have exited, or belong to another user (sudo)
    members = _members(group)
    trackers = [pid for pid in members if _is_tracker(pid)]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not trackers:
            os.killpg(group, signal.SIGKILL)
    for pid in members if trackers else ():
        if pid not in trackers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return trackers


def _members(group: int) -> list[int]:
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def _is_tracker(pid: int) -> bool:
    """Return whether a process is, or may be, a tracker: its command line is empty while it starts its program.

    Until then this is unknown. Python 3.9 does not wait until a tracker has started its program (later versions do). So
    with 3.9, a program that is killed while it creates its first shared memory may leave it behind.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
            return not line or TRACKER in line
    except OSError:  # it has exited
        return False


async def _ended(pids: Sequence[int]) -> None:
    """Wait up to `CLEAN_UP_S` seconds for processes to exit; they need not be our children."""
    loop = asyncio.get_running_loop()
    ends: list[asyncio.Future[None]] = []
    with contextlib.ExitStack() as undo:
        for pid in pids:
            with contextlib.suppress(OSError):
                # It has exited, or there is no pidfd to watch it.
                pidfd = linux.pidfd_open(pid)
                undo.callback(os.close, pidfd)
                ends.append(loop.create_future())
                loop.add_reader(pidfd, _done, loop, pidfd, ends[-1])
                undo.callback(loop.remove_reader, pidfd)
        if ends:
            await asyncio.wait(ends, timeout=CLEAN_UP_S)


def _done(loop: asyncio.AbstractEventLoop, pidfd: int, end: asyncio.Future[None]) -> None:
    loop.remove_reader(pidfd)
    if not end.done():
        end.set_result(None)
