"""A control group that limits the number of tasks of a test's processes."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from support.real_daemon import eventually

_CGROUPS = Path("/sys/fs/cgroup")


def mount() -> Path | None:
    """Return a control group in which task-counting groups can be created; None if this machine allows none."""
    for place in (_CGROUPS / "pids", _CGROUPS):
        control = place / "cgroup.subtree_control"
        counts = place.name == "pids" or (control.exists() and "pids" in control.read_text())
        if (place / "cgroup.procs").exists() and counts and os.access(place, os.W_OK):
            return place
    return None


class TaskGroup:
    """A control group; at the end, its processes move back to the parent group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def tasks(self) -> int:
        """The number of tasks of its processes."""
        return int((self._folder / "pids.current").read_text())

    @property
    def refused(self) -> int:
        """How often a task was refused because of the limit."""
        return int((self._folder / "pids.events").read_text().split()[1])

    def add(self, processes: Iterable[psutil.Process]) -> None:
        """Move processes with all their threads into the group; their children are born in it."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                (self._folder / "cgroup.procs").write_text(str(process.pid))

    def limit(self, tasks: int | None) -> None:
        """Limit the number of tasks; None removes the limit."""
        (self._folder / "pids.max").write_text("max" if tasks is None else str(tasks))

    def _is_removed(self) -> bool:
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self._folder.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()

    def close(self) -> None:
        """Remove the group."""
        eventually(self._is_removed, "the control group is empty")


@contextlib.contextmanager
def task_group() -> Iterator[TaskGroup]:
    """Create a group for a block; call `mount` first to see whether that is possible."""
    place = mount()
    assert place is not None
    folder = place / f"pytriton-tests-{secrets.token_hex(4)}"
    folder.mkdir()
    group = TaskGroup(folder)
    try:
        yield group
    finally:
        group.close()
