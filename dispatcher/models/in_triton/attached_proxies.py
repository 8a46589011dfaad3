"""Tracks the attached proxies of one registration, and detects proxies that exit without detaching."""

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
from pytriton.dispatcher.workers.pool import Pool

_SHM = Path("/dev/shm")


class _Proxy(NamedTuple):
    """An attached proxy: its pid, a pidfd, its region in /dev/shm, and the pid of its tritonserver.

    The first three are None for a compiled proxy, which runs inside tritonserver.
    """

    pid: int | None
    pidfd: int | None
    region: Path | None
    server: int


def _region_of(pid: int) -> Path | None:
    """Return the shared memory region that a stub's command line names, or None."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    ours = f"pytriton-{os.getpid()}-".encode()
    names = (word.decode(errors="replace") for word in words if word.startswith(ours))
    return next((_SHM / name for name in names if "/" not in name), None)


class Proxies:
    """Watches the processes of the attached proxies. Calls `gone` with the name of each proxy that exits without
    detaching.

    A proxy sends Detach when Triton unloads its model. A killed proxy does not. Triton does not restart it, so every
    batch of its instance fails. Nor does Triton remove its shared memory region.
    """

    def __init__(self, gone: Callable[[str], None]) -> None:
        self._gone = gone
        self._watched: dict[str, _Proxy] = {}

    def watch(self, proxy: str, pid: int | None, server: int = 0) -> None:
        """Watch the process of a proxy that requests a worker.

        `pid` is None for a compiled proxy; `server` is the pid of its tritonserver.

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
            raise RemoteFailure(ErrorKind.INVALID, f"process {pid} is not proxy {proxy}")
        self.forget(proxy)
        try:
            pidfd = linux.pidfd_open(pid)
        except (OSError, OverflowError) as error:
            raise RemoteFailure(ErrorKind.INVALID, f"process {pid} is not a proxy") from error
        self._watched[proxy] = _Proxy(pid, pidfd, _region_of(pid), server)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, proxy)

    def forget(self, proxy: str) -> None:
        """Stop watching a proxy that has exited or now runs in another process."""
        known = self._watched.pop(proxy, None)
        if known is not None and known.pidfd is not None:
            asyncio.get_running_loop().remove_reader(known.pidfd)
            os.close(known.pidfd)

    def names(self) -> set[str]:
        """Return the names of the attached proxies."""
        return set(self._watched)

    def of(self, servers: Collection[int]) -> set[str]:
        """Return the names of the attached proxies in these tritonservers."""
        return {proxy for proxy, known in self._watched.items() if known.server in servers}

    def end(self, proxies: set[str]) -> set[str]:
        """Kill the proxies that are still attached, because tritonserver has abandoned them.

        Return the compiled proxies, which cannot be killed. The caller must release them.
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


# ── The exits of a registration's proxies: detect them, wait for them, and force them if necessary ──

#: A request queued in Triton with nothing ahead of it reaches a worker within this time.
_REST_S = 1.0


class ProxyExits:
    """Handles the exits of one registration's proxies: waits for them, and kills proxies that tritonserver abandons.

    Args:
        pool: routes the proxies to workers
        broken: called with the name of a proxy that exited without detaching

    Attributes:
        proxies: the attached proxies.
    """

    def __init__(self, pool: Pool, broken: Callable[[str], None]) -> None:
        self.proxies = Proxies(self._ended)
        self._pool = pool
        self._broken = broken
        self._detached = asyncio.Event()

    def detach(self, proxy: str) -> None:
        """Forget a proxy that has exited."""
        self.proxies.forget(proxy)
        self._pool.proxies.detach(proxy)
        self._detached.set()

    def forget_all(self, living: Collection[int] = ()) -> None:
        """Forget all proxies except those of the tritonservers in `living`. The others exited with their server."""
        remaining = self.proxies.of(living)
        if remaining:
            for proxy in self.proxies.names() - remaining:
                self.detach(proxy)
            return
        self.proxies.clear()
        self._pool.proxies.forget_all()
        self._detached.set()

    def detach_of(self, server: int) -> None:
        """Forget the proxies of a tritonserver that has exited."""
        for proxy in self.proxies.of((server,)):
            self.detach(proxy)

    def end_all(self) -> None:
        """Kill the remaining proxies, and stop watching them."""
        self._end(self.proxies.names())
        self.proxies.clear()

    async def until_all_ended(
        self, grace_s: float, *, decoupled: bool, queue_delay_s: float = 0.0
    ) -> bool:
        """Wait up to `grace_s` seconds until Triton has stopped the proxies. Return whether all of them are idle or
        gone.

        Idle proxies of a decoupled model may remain: Triton 2.51 keeps a model while a client keeps the gRPC stream of a
        response open. So idle workers suffice, if they are idle for longer than a request may wait in Triton's queue.
        """
        if not decoupled:
            await self._until(lambda: not self._pool.proxies, grace_s)
            return not self._pool.proxies
        look_s = _REST_S + queue_delay_s
        deadline = asyncio.get_running_loop().time() + grace_s
        before = None
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await self._until(lambda: not self._pool.proxies, min(look_s, left_s))
            answered = self._pool.answered_if_idle()
            if not self._pool.proxies or (answered is not None and answered == before):
                return True
            before = answered
        return False

    async def until_ended(self, former: set[str], grace_s: float) -> None:
        """Wait until these proxies have exited. Kill the remaining ones after `grace_s` seconds."""
        await self._until(lambda: former.isdisjoint(self.proxies.names()), grace_s)
        self._end(former)

    def _end(self, proxies: set[str]) -> None:
        for proxy in self.proxies.end(proxies):
            self.detach(proxy)

    def _ended(self, proxy: str) -> None:
        self.detach(proxy)
        self._broken(proxy)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds until `condition` holds. Check it whenever a proxy detaches."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            self._detached.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._detached.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return
