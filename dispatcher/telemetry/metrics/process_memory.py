"""The memory of processes, as the kernel tells it."""

from __future__ import annotations

import os
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory(NamedTuple):
    """Resident bytes, and those of them that other processes may share."""

    resident: int
    shared: int


def memory_of(pid: int) -> Memory | None:
    """Return what a process has; None when it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return Memory(int(resident) * _PAGE, int(shared) * _PAGE)
