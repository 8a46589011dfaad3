"""Memory of processes as reported by the kernel."""

from __future__ import annotations

import os
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessMemory(NamedTuple):
    """Resident bytes, and the part of them that may be shared with other processes."""

    resident: int
    shared: int


def memory_of(pid: int) -> ProcessMemory | None:
    """Return the memory of a process; None if it has exited."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return ProcessMemory(int(resident) * _PAGE, int(shared) * _PAGE)
