"""The memory of processes, as the kernel tells it; 0 of one that has ended."""

from __future__ import annotations


def pss(pid: int) -> int:
    """Return the bytes of a process, of what it shares with others its part."""
    return _line(f"/proc/{pid}/smaps_rollup", "Pss:")


def own(pid: int) -> int:
    """Return the bytes of a process that are neither of files nor shared: what a budget counts."""
    return _line(f"/proc/{pid}/status", "RssAnon:")


def resident(pid: int) -> int:
    """Return all bytes of a process that are in memory."""
    return _line(f"/proc/{pid}/status", "VmRSS:")


def _line(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return next((int(one.split()[1]) * 1024 for one in file if one.startswith(name)), 0)
    except OSError:
        return 0
