"""The daemon's end of the pipe on which a native frontend reports models that requests wait for, one per line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

_MAX_BYTES = 1 << 16


class OnDemandLoads:
    """Reads the pipe until it is closed.

    Args:
        descriptor: the reading end
        asked: called with the name of each model
    """

    def __init__(self, descriptor: int, asked: Callable[[str], None]) -> None:
        self.descriptor = descriptor
        self._asked = asked
        self._rest = b""
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            said = os.read(self.descriptor, _MAX_BYTES)
            if not said:  # the process has exited
                asyncio.get_running_loop().remove_reader(self.descriptor)
            *lines, self._rest = (self._rest + said).split(b"\n")
            for line in lines:
                self._asked(line.decode(errors="replace"))

    def close(self) -> None:
        """Stop reading and close the pipe."""
        if self.descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
