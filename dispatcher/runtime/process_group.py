"""The end of a process group: all of it is killed, and resource trackers have a moment to clean up first.

`multiprocessing` starts such a tracker beside a program that makes shared memory or semaphores, and joblib another one.
When that program and its children have ended, however that comes, it removes what they have left in /dev/shm. Nobody
else can.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from pytriton._protocol import linux

#: In the command line of a tracker, and of the one in joblib.
TRACKER = b"resource_tracker import main"
#: The most time that it gets. It waits for the end of those that have made what it removes; they are killed by then.
CLEAN_UP_S = 5.0


async def end_group(group: int) -> None:
    """Kill what is left of a group whose first process has ended; return when its trackers have ended, too."""
    trackers = kill_group(group)
    if trackers:
        await _ended(trackers)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def kill_group(group: int) -> Sequence[int]:
    """Kill all processes of a group but its trackers, which are returned; one may be about to end."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return []  # as of most: all of them have ended, or are another user's (sudo)
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
    """Return whether a process is a tracker, or may be one: while it starts its program, it has no command line.

    Before that it is not known. Python 3.9 does not wait until a tracker has started its program (later ones do), so
    that there a program that is killed as it makes its first shared memory may leave it behind.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
            return not line or TRACKER in line
    except OSError:  # it has ended
        return False


async def _ended(pids: Sequence[int]) -> None:
    """Wait for the ends of processes that may be others' children, at most `CLEAN_UP_S`."""
    loop = asyncio.get_running_loop()
    ends: list[asyncio.Future[None]] = []
    with contextlib.ExitStack() as undo:
        for pid in pids:
            with contextlib.suppress(OSError):
                # It has ended, or there is no descriptor to see it by.
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
