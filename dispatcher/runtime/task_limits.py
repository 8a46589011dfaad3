"""Limits on the number of threads and processes, and how many more a process may start.

tritonserver crashes if it cannot create a thread (uncaught exception of `std::thread`), so the daemon checks the limits
before it makes tritonserver start threads. The limits are those of fork(2): `pids.max` of a control group and its
ancestors (systemd's TasksMax), RLIMIT_NPROC (`ulimit -u`), and the kernel's limits for all tasks.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytriton._protocol import linux

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


class Headroom(NamedTuple):
    """How many threads and processes a limit still allows.

    Attributes:
        left: number of threads and processes that may still be started
        limit: description of the limit, for error messages
    """

    left: int
    limit: str


def headroom(pid: int, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Headroom | None:
    """Return a process's headroom below its tightest limit; None if no limit can be read.

    Args:
        pid: the process
        proc: mount point of proc(5)
        cgroups: mount point of the control groups
    """
    found = [*_in_control_groups(pid, proc, cgroups), *_of_user(pid, proc), *_of_kernel(proc)]
    return min(found, default=None)


def _in_control_groups(pid: int, proc: Path, cgroups: Path) -> Iterator[Headroom]:
    """Yield the headroom below `pids.max` of each control group that the process belongs to."""
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            names = controllers.split(",")
            if names != [""] and "pids" not in names:
                continue
            mounts = [cgroups / "pids"] if names != [""] else [cgroups, cgroups / "unified"]
            for mount in mounts:
                yield from _in_control_group(mount, path.strip("/"))


def _in_control_group(mount: Path, path: str) -> Iterator[Headroom]:
    group = mount / path
    while True:
        with contextlib.suppress(
            OSError, ValueError
        ):  # the limit is "max", or this is the root, which has none
            most = int((group / "pids.max").read_text())
            now = int((group / "pids.current").read_text())
            where = f"/{group.relative_to(mount)}" if group != mount else "/"
            yield Headroom(most - now, f"pids.max of control group {where} is {most}")
        if group == mount:
            return
        group = group.parent


def _of_user(pid: int, proc: Path) -> Iterator[Headroom]:
    """Yield how many more threads and processes the process's user may start within RLIMIT_NPROC. The limit does not
    apply to root.
    """
    try:
        user = (proc / str(pid)).stat().st_uid
        most = resource.prlimit(pid, resource.RLIMIT_NPROC)[0]
    except (OSError, ValueError):  # it has exited
        return
    if user != 0 and most != resource.RLIM_INFINITY:
        now = sum(_tasks_of(user, proc))
        yield Headroom(most - now, f"the limit of processes of user {user} (ulimit -u) is {most}")


def _tasks_of(user: int, proc: Path) -> Iterator[int]:
    for entry in os.scandir(proc):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just exited
            if entry.name.isdigit() and entry.stat().st_uid == user:
                yield int(linux.stat_fields(f"{entry.path}/stat")[20])  # the number of threads


def _of_kernel(proc: Path) -> Iterator[Headroom]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        now = int((proc / "loadavg").read_text().split()[3].partition("/")[2])
        for name in ("threads-max", "pid_max"):
            most = int((proc / "sys" / "kernel" / name).read_text())
            yield Headroom(most - now, f"kernel.{name} is {most}")
