"""This machine's GPUs and their memory as reported by nvidia-smi, which blocks for a while."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

_LIMIT_S = 20.0
_MIB = 1 << 20
_QUERY = "--query-gpu=index,uuid,memory.total"


class Gpu(NamedTuple):
    """A GPU: its number, UUID, and total memory in bytes."""

    number: str
    uuid: str
    total: int


def gpus() -> list[Gpu]:
    """Return this machine's GPUs; an empty list if nvidia-smi is missing or fails."""
    try:
        output = subprocess.run(
            ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([field.strip() for field in line.split(",")] for line in output.splitlines())
    return [
        Gpu(row[0], row[1], int(row[2]) * _MIB)
        for row in rows
        if len(row) == 3 and row[2].isdecimal()
    ]
