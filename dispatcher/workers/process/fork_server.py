"""One fork server, as the dispatcher has it: told what to fork, and ended without harm to what it has just forked.

A fork is in the fork server's process group until it has a session of its own. So whoever ends the fork server signals
it alone. The group follows once no order is under way: then each fork has told its pid from a group of its own, or has
been ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Optional

import msgspec
import structlog

from pytriton._protocol.fork_protocol import BEGUN, FORKS, LARGEST, Answer, Order
from pytriton.dispatcher.runtime.child import Child, describe_exit, put_away
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath

_log = structlog.get_logger(__name__)

#: What a fork may take, and then the worker to begin.
_FORK_S = 20.0
#: Orders that one is given at once: the kernel keeps some hundred for it, and refuses more.
_ORDERS = 16
#: How long one is kept that nobody needs.
_IDLE_S = 600.0


#: Variables with folders and files that an interpreter looks into at its start, where a colon or a space ends each.
_PATHS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH")
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")
#: Where an interpreter starts to which the folder of its workers means nothing; it never goes away.
_ANYWHERE = "/"


@dataclass(frozen=True)
class Surroundings:
    """All that decides what an interpreter is like at its start: workers that agree in it may be forks of one."""

    python: str
    cwd: Optional[str]
    env: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, python: str, cwd: str | None, env: Mapping[str, str]) -> Surroundings:
        """Return those of a worker. Each goes to its own folder, which counts only if its interpreter looks into it."""
        matters = cwd is None or _looks_into_its_folder(python, env)
        return cls(python, cwd if matters else _ANYWHERE, frozenset(env.items()))


def _looks_into_its_folder(python: str, env: Mapping[str, str]) -> bool:
    """Whether a path is relative, among those that an interpreter looks into when it starts."""
    paths = [python]
    for name in _PATHS:
        paths += env[name].split(":") if env.get(name) else ()
    for name in _PRELOADED:  # a library without a folder is looked for in those of the system
        paths += [one for one in re.split("[: ]", env.get(name, "")) if "/" in one]
    return not all(map(os.path.isabs, paths))


class Unfit(Exception):
    """A fork server that is of no use; says why."""


class Stale(Unfit):
    """One whose environment has changed, or that has been ended: another one is of use."""


class Ended(Unfit):
    """One that has ended by itself, or hung: another one is of use, unless that does so, too."""


class ForkServer:
    """One process.

    Args:
        child: the process
        channel: takes orders, and says what came of each, in their order

    Attributes:
        orders: how many are under way
    """

    def __init__(self, child: Child, channel: socket.socket) -> None:
        self.child = child
        self.orders = 0
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._turns = asyncio.Semaphore(_ORDERS)
        self._unused = asyncio.Event()
        self._unused.set()
        self._is_ending = False
        #: Of those that have not come; None stands for one that never will.
        self._answers: deque[asyncio.Future[Answer | None]] = deque()
        self._begun = self._expect()
        self._loop.add_reader(channel.fileno(), self._hear)
        child.exited.add_done_callback(lambda _: self._hear_no_more())

    @classmethod
    async def launch(
        cls, around: Surroundings, boot: list[str], kill_on_death: KillOnDeath
    ) -> ForkServer:
        """Return one that starts; `begun` and, at last, `end` follow.

        Args:
            around: with what it is started
            boot: boot.py, the folder of pytriton, the control endpoint
            kill_on_death: see there

        Raises:
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
        return cls(child, ours)

    async def begun(self, limit_s: float) -> None:
        """Return when it has imported everything.

        Raises:
            Unfit: it cannot be forked, or did not say so in time.
        """
        await asyncio.wait([self._begun], timeout=limit_s)
        if not self._begun.done():
            raise Unfit(f"it said nothing for {limit_s:g} s")
        said = self._begun.result()
        if said is None:
            raise Unfit(f"it {describe_exit(self.child.exited.result())}")
        if not said.pid:
            raise Unfit(said.refused)

    def when_idle(self, act: Callable[[], None]) -> None:
        """Do something once nobody has used it for a while from now."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_ending:
            self._timer = self._loop.call_later(_IDLE_S, act)

    async def fork(self, order: Order, output: int, gauge: int) -> tuple[int, socket.socket]:
        """Return the pid of a new worker, and the connection on which it waits for GO; it ends without.

        Raises:
            Stale, Ended: another fork server is of use.
            Unfit: the system does not let it fork.
            OSError: the worker cannot go to its folder.
        """
        async with self._turns:
            if self._is_ending or self.child.exited.done():
                raise self._gone()
            self.orders += 1
            self._unused.clear()
            try:
                return await self._fork(order, output, gauge)
            finally:
                self.orders -= 1
                if not self.orders:
                    self._unused.set()

    async def end(self) -> None:
        """End the process. Workers that it has made, and those that it makes, are none of its own."""
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._kill()
        await asyncio.wait([self.child.exited])
        await self._unused.wait()
        self._channel.close()
        await self.child.stop(0)  # what a start-up file has started
        await _reap_strays(self.child.pid)

    async def _fork(self, order: Order, output: int, gauge: int) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                try:
                    descriptors = [output, gauge, theirs.fileno()]
                    socket.send_fds(self._channel, [msgspec.msgpack.encode(order)], descriptors)
                except OSError as error:
                    raise Ended(f"it takes no order: {error.strerror}") from None
            return await self._pid(order, self._expect(), ours), ours
        except BaseException:
            ours.close()
            raise

    async def _pid(
        self, order: Order, answer: asyncio.Future[Answer | None], worker: socket.socket
    ) -> int:
        """Return whom the fork server says that it has forked, once that is a worker."""
        await asyncio.wait([answer], timeout=_FORK_S)
        if not answer.done():
            self._kill()  # who has ended says no more: then it is done
            await asyncio.wait([answer], timeout=_FORK_S)
        told = answer.result() if answer.done() else None
        pid = 0 if told is None else _child(_pid_in(told, order))
        word = b""
        try:
            word = await _received(worker, _FORK_S)  # a fork goes on without its fork server
        finally:
            if pid and not word:
                put_away(pid)
        if not word:
            raise self._gone() if told is None else Ended("what it forks ends at once")
        return pid or _child(word[len(BEGUN) :])

    def _gone(self) -> Unfit:
        """Return why it takes no orders."""
        if self._is_ending:
            return Stale("it has been ended")
        exited = self.child.exited
        return Ended(f"it {describe_exit(exited.result())}" if exited.done() else "it hangs")

    def _kill(self) -> None:
        if not self.child.exited.done():  # not waited for yet, so the number is its own
            os.kill(self.child.pid, signal.SIGKILL)

    # ── what it says ─────────────────────────────────────────────────────────────────────────────

    def _expect(self) -> asyncio.Future[Answer | None]:
        answer: asyncio.Future[Answer | None] = self._loop.create_future()
        self._answers.append(answer)
        return answer

    def _hear(self) -> None:
        """Take the answers that have come."""
        try:
            while data := self._next():
                answer = msgspec.msgpack.decode(data, type=Answer)
                waits = self._answers.popleft()
                if not waits.done():
                    waits.set_result(answer)
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError, IndexError) as error:
            _log.error("a fork server says what it should not", reason=str(error))
        self._loop.remove_reader(self._channel.fileno())
        self._kill()

    def _next(self) -> bytes:
        """Return what it says next; b"" at its end."""
        try:
            return self._channel.recv(LARGEST)
        except ConnectionResetError:  # it has left orders unread; what it has said follows
            return self._channel.recv(LARGEST)

    def _hear_no_more(self) -> None:
        """Take what it said before it ended as all that it says."""
        self._hear()
        for waits in self._answers:
            if not waits.done():
                waits.set_result(None)
        self._loop.remove_reader(self._channel.fileno())


def _pid_in(answer: Answer, order: Order) -> int:
    """Return the pid that an answer has; raises as `ForkServer.fork`."""
    if answer.is_stale:
        raise Stale("its environment has changed")
    if answer.error:
        raise OSError(answer.error, os.strerror(answer.error), order.cwd)
    if not answer.pid:
        raise Unfit(answer.refused)
    return answer.pid


def _child(number: int | bytes) -> int:
    """Return the pid that a number is; raises Unfit: it is none of a child of this process."""
    try:
        pid = int(number)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ValueError, OverflowError, OSError):
        raise Unfit(f"it names a process that is none of ours: {number!r}") from None
    return pid


async def _received(connection: socket.socket, limit_s: float) -> bytes:
    """Return the next words; b"" where nobody is left who could say some.

    Raises:
        Unfit: none came in time.
    """
    receiving = asyncio.get_running_loop().sock_recv(connection, LARGEST)
    try:
        return await asyncio.wait_for(receiving, limit_s)
    except asyncio.TimeoutError:
        raise Unfit(f"what it forks said nothing for {limit_s:g} s") from None
    except ConnectionError:
        return b""


async def _reap_strays(group: int) -> None:
    """Wait for forks that have ended before anybody told their pids; they are children of this process's."""
    with contextlib.suppress(ChildProcessError):  # there is none, or no other
        while True:
            if os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is None:  # it dies of SIGKILL
                await asyncio.to_thread(os.waitid, os.P_PGID, group, os.WEXITED)


def _log_line(pid: int, line: bytes) -> None:
    _log.debug("a fork server says", pid=pid, line=line.decode(errors="replace"))
