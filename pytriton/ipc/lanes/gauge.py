"""What a worker is doing, in a page of memory that the dispatcher reads without asking.

The dispatcher makes the page (a memfd) and hands it to the worker when it starts it. The worker
writes it around every batch, four stores; so the dispatcher can tell a busy worker from a hung or a
stopped one, also when it does not answer any more, and what it had done when it ended::

    [ batches begun ][ batches answered ][ requests begun ][ begun at, 0: idle ][ ending ]     8 bytes each

Times are CLOCK_MONOTONIC in nanoseconds, one clock for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import NamedTuple

from pytriton.ipc import linux

_BEGUN, _ANSWERED, _REQUESTS, _BEGUN_AT, _ENDING = range(5)


class Reading(NamedTuple):
    """What the gauge shows.

    `busy_s` is how long the batch at hand has been running; None when idle. `ending`: the worker knows that it shall
    end.
    """

    begun: int
    answered: int
    requests: int
    busy_s: float | None
    ending: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self.begun == self.answered


class Gauge:
    """One end of the page: `begin` and `end` are for the worker, `read` for the dispatcher."""

    def __init__(self, fd: int) -> None:
        """Take over a descriptor of the page."""
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._map).cast("Q")
        os.close(fd)

    @classmethod
    def create(cls) -> tuple[Gauge, int]:
        """Return a new gauge and a descriptor of it for the other process, to be closed here."""
        fd = linux.memfd_create("pytriton-gauge")
        os.ftruncate(fd, mmap.PAGESIZE)
        linux.seal_against_shrinking(fd)
        return cls(os.dup(fd)), fd

    @classmethod
    def create_file(cls, path: Path) -> Gauge:
        """Return a new gauge that a process which is no child of this one opens by its path.

        Its bytes are written, so that a full disk shows here. Remove it when the other has opened it.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(fd, bytes(mmap.PAGESIZE))
        return cls(fd)

    def begin(self, requests: int) -> None:
        """A batch begins."""
        words = self._words
        words[_REQUESTS] += requests
        words[_BEGUN_AT] = time.monotonic_ns()
        words[_BEGUN] += 1

    def end(self) -> int:
        """It has been answered; return how many have."""
        words = self._words
        words[_ANSWERED] += 1
        words[_BEGUN_AT] = 0
        return words[_ANSWERED]

    def told_to_end(self) -> None:
        """The worker has taken notice that it shall end."""
        self._words[_ENDING] = 1

    def read(self) -> Reading:
        """Return what the worker has done and does."""
        words = self._words
        begun_at = words[_BEGUN_AT]
        busy_s = (time.monotonic_ns() - begun_at) / 1e9 if begun_at else None
        ending = words[_ENDING] != 0
        return Reading(words[_BEGUN], words[_ANSWERED], words[_REQUESTS], busy_s, ending)

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._map.close()
