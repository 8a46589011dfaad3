"""The size that a model had when it was last loaded, as it outlives the daemon: in a file, and in an upgrade."""

from __future__ import annotations

import msgspec


class KnownSize(msgspec.Struct, frozen=True):
    """The size of one registration's workers, as far as it is known.

    Attributes:
        registration: says which one of its model's name it is
        memory: bytes of one worker
        gpu: bytes of one worker on each of its GPUs
        shared: what the workers had in common, digest -> bytes
        lived: whether a worker has been seen from its load to its end
    """

    registration: str
    memory: int
    gpu: int = 0
    shared: dict[str, int] = {}
    lived: bool = False
