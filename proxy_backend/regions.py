"""Lookup of a tensor's location: from an address in this process to a shared memory file and an offset in it.

Triton's python backend shares one file below /dev/shm between tritonserver and each stub. A file that grows
is mapped again at another address while the old mapping stays. So the mappings are cached, and reread on a
miss.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_SHARED_MEMORY = "/dev/shm/"


@dataclass(frozen=True)
class Mapping:
    """One mapping of a region: addresses [start, end) are the file's bytes from `offset` on."""

    start: int
    end: int
    offset: int
    path: str


class Regions:
    """This process's mappings of named shared memory."""

    def __init__(self) -> None:
        self._mappings: list[Mapping] = []

    def find(self, address: int, nbytes: int) -> Mapping | None:
        """Return the mapping that holds these bytes, or None when they are not in shared memory."""
        return self._cached(address, nbytes) or self._fresh(address, nbytes)

    def paths(self) -> set[str]:
        """Return the files of shared memory that are mapped now."""
        self._mappings = _read_mappings()
        return {mapping.path for mapping in self._mappings}

    def _cached(self, address: int, nbytes: int) -> Mapping | None:
        for mapping in self._mappings:
            if mapping.start <= address and address + nbytes <= mapping.end:
                return mapping
        return None

    def _fresh(self, address: int, nbytes: int) -> Mapping | None:
        self._mappings = _read_mappings()
        return self._cached(address, nbytes)


def _read_mappings() -> list[Mapping]:
    """Parse /proc/self/maps (proc(5)): "start-end perms offset device inode path"."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(_SHARED_MEMORY) and "s" in fields[1]:
                start, end = (int(edge, 16) for edge in fields[0].split("-"))
                if os.path.exists(fields[5]):  # not "… (deleted)"
                    found.append(Mapping(start, end, int(fields[2], 16), fields[5]))
    return found
