"""Check which files this process leaves open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.real_daemon import eventually


@contextmanager
def leaves_open(count: int = 0) -> Iterator[None]:
    """Fail unless exactly `count` files that were opened in the block are still open at its end.

    Files are compared, not counted: this process runs other tests, too, whose leftovers the garbage collector or a thread
    may close at any time.
    """
    before = _open_files()
    yield
    eventually(
        lambda: len(_open_files() - before) == count,
        lambda: f"{count} files more than before are open, but it is {_open_files() - before}",
    )


def _open_files() -> set[tuple[str, str, int]]:
    """Return each open file: its descriptor, target and inode."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # already closed, like the one used to read the folder
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}"), os.fstat(int(fd)).st_ino))
    return found
