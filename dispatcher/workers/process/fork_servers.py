"""Fork servers: processes that have imported the modules of a worker, and fork a worker on request.

The start of an interpreter with its imports takes 0.3 s of CPU time; a fork takes a few hundredths of that. A forked
worker is a child of the dispatcher like one that it has started itself (_protocol/fork_protocol.py,
worker/fork_server.py). If a fork server is not available or fails, the worker starts as a new interpreter.
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
    InterpreterSetup,
    Stale,
    Unfit,
)

_log = structlog.get_logger(__name__)

#: How long workers of an environment start without a fork server after one has failed.
_UNFIT_S = 60.0


class _KeptServer:
    """A fork server that is starting or has started.

    Attributes:
        server: The process, once it exists.
        starting: Done when the server accepts orders.
        users: Number of worker starts that use it.
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
    """The fork servers of a daemon, one for each of the most recently used surroundings.

    Args:
        most: Maximum number of fork servers; 0 starts every worker as a new interpreter.
        boot: Returns boot.py, the directory of pytriton and the control endpoint for an interpreter.
        kill_on_death: Kills the processes if the daemon is killed.
        start_s: Time limit for the start of an interpreter, in seconds.
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
        #: Ordered by use, the most recently used last.
        self._servers: dict[InterpreterSetup, _KeptServer] = {}
        self._unfit_until: dict[InterpreterSetup, float] = {}
        self._ending: set[asyncio.Task[object]] = set()
        self._held = False

    @property
    def is_quiescent(self) -> bool:
        """Whether no fork server is being stopped, and, while held, none is left."""
        return not self._ending and not (self._held and self._servers)

    async def hold(self) -> None:
        """Stop all fork servers, and start none until `release`."""
        self._held = True
        for around, kept in list(self._servers.items()):
            self._drop(around, kept)
        while self._ending:
            await asyncio.wait(self._ending)

    def release(self) -> None:
        """Use fork servers for workers that are started from now on."""
        self._held = False

    async def start(
        self,
        around: InterpreterSetup,
        worker: str,
        variables: Mapping[str, str],
        *,
        cwd: str | None,
        stats: int,
        on_line: OnLine,
    ) -> Child | None:
        """Fork a new worker and return it, or None if it must start without a fork server.

        Args:
            around: The surroundings that it shares with other workers.
            worker: Its name.
            variables: Additional environment variables of its own.
            cwd: Its working directory.
            stats: File descriptor of its gauge page.
            on_line: Receives the lines that it prints.

        Raises:
            OSError: Its working directory cannot be used.
        """
        order = Order(worker, cwd, dict(variables))
        until = asyncio.get_running_loop().time() + self._start_s
        try:
            try:
                return await self._made(around, order, stats, on_line, until)
            except (Stale, Ended) as why:  # a new fork server may work
                _log.debug("retrying with another fork server", reason=str(why))
                return await self._made(around, order, stats, on_line, until)
        except Stale:  # not a failure: its environment changed again, or its place was needed
            return None
        except Unfit as why:
            self._is_unfit(around, str(why))
            return None

    async def _made(
        self, around: InterpreterSetup, order: Order, stats: int, on_line: OnLine, until: float
    ) -> Child | None:
        """Return a forked worker, or None if no fork server is available before `until`."""
        kept = self._kept(around)
        if kept is None:
            return None
        kept.users += 1
        try:
            left_s = until - asyncio.get_running_loop().time()
            await asyncio.wait([kept.starting], timeout=max(0.0, left_s))
            if kept.starting.cancelled():
                raise Stale("it has been stopped")
            if not kept.starting.done() or kept.starting.exception() is not None:
                return None
            assert kept.server is not None  # it has started
            self._use(around, kept)
            return await self._forked(kept.server, order, stats, on_line)
        except Unfit:
            self._drop(around, kept)
            raise
        finally:
            kept.users -= 1

    def _kept(self, around: InterpreterSetup) -> _KeptServer | None:
        """Return the fork server for these surroundings, starting it if needed, or None if it is not allowed."""
        now = asyncio.get_running_loop().time()
        if self._held or not self.most or self._unfit_until.get(around, now) > now:
            return None
        kept = self._servers.pop(around, None)
        if kept is None:
            if len(self._servers) >= self.most and not self._drop_unused():
                return None
            kept = _KeptServer()
            kept.starting = asyncio.ensure_future(self._start(around, kept))
            kept.starting.add_done_callback(lambda _: self._has_started(around, kept))
        self._servers[around] = kept
        return kept

    async def _start(self, around: InterpreterSetup, kept: _KeptServer) -> None:
        kept.server = await ForkServer.launch(
            around, self._boot(around.python), self._kill_on_death
        )
        await kept.server.begun(self._start_s)

    def _has_started(self, around: InterpreterSetup, kept: _KeptServer) -> None:
        if kept.starting.cancelled():
            return
        error = kept.starting.exception()
        if error is not None:
            self._is_unfit(around, str(error))
            self._drop(around, kept)
        elif kept.server is not None:
            kept.server.child.exited.add_done_callback(lambda _: self._drop(around, kept))
            self._use(around, kept)

    def _use(self, around: InterpreterSetup, kept: _KeptServer) -> None:
        assert kept.server is not None
        kept.server.when_idle(lambda: self._drop(around, kept))

    def _drop_unused(self) -> bool:
        """Stop the least recently used fork server that is not in use. Return False if all are in use or starting."""
        for around, kept in self._servers.items():
            if not kept.is_used:
                self._drop(around, kept)
                return True
        return False

    async def _forked(self, server: ForkServer, order: Order, stats: int, on_line: OnLine) -> Child:
        making = asyncio.ensure_future(self._fork(server, order, stats, on_line))
        try:
            child, waits = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._see_to(_discard(making))  # no caller wants the worker any more
            raise
        # Do not await from here on until the worker is registered by name: it may say hello only then.
        with (
            waits,
            contextlib.suppress(OSError),
        ):  # the worker has exited, which is detected elsewhere
            waits.send(GO)
        return child

    async def _fork(
        self, server: ForkServer, order: Order, stats: int, on_line: OnLine
    ) -> tuple[Child, socket.socket]:
        with contextlib.ExitStack() as given, contextlib.ExitStack() as ours:
            stats = os.dup(stats)  # the caller may be cancelled and close its descriptor
            given.callback(os.close, stats)
            reader, writer = os.pipe()
            given.callback(os.close, writer)
            pipe = ours.enter_context(os.fdopen(reader, "rb", buffering=0))
            pid, waits = await server.fork(order, writer, stats)
            ours.enter_context(waits)
            try:
                child = Child(pid, pipe, on_line, self._kill_on_death)
            except BaseException:
                put_away(pid)
                raise
            ours.pop_all()
            return child, waits

    def _is_unfit(self, around: InterpreterSetup, why: str) -> None:
        """Start workers of these surroundings without a fork server for a while."""
        now = asyncio.get_running_loop().time()
        if self._unfit_until.get(around, now) <= now:
            _log.info("starting workers without a fork server", python=around.python, reason=why)
        self._unfit_until = {one: until for one, until in self._unfit_until.items() if until > now}
        self._unfit_until[around] = now + _UNFIT_S

    def _drop(self, around: InterpreterSetup, kept: _KeptServer) -> None:
        """Remove and stop this fork server, unless it has been replaced already."""
        if self._servers.get(around) is kept:
            del self._servers[around]
            self._see_to(_end(kept))

    def _see_to(self, ending: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _end(kept: _KeptServer) -> None:
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
    """Return the arguments of the interpreter `python` that start a worker or a fork server."""
    library = library_of(library, python)
    return [str(library / "pytriton" / "worker" / "boot.py"), str(library), endpoint]
