"""Fork servers: processes that have imported what workers of one environment import, and fork for each worker.

An interpreter's start and the imports take 0.3 s of CPU time, a fork some hundredths of that. What is forked is a child
of the dispatcher's like one that it has started itself (pytriton/_protocol/fork_protocol.py, worker/fork_server.py). Wherever a
fork server cannot be had, or does not do what it should, a worker is started as without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import structlog

from pytriton._protocol.fork_protocol import GO, Order
from pytriton.dispatcher.runtime.child import Child, OnLine, put_away
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.worker_library import library_of
from pytriton.dispatcher.workers.process.fork_server import (
    Ended,
    ForkServer,
    Stale,
    Surroundings,
    Unfit,
)

_log = structlog.get_logger(__name__)

#: How long an environment is started without one, after one of it has failed.
_UNFIT_S = 60.0


class _Kept:
    """A fork server that starts or has started.

    Attributes:
        server: the process, once there is one
        starting: is done when it takes orders
        users: how many starts count on it
    """

    def __init__(self) -> None:
        self.server: ForkServer | None = None
        self.starting: asyncio.Task[None]
        self.users = 0

    @property
    def is_used(self) -> bool:
        orders = 0 if self.server is None else self.server.orders
        return not self.starting.done() or self.users > 0 or orders > 0


class ForkServers:
    """The fork servers of a daemon, one for each of the surroundings that workers were last started with.

    Args:
        most: as many are kept; 0: every worker is started anew
        boot: returns for an interpreter boot.py, the folder of pytriton, the control endpoint
        kill_on_death: see there
        start_s: what an interpreter may take to start
    """

    def __init__(
        self,
        most: int,
        boot: Callable[[str], list[str]],
        kill_on_death: KillOnDeath,
        start_s: float = 60.0,
    ) -> None:
        self.most = most
        self._start_s = start_s
        self._boot = boot
        self._kill_on_death = kill_on_death
        #: The last used at the end.
        self._servers: dict[Surroundings, _Kept] = {}
        self._unfit_until: dict[Surroundings, float] = {}
        self._ending: set[asyncio.Task[object]] = set()
        self._held = False

    @property
    def settled(self) -> bool:
        """Whether none is being ended, and none is there while none is to be."""
        return not self._ending and not (self._held and self._servers)

    async def hold(self) -> None:
        """Have none until `release`, and end all of them."""
        self._held = True
        for around, kept in list(self._servers.items()):
            self._drop(around, kept)
        while self._ending:
            await asyncio.wait(self._ending)

    def release(self) -> None:
        """Have some for workers that are started from now on."""
        self._held = False

    async def start(
        self,
        around: Surroundings,
        worker: str,
        variables: Mapping[str, str],
        *,
        cwd: str | None,
        gauge: int,
        on_line: OnLine,
    ) -> Child | None:
        """Return a new worker; None where it has to be started without a fork server.

        Args:
            around: what it has in common with others
            worker: its name
            variables: of its environment, that it has beside those
            cwd: its folder
            gauge: the descriptor of its page
            on_line: takes the lines that it prints

        Raises:
            OSError: its folder cannot be used.
        """
        order = Order(worker, cwd, dict(variables))
        until = asyncio.get_running_loop().time() + self._start_s
        try:
            try:
                return await self._made(around, order, gauge, on_line, until)
            except (Stale, Ended) as why:  # another one is of use
                _log.debug("another fork server is of use", reason=str(why))
                return await self._made(around, order, gauge, on_line, until)
        except Stale:  # nobody's fault: somebody changes it, or needs its place
            return None
        except Unfit as why:
            self._is_unfit(around, str(why))
            return None

    async def _made(
        self, around: Surroundings, order: Order, gauge: int, on_line: OnLine, until: float
    ) -> Child | None:
        """Return a fork; None where there can be none, or not before `until`."""
        kept = self._kept(around)
        if kept is None:
            return None
        kept.users += 1
        try:
            left_s = until - asyncio.get_running_loop().time()
            await asyncio.wait([kept.starting], timeout=max(0.0, left_s))
            if kept.starting.cancelled():
                raise Stale("it has been ended")
            if not kept.starting.done() or kept.starting.exception() is not None:
                return None
            assert kept.server is not None  # it has started
            self._use(around, kept)
            return await self._forked(kept.server, order, gauge, on_line)
        except Unfit:
            self._drop(around, kept)
            raise
        finally:
            kept.users -= 1

    def _kept(self, around: Surroundings) -> _Kept | None:
        """Return the one for these surroundings, which may have to start; None where there can be none."""
        now = asyncio.get_running_loop().time()
        if self._held or not self.most or self._unfit_until.get(around, now) > now:
            return None
        kept = self._servers.pop(around, None)
        if kept is None:
            if len(self._servers) >= self.most and not self._drop_unused():
                return None
            kept = _Kept()
            kept.starting = asyncio.ensure_future(self._start(around, kept))
            kept.starting.add_done_callback(lambda _: self._has_started(around, kept))
        self._servers[around] = kept
        return kept

    async def _start(self, around: Surroundings, kept: _Kept) -> None:
        kept.server = await ForkServer.launch(
            around, self._boot(around.python), self._kill_on_death
        )
        await kept.server.begun(self._start_s)

    def _has_started(self, around: Surroundings, kept: _Kept) -> None:
        if kept.starting.cancelled():
            return
        error = kept.starting.exception()
        if error is not None:
            self._is_unfit(around, str(error))
            self._drop(around, kept)
        elif kept.server is not None:
            kept.server.child.exited.add_done_callback(lambda _: self._drop(around, kept))
            self._use(around, kept)

    def _use(self, around: Surroundings, kept: _Kept) -> None:
        assert kept.server is not None
        kept.server.when_idle(lambda: self._drop(around, kept))

    def _drop_unused(self) -> bool:
        """Make room for another one; return whether there is some: all may be needed, or start."""
        for around, kept in self._servers.items():
            if not kept.is_used:
                self._drop(around, kept)
                return True
        return False

    async def _forked(self, server: ForkServer, order: Order, gauge: int, on_line: OnLine) -> Child:
        making = asyncio.ensure_future(self._fork(server, order, gauge, on_line))
        try:
            child, waits = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._see_to(_discard(making))  # it is nobody's
            raise
        # Nothing is awaited until the worker is known by its name: only then may it say hello.
        with waits, contextlib.suppress(OSError):  # it has ended, which is seen elsewhere
            waits.send(GO)
        return child

    async def _fork(
        self, server: ForkServer, order: Order, gauge: int, on_line: OnLine
    ) -> tuple[Child, socket.socket]:
        with contextlib.ExitStack() as given, contextlib.ExitStack() as ours:
            gauge = os.dup(gauge)  # who asked may give up meanwhile, and closes its own
            given.callback(os.close, gauge)
            reader, writer = os.pipe()
            given.callback(os.close, writer)
            pipe = ours.enter_context(os.fdopen(reader, "rb", buffering=0))
            pid, waits = await server.fork(order, writer, gauge)
            ours.enter_context(waits)
            try:
                child = Child(pid, pipe, on_line, self._kill_on_death)
            except BaseException:
                put_away(pid)
                raise
            ours.pop_all()
            return child, waits

    def _is_unfit(self, around: Surroundings, why: str) -> None:
        """Start workers of these surroundings without a fork server for a while."""
        now = asyncio.get_running_loop().time()
        if self._unfit_until.get(around, now) <= now:
            _log.info("workers are started without a fork server", python=around.python, reason=why)
        self._unfit_until = {one: until for one, until in self._unfit_until.items() if until > now}
        self._unfit_until[around] = now + _UNFIT_S

    def _drop(self, around: Surroundings, kept: _Kept) -> None:
        """Have this one no more; somebody may have put another one in its place."""
        if self._servers.get(around) is kept:
            del self._servers[around]
            self._see_to(_end(kept))

    def _see_to(self, ending: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _end(kept: _Kept) -> None:
    kept.starting.cancel()
    await asyncio.wait([kept.starting])
    if kept.server is not None:
        await kept.server.end()


async def _discard(making: asyncio.Task[tuple[Child, socket.socket]]) -> None:
    try:
        child, waits = await making
    except (Unfit, OSError):
        return
    waits.close()
    await child.stop(0)


def boot_arguments(library: Path, endpoint: str, python: str) -> list[str]:
    """Return what follows the interpreter `python` in the command of a worker, and of a fork server."""
    library = library_of(library, python)
    return [str(library / "pytriton" / "worker" / "boot.py"), str(library), endpoint]
