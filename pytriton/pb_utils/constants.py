"""Flags and memory types, with tritonserver's values (tritonserver.h)."""

from __future__ import annotations

import enum

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class _MemoryType(enum.IntEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = _MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = _MemoryType.TRITONSERVER_MEMORY_CPU


class PreferredMemory:
    """The preferred memory for outputs of a call to another model. In a worker they are always on the CPU."""

    def __init__(self, preferred_memory_type: _MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, _MemoryType):
            raise TypeError(
                "PreferredMemory takes TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU, got "
                f"{preferred_memory_type!r:.80}"
            )
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id
