"""The ancestors of a process, found without psutil, which takes 10 ms to import."""

from __future__ import annotations


def ancestors(pid: int) -> list[int]:
    """Return the pids of a process's ancestors, its parent first; [] if the process does not exist."""
    found: list[int] = []
    parent = _parent(pid)
    while parent and parent not in found:  # pids may be reused while this runs
        found.append(parent)
        parent = _parent(parent)
    return found


def _parent(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the parent is outside this container or the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may contain anything: state and parent. See proc(5).
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
