"""The attached proxies of one registration, and detection of those that exit without detaching."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from pytriton._protocol import linux
from pytriton._protocol.errors import ErrorKind, RemoteFailure

_SHM = Path("/dev/shm")


class _Proxy(NamedTuple):
    """A proxy's process: its pid, a pidfd, its region in /dev/shm, and the tritonserver that loaded it.

    The first three are None for a compiled proxy: it runs inside tritonserver and exits with it or detaches.
    """

    pid: int | None
    pidfd: int | None
    region: Path | None
    server: int


def _region_of(pid: int) -> Path | None:
    """Return the shared memory region named on a stub's command line, or None."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    ours = f"pytriton-{os.getpid()}-".encode()
    names = (word.decode(errors="replace") for word in words if word.startswith(ours))
    return next((_SHM / name for name in names if "/" not in name), None)


class Proxies:
    """Watches the processes of the attached proxies. Calls `gone` with the name of a proxy that has exited.

    A proxy sends Detach when Triton unloads its model. A killed proxy does not, and Triton does not restart it: every
    batch that Triton passes to that instance fails. Triton does not remove the proxy's shared memory region either.
    """

    def __init__(self, gone: Callable[[str], None]) -> None:
        self._gone = gone
        self._watched: dict[str, _Proxy] = {}

    def seen(self, proxy: str, pid: int | None, server: int = 0) -> None:
        """Watch the process of a proxy that requests a worker; `pid` is None for a compiled proxy.

        `server` is the pid of its tritonserver.

        Raises:
            RemoteFailure: the process does not exist, or it is attached under another name.
        """
        known = self._watched.get(proxy)
        if known is not None and known.pid == pid:
            return
        if pid is None:
            self._watched[proxy] = _Proxy(None, None, None, server)
            return
        if any(other.pid == pid for other in self._watched.values()):
            raise RemoteFailure(ErrorKind.INVALID, f"process {pid} is another proxy than {proxy}")
        self.forget(proxy)
        try:
            pidfd = linux.pidfd_open(pid)
        except (OSError, OverflowError) as error:
            raise RemoteFailure(ErrorKind.INVALID, f"no process {pid} is a proxy") from error
        self._watched[proxy] = _Proxy(pid, pidfd, _region_of(pid), server)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, proxy)

    def forget(self, proxy: str) -> None:
        """Stop watching a proxy that has exited or is now another process."""
        known = self._watched.pop(proxy, None)
        if known is not None and known.pidfd is not None:
            asyncio.get_running_loop().remove_reader(known.pidfd)
            os.close(known.pidfd)

    def names(self) -> set[str]:
        """Return the names of the attached proxies."""
        return set(self._watched)

    def of(self, servers: Collection[int]) -> set[str]:
        """Return the attached proxies of these tritonservers."""
        return {proxy for proxy, known in self._watched.items() if known.server in servers}

    def end(self, proxies: set[str]) -> set[str]:
        """Kill those of `proxies` that are still attached, because tritonserver has abandoned them.

        Return the compiled ones, which cannot be killed; the caller must release them.
        """
        compiled = set()
        for proxy in proxies & self.names():
            pidfd = self._watched[proxy].pidfd
            if pidfd is None:
                compiled.add(proxy)
                continue
            with contextlib.suppress(OSError):  # it has just exited; its pid may have been reused
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return compiled

    def clear(self) -> None:
        """Forget all proxies."""
        for proxy in list(self._watched):
            self.forget(proxy)

    def _ended(self, proxy: str) -> None:
        region = self._watched[proxy].region
        self.forget(proxy)
        if region is not None:
            with contextlib.suppress(OSError):  # now another user's file
                region.unlink()
        self._gone(proxy)
