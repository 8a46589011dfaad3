"""The attached proxies of one registration, and a watch for those that end without a word."""

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
    """A proxy's process: its pid, a pidfd of it, and its region in /dev/shm; and the tritonserver that has loaded it.

    The first three are None for a compiled proxy: it runs inside tritonserver, and ends with it or says that it ends.
    """

    pid: int | None
    pidfd: int | None
    region: Path | None
    server: int


def _region_of(pid: int) -> Path | None:
    """Return the region that a stub was started with: an argument of its command line; None if there is none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    ours = f"pytriton-{os.getpid()}-".encode()
    names = (word.decode(errors="replace") for word in words if word.startswith(ours))
    return next((_SHM / name for name in names if "/" not in name), None)


class Proxies:
    """Watches the processes of the attached proxies; calls `gone` with the name of one that has ended.

    A proxy says Detach when Triton unloads its model. One that was killed does not, and Triton does
    not start it again: every batch that it gives to that instance fails. Nor does Triton remove the
    region of its shared memory.
    """

    def __init__(self, gone: Callable[[str], None]) -> None:
        self._gone = gone
        self._watched: dict[str, _Proxy] = {}

    def seen(self, proxy: str, pid: int | None, server: int = 0) -> None:
        """Watch the process of a proxy that asks for a worker; `pid` is None for a compiled proxy.

        `server` is the pid of its tritonserver.

        Raises:
            RemoteFailure: there is no such process, or it is attached under another name.
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
        """Stop watching a proxy, which has ended or has another process by now."""
        known = self._watched.pop(proxy, None)
        if known is not None and known.pidfd is not None:
            asyncio.get_running_loop().remove_reader(known.pidfd)
            os.close(known.pidfd)

    def names(self) -> set[str]:
        """Return those that are attached."""
        return set(self._watched)

    def of(self, servers: Collection[int]) -> set[str]:
        """Return the attached proxies of these tritonservers."""
        return {proxy for proxy, known in self._watched.items() if known.server in servers}

    def end(self, proxies: set[str]) -> set[str]:
        """Kill those of `proxies` that are still attached: tritonserver has given them up.

        Returns the compiled ones, which nobody can kill: whoever calls lets them go.
        """
        compiled = set()
        for proxy in proxies & self.names():
            pidfd = self._watched[proxy].pidfd
            if pidfd is None:
                compiled.add(proxy)
                continue
            with contextlib.suppress(OSError):  # it has ended just now; its number may be another's
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return compiled

    def clear(self) -> None:
        """Forget all of them."""
        for proxy in list(self._watched):
            self.forget(proxy)

    def _ended(self, proxy: str) -> None:
        region = self._watched[proxy].region
        self.forget(proxy)
        if region is not None:
            with contextlib.suppress(OSError):  # it is another user's file by now
                region.unlink()
        self._gone(proxy)
