"""Fork servers: processes that have imported what workers of one environment import, and fork for each worker.

An interpreter's start and the imports take 0.3 s of CPU time, a fork some hundredths of that. What is forked is a child
of the dispatcher's like one that it has started itself (pytriton/ipc/forking.py, worker/fork_server.py). Wherever a
fork server cannot be had, or does not do what it should, a worker is started as without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import msgspec
import structlog

from pytriton.dispatcher.base.child import Child, OnLine, describe_exit
from pytriton.dispatcher.base.kill_on_death import KillOnDeath
from pytriton.ipc.forking import BEGUN, FAILED, FORKED, FORKS, GO, LARGEST, REFUSED, STALE, Order

_log = structlog.get_logger(__name__)

#: What a fork may take.
_FORK_S = 20.0
#: Orders that one is given at once: the kernel keeps some hundred for it, and refuses more.
_ORDERS = 16
#: How long one is kept that nobody needs.
_IDLE_S = 600.0
#: How long an environment is started without one, after one of it has failed.
_UNFIT_S = 60.0


@dataclass(frozen=True)
class Surroundings:
    """All that decides what an interpreter is like at its start: workers that agree in it may be forks of one."""

    python: str
    cwd: Optional[str]
    env: frozenset[tuple[str, str]]


class Unfit(Exception):
    """A fork server that is of no use; says why."""


class Stale(Unfit):
    """One whose environment has changed, or that has ended: another one is of use."""


class ForkServer:
    """One process.

    Args:
        child: the process
        channel: takes orders
    """

    def __init__(self, child: Child, channel: socket.socket) -> None:
        self.child = child
        self._channel = channel
        self._timer: asyncio.TimerHandle | None = None
        self._turns = asyncio.Semaphore(_ORDERS)

    @classmethod
    async def start(
        cls, around: Surroundings, boot: list[str], kill_on_death: KillOnDeath, limit_s: float
    ) -> ForkServer:
        """Return one that has imported everything.

        Args:
            around: with what it is started
            boot: boot.py, the folder of pytriton, the control endpoint
            kill_on_death: see there
            limit_s: what it may take

        Raises:
            Unfit: it cannot be forked.
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                child = await Child.start(
                    [around.python, *boot, FORKS, str(os.getpid()), str(theirs.fileno())],
                    env=dict(around.env),
                    cwd=around.cwd,
                    on_line=_log_line,
                    kill_on_death=kill_on_death,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        server = cls(child, ours)
        try:
            said = await _received(ours, limit_s)
        except BaseException:
            await server.end()
            raise
        if said != BEGUN:
            await server.end()
            how = describe_exit(child.exited.result())
            raise Unfit(said[len(REFUSED) :].decode(errors="replace") or f"it {how}")
        return server

    def when_idle(self, act: Callable[[], None]) -> None:
        """Do something once nobody has used it for a while from now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_IDLE_S, act)

    async def fork(self, order: Order, output: int, gauge: int) -> tuple[int, socket.socket]:
        """Return the pid of a new worker, and the connection on which it waits for GO; it ends without.

        Raises:
            Stale: another fork server is of use.
            Unfit: the system does not let it fork.
            OSError: the worker cannot go to its folder.
        """
        async with self._turns:
            return await self._fork(order, output, gauge)

    async def _fork(self, order: Order, output: int, gauge: int) -> tuple[int, socket.socket]:
        if self.child.exited.done():
            raise Stale(f"it {describe_exit(self.child.exited.result())}")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                try:
                    descriptors = [output, gauge, theirs.fileno()]
                    socket.send_fds(self._channel, [msgspec.msgpack.encode(order)], descriptors)
                except OSError as error:
                    raise Stale(f"it takes no order: {error.strerror}") from None
            return await self._pid(order, ours), ours
        except BaseException:
            ours.close()
            raise

    async def _pid(self, order: Order, said: socket.socket) -> int:
        """Return whom the fork server and the worker say that they have made, and are."""
        pid, words = 0, 0
        while words < 2:
            try:
                word = await _received(said, _FORK_S)
            except Unfit:
                if pid:  # a worker that takes its time: its supervisor sees to it
                    break
                self.child.signal_group(
                    signal.SIGKILL
                )  # what it has made and said until now counts
                continue
            words += 1
            if not word:  # both have closed it: one of them has ended
                break
            pid = _pid_in(word, order) or pid
        if not pid:
            raise Stale("it has ended, or hangs")
        return pid

    async def end(self) -> None:
        """End the process. Workers that it has made are none of its own."""
        if self._timer is not None:
            self._timer.cancel()
        self._channel.close()
        await self.child.stop(0)


class ForkServers:
    """The fork servers of a daemon, one for each of the surroundings that workers were last started with.

    Args:
        most: as many are kept; 0: every worker is started anew
        boot: boot.py, the folder of pytriton, the control endpoint
        kill_on_death: see there
        start_s: what an interpreter may take to start
    """

    def __init__(
        self, most: int, boot: list[str], kill_on_death: KillOnDeath, start_s: float = 60.0
    ) -> None:
        self.most = most
        self._start_s = start_s
        self._boot = boot
        self._kill_on_death = kill_on_death
        #: The last used at the end.
        self._servers: dict[Surroundings, asyncio.Task[ForkServer]] = {}
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
        for around in list(self._servers):
            self._drop(around)
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
        gauge: int,
        on_line: OnLine,
    ) -> Child | None:
        """Return a new worker; None where it has to be started without a fork server.

        Args:
            around: what it has in common with others
            worker: its name
            variables: of its environment, that it has beside those
            gauge: the descriptor of its page
            on_line: takes the lines that it prints

        Raises:
            OSError: its folder cannot be used.
        """
        order = Order(worker, around.cwd, dict(variables))
        try:
            try:
                return await self._made(around, order, gauge, on_line)
            except Stale as why:  # another one is of use
                _log.debug("another fork server is started", reason=str(why))
                self._drop(around)
                return await self._made(around, order, gauge, on_line)
        except Unfit as why:
            self._is_unfit(around, str(why))
            return None

    async def _made(
        self, around: Surroundings, order: Order, gauge: int, on_line: OnLine
    ) -> Child | None:
        server = await self._server(around)
        return None if server is None else await self._forked(server, order, gauge, on_line)

    async def _server(self, around: Surroundings) -> ForkServer | None:
        """Return the one for these surroundings, which may have to start; None where there can be none."""
        now = asyncio.get_running_loop().time()
        if self._held or not self.most or self._unfit_until.get(around, now) > now:
            return None
        starting = self._servers.pop(around, None)
        if starting is None:
            starting = asyncio.ensure_future(
                ForkServer.start(around, self._boot, self._kill_on_death, self._start_s)
            )
        self._servers[around] = starting
        while len(self._servers) > self.most:
            self._drop(next(iter(self._servers)))
        try:
            server = await asyncio.shield(starting)
        except OSError as error:  # the worker's own start tells
            raise Unfit(str(error)) from None
        if self._servers.get(around) is starting:
            server.when_idle(lambda: self._drop(around))
        return server

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
        gauge = os.dup(gauge)  # who asked may give up meanwhile, and closes its own
        reader, writer = os.pipe()
        try:
            pid, waits = await server.fork(order, writer, gauge)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
            os.close(gauge)
        pipe = os.fdopen(reader, "rb", buffering=0)
        return Child(pid, pipe, on_line, self._kill_on_death), waits

    def _is_unfit(self, around: Surroundings, why: str) -> None:
        """Start workers of these surroundings without a fork server for a while."""
        now = asyncio.get_running_loop().time()
        if self._unfit_until.get(around, now) <= now:
            _log.info("workers are started without a fork server", python=around.python, reason=why)
        self._unfit_until = {one: until for one, until in self._unfit_until.items() if until > now}
        self._unfit_until[around] = now + _UNFIT_S
        self._drop(around)

    def _drop(self, around: Surroundings) -> None:
        starting = self._servers.pop(around, None)
        if starting is not None:
            self._see_to(_end(starting))

    def _see_to(self, ending: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _pid_in(word: bytes, order: Order) -> int:
    """Return the pid in what a fork server or a worker says; raises as `ForkServer.fork`."""
    for kind in (FORKED, BEGUN):
        if word.startswith(kind):
            return int(word[len(kind) :])
    if word.startswith(FAILED):
        number = int(word[len(FAILED) :])
        raise OSError(number, os.strerror(number), order.cwd)
    if word == STALE:
        raise Stale("its environment has changed")
    raise Unfit(word[len(REFUSED) :].decode(errors="replace"))


async def _end(starting: asyncio.Task[ForkServer]) -> None:
    try:
        server = await starting
    except (Unfit, OSError):
        return
    await server.end()


async def _discard(making: asyncio.Task[tuple[Child, socket.socket]]) -> None:
    try:
        child, waits = await making
    except (Unfit, OSError):
        return
    waits.close()
    await child.stop(0)


async def _received(connection: socket.socket, limit_s: float) -> bytes:
    """Return the next words; b"" where nobody is left who could say some.

    Raises:
        Unfit: none came in time.
    """
    receiving = asyncio.get_running_loop().sock_recv(connection, LARGEST)
    try:
        return await asyncio.wait_for(receiving, limit_s)
    except asyncio.TimeoutError:
        raise Unfit(f"it said nothing for {limit_s:g} s") from None
    except ConnectionError:
        return b""


def boot_arguments(library: Path, endpoint: str) -> list[str]:
    """Return what follows the interpreter in the command of a worker, and of a fork server."""
    return [str(library / "pytriton" / "worker" / "boot.py"), str(library), endpoint]


def _log_line(pid: int, line: bytes) -> None:
    _log.debug("a fork server says", pid=pid, line=line.decode(errors="replace"))
