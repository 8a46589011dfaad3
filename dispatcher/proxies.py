"""The proxies of one registration: who they are, and that one is gone that could not say so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from pytriton.ipc import linux
from pytriton.ipc.errors import ErrorKind, RemoteFailure


class Proxies:
    """Watches the processes of the attached proxies; calls `gone` with the name of one that has ended.

    A proxy says Detach when Triton unloads its model. One that was killed does not, and Triton does
    not start it again: every batch that it gives to that instance fails.
    """

    def __init__(self, gone: Callable[[str], None]) -> None:
        self._gone = gone
        self._watched: dict[str, tuple[int, int]] = {}

    def seen(self, proxy: str, pid: int) -> None:
        """A proxy asks for a worker.

        Raises:
            RemoteFailure: there is no such process.
        """
        known = self._watched.get(proxy)
        if known is not None and known[0] == pid:
            return
        self.forget(proxy)
        try:
            pidfd = linux.pidfd_open(pid)
        except (OSError, OverflowError) as error:
            raise RemoteFailure(ErrorKind.INVALID, f"no process {pid} is a proxy") from error
        self._watched[proxy] = pid, pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._ended, proxy)

    def forget(self, proxy: str) -> None:
        """It has said that it ends."""
        known = self._watched.pop(proxy, None)
        if known is not None:
            asyncio.get_running_loop().remove_reader(known[1])
            os.close(known[1])

    def names(self) -> set[str]:
        """Return those that are attached."""
        return set(self._watched)

    def end(self, proxies: set[str]) -> None:
        """Kill those of `proxies` that are still attached: tritonserver has given them up."""
        for proxy in proxies & self.names():
            os.kill(self._watched[proxy][0], signal.SIGKILL)

    def clear(self) -> None:
        """Forget all of them."""
        for proxy in list(self._watched):
            self.forget(proxy)

    def _ended(self, proxy: str) -> None:
        self.forget(proxy)
        self._gone(proxy)
