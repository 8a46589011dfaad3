"""The persistent record of a model's size when it was last loaded, kept in a file and across upgrades."""

from __future__ import annotations

import msgspec


class KnownSize(msgspec.Struct, frozen=True):
    """The known size of one registration's workers.

    Attributes:
        registration: Identifies the registration among others of the same model name.
        memory: Bytes of host memory of one worker.
        gpu: Bytes of one worker on each of its GPUs.
        shared: Mappings that the workers shared, digest -> bytes.
        lived: Whether a worker has been observed from its load to its exit.
    """

    registration: str
    memory: int
    gpu: int = 0
    shared: dict[str, int] = {}
    lived: bool = False
