"""The open files of this process: a test has to close what it opens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.real_daemon import eventually

#: How long the threads of earlier tests may have what they open and close themselves, in seconds.
_OF_OTHERS_S = 10.0


@contextmanager
def leaves_open(count: int = 0) -> Iterator[None]:
    """Fail unless exactly `count` files that were opened meanwhile are open at the end.

    Files are told apart, not counted: this process runs other tests too, and what an earlier one has left to the
    garbage collection or to a thread may be closed at any time.
    """
    before = _open_files()
    yield
    eventually(
        lambda: len(_open_files() - before) == count,
        lambda: f"{count} files more than before are open, but it is {_open_files() - before}",
        _OF_OTHERS_S,
    )


def _open_files() -> set[tuple[str, str, int]]:
    """Each open file: its descriptor, what it leads to, and the number of that."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, as that with which the folder was read
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}"), os.fstat(int(fd)).st_ino))
    return found
