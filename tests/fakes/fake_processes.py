"""Fake processes, whose exit is signalled by descriptors as that of real processes is."""

from __future__ import annotations

import itertools
import os


class FakeProcesses:
    """All processes of a test; its `pidfd_open` replaces the one in pytriton._protocol.linux."""

    def __init__(self) -> None:
        self._pids = itertools.count(5000)
        #: Both ends of a pipe: closing the second makes the first readable, as a pidfd is at an exit.
        self._pipes: dict[int, tuple[int, int]] = {}

    def start(self) -> int:
        """Return the pid of a new process."""
        pid = next(self._pids)
        self._pipes[pid] = os.pipe()
        return pid

    def lives(self, pid: int) -> bool:
        return pid in self._pipes

    def end(self, pid: int) -> None:
        for descriptor in self._pipes.pop(pid):
            os.close(descriptor)

    def end_all(self) -> None:
        for pid in list(self._pipes):
            self.end(pid)

    def pidfd_open(self, pid: int) -> int:
        if pid not in self._pipes:
            raise ProcessLookupError(pid)
        return os.dup(self._pipes[pid][0])
