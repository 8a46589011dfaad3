"""Watch folders with the kernel's inotify, which Python lacks."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

IN_ATTRIB = 0x4
IN_CREATE = 0x100

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """A descriptor that becomes readable when one of these things happens in a folder."""

    def __init__(self, folder: Path, mask: int) -> None:
        self.descriptor: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0 or _libc.inotify_add_watch(self.descriptor, bytes(folder), mask) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def take(self) -> bytes:
        """Read the pending events, so that the next ones can be awaited; call it only when there are any."""
        return os.read(self.descriptor, 1 << 16)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
