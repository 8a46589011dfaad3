"""Fork servers: processes that have imported a worker's modules and fork workers on request.

The start of an interpreter with its imports takes 0.3 s of CPU time; a fork takes a few hundredths of that. A forked
worker is a child of the dispatcher, as is a worker that starts as a new interpreter. `ForkServers` keeps one server
for each of the most recently used interpreter setups. If none can be used, the worker starts as a new interpreter. The
protocol is in _protocol/fork_protocol.py; worker/fork_server.py is the other end.

A forked process is in the fork server's process group until it creates its own session. So stopping a fork server
first signals only its own process. The rest of its group is killed once no order is pending: by then, each fork has
reported its pid from its own group or has been killed.
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

from pytriton._protocol.fork_protocol import BEGUN, FORKS, GO, LARGEST, ForkAnswer, Order
from pytriton.dispatcher.runtime.child import Child, OnLine, describe_exit, kill_and_reap
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.tasks import run_in_background

_log = structlog.get_logger(__name__)

#: How long workers of a setup start as new interpreters after its fork server has failed.
_UNFIT_S = 60.0
#: Time limit for a fork, and again for the forked worker's first message.
_FORK_TIMEOUT_S = 20.0
#: Maximum number of pending orders. The kernel buffers about a hundred and refuses more.
_MAX_ORDERS = 16
#: How long an unused fork server is kept.
_IDLE_S = 600.0
#: Variables with paths that an interpreter reads at its start, separated by colons.
_PATHS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH")
#: Variables with libraries that the dynamic linker loads, separated by colons or spaces.
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")
#: Working directory of a fork server that does not depend on its workers' directory. It always exists.
_ANYWHERE = "/"


@dataclass(frozen=True)
class InterpreterSetup:
    """Interpreter, directory and environment of a worker. Workers with the same setup can share a fork server."""

    python: str
    cwd: Optional[str]
    env: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, python: str, cwd: str | None, env: Mapping[str, str]) -> InterpreterSetup:
        """Return a worker's setup. It includes the working directory only if the interpreter reads from that directory.

        Each fork changes to its worker's directory anyway.
        """
        matters = cwd is None or _depends_on_cwd(python, env)
        return cls(python, cwd if matters else _ANYWHERE, frozenset(env.items()))


def _depends_on_cwd(python: str, env: Mapping[str, str]) -> bool:
    """Return whether an interpreter reads any relative path when it starts."""
    paths = [python]
    for name in _PATHS:
        paths += env[name].split(":") if env.get(name) else ()
    for name in _PRELOADED:
        # A library name without a slash is searched in the system's directories.
        paths += [one for one in re.split("[: ]", env.get(name, "")) if "/" in one]
    return not all(map(os.path.isabs, paths))


class Unfit(Exception):
    """A fork server cannot be used. The text states the reason."""


class Stale(Unfit):
    """A fork server is stopped or has an outdated environment. A new one can be used."""


class Ended(Unfit):
    """A fork server has exited or hangs. A new one may work."""


class _Entry:
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
    """The fork servers of a daemon, one for each of the most recently used interpreter setups.

    Args:
        max_servers: Maximum number of fork servers; 0 starts every worker as a new interpreter.
        boot: Returns boot.py, the directory of pytriton and the control endpoint for an interpreter.
        kill_on_death: Kills the processes if the daemon is killed.
        start_s: Time limit for the start of an interpreter, in seconds.
    """

    def __init__(
        self,
        max_servers: int,
        boot: Callable[[str], list[str]],
        kill_on_death: KillOnDeath,
        start_s: float = 60.0,
    ) -> None:
        self.max_servers = max_servers
        self._start_s = start_s
        self._boot = boot
        self._kill_on_death = kill_on_death
        #: Ordered by use, the most recently used last.
        self._servers: dict[InterpreterSetup, _Entry] = {}
        self._unfit_until: dict[InterpreterSetup, float] = {}
        self._ending: set[asyncio.Task[object]] = set()
        self._held = False

    @property
    def is_quiescent(self) -> bool:
        """Whether no fork server is being stopped or, between `hold` and `release`, still running."""
        return not self._ending and not (self._held and self._servers)

    async def hold(self) -> None:
        """Stop all fork servers. Start none until `release` is called."""
        self._held = True
        for setup, entry in list(self._servers.items()):
            self._drop(setup, entry)
        while self._ending:
            await asyncio.wait(self._ending)

    def release(self) -> None:
        """Allow fork servers again after `hold`."""
        self._held = False

    async def start(
        self,
        setup: InterpreterSetup,
        worker: str,
        variables: Mapping[str, str],
        *,
        cwd: str | None,
        stats: int,
        on_line: OnLine,
    ) -> Child | None:
        """Fork a new worker and return it, or None if it must start without a fork server.

        Args:
            setup: The worker's interpreter setup.
            worker: Its name.
            variables: Environment variables of this worker, in addition to those of the setup.
            cwd: Its working directory.
            stats: File descriptor of its statistics page.
            on_line: Receives the lines that the worker prints.

        Raises:
            OSError: Its working directory cannot be used.
        """
        order = Order(worker, cwd, dict(variables))
        deadline = asyncio.get_running_loop().time() + self._start_s
        try:
            try:
                return await self._try_fork(setup, order, stats, on_line, deadline)
            except (Stale, Ended) as why:  # a new fork server may work
                _log.debug("retrying with another fork server", reason=str(why))
                return await self._try_fork(setup, order, stats, on_line, deadline)
        except (
            Stale
        ):  # not a failure: its environment changed again, or another one needed its slot
            return None
        except Unfit as why:
            self._mark_unfit(setup, str(why))
            return None

    async def _try_fork(
        self, setup: InterpreterSetup, order: Order, stats: int, on_line: OnLine, deadline: float
    ) -> Child | None:
        """Return a forked worker, or None if no fork server is available before `deadline`."""
        entry = self._entry_for(setup)
        if entry is None:
            return None
        entry.users += 1
        try:
            left_s = deadline - asyncio.get_running_loop().time()
            await asyncio.wait([entry.starting], timeout=max(0.0, left_s))
            if entry.starting.cancelled():
                raise Stale("it has been stopped")
            if not entry.starting.done() or entry.starting.exception() is not None:
                return None
            assert entry.server is not None  # it has started
            self._use(setup, entry)
            return await self._forked(entry.server, order, stats, on_line)
        except Unfit:
            self._drop(setup, entry)
            raise
        finally:
            entry.users -= 1

    def _entry_for(self, setup: InterpreterSetup) -> _Entry | None:
        """Return the fork server for a setup, starting one if needed. Return None if none can be used now."""
        now = asyncio.get_running_loop().time()
        if self._held or not self.max_servers or self._unfit_until.get(setup, now) > now:
            return None
        entry = self._servers.pop(setup, None)
        if entry is None:
            if len(self._servers) >= self.max_servers and not self._drop_unused():
                return None
            entry = _Entry()
            entry.starting = asyncio.ensure_future(self._start(setup, entry))
            entry.starting.add_done_callback(lambda _: self._has_started(setup, entry))
        self._servers[setup] = entry
        return entry

    async def _start(self, setup: InterpreterSetup, entry: _Entry) -> None:
        entry.server = await ForkServer.launch(setup, self._boot(setup.python), self._kill_on_death)
        await entry.server.wait_until_ready(self._start_s)

    def _has_started(self, setup: InterpreterSetup, entry: _Entry) -> None:
        if entry.starting.cancelled():
            return
        error = entry.starting.exception()
        if error is not None:
            self._mark_unfit(setup, str(error))
            self._drop(setup, entry)
        elif entry.server is not None:
            entry.server.child.exited.add_done_callback(lambda _: self._drop(setup, entry))
            self._use(setup, entry)

    def _use(self, setup: InterpreterSetup, entry: _Entry) -> None:
        assert entry.server is not None
        entry.server.when_idle(lambda: self._drop(setup, entry))

    def _drop_unused(self) -> bool:
        """Stop the least recently used idle fork server. Return False if there is none."""
        for setup, entry in self._servers.items():
            if not entry.is_used:
                self._drop(setup, entry)
                return True
        return False

    async def _forked(self, server: ForkServer, order: Order, stats: int, on_line: OnLine) -> Child:
        """Fork a worker and let it run. Stop it if the caller is cancelled."""
        forking = asyncio.ensure_future(self._fork(server, order, stats, on_line))
        try:
            child, connection = await asyncio.shield(forking)
        except asyncio.CancelledError:
            # No caller wants the worker now.
            run_in_background(self._ending, _stop_unwanted(forking))
            raise
        # Do not await from here on until the worker is registered by name: it may say hello only then.
        with connection, contextlib.suppress(OSError):  # an exit is detected elsewhere
            connection.send(GO)
        return child

    async def _fork(
        self, server: ForkServer, order: Order, stats: int, on_line: OnLine
    ) -> tuple[Child, socket.socket]:
        with contextlib.ExitStack() as passed, contextlib.ExitStack() as ours:
            stats = os.dup(stats)  # the caller may be cancelled and close its descriptor
            passed.callback(os.close, stats)
            reader, writer = os.pipe()
            passed.callback(os.close, writer)
            pipe = ours.enter_context(os.fdopen(reader, "rb", buffering=0))
            pid, connection = await server.fork(order, writer, stats)
            ours.enter_context(connection)
            try:
                child = Child(pid, pipe, on_line, self._kill_on_death)
            except BaseException:
                kill_and_reap(pid)
                raise
            ours.pop_all()
            return child, connection

    def _mark_unfit(self, setup: InterpreterSetup, why: str) -> None:
        """For the next `_UNFIT_S` seconds, start workers with this setup in new interpreters."""
        now = asyncio.get_running_loop().time()
        if self._unfit_until.get(setup, now) <= now:
            _log.info("starting workers without a fork server", python=setup.python, reason=why)
        self._unfit_until = {one: until for one, until in self._unfit_until.items() if until > now}
        self._unfit_until[setup] = now + _UNFIT_S

    def _drop(self, setup: InterpreterSetup, entry: _Entry) -> None:
        """Remove and stop a fork server, unless another one has already taken its place."""
        if self._servers.get(setup) is entry:
            del self._servers[setup]
            run_in_background(self._ending, _end(entry))


async def _end(entry: _Entry) -> None:
    entry.starting.cancel()
    await asyncio.wait([entry.starting])
    if entry.server is not None:
        await entry.server.end()


async def _stop_unwanted(forking: asyncio.Task[tuple[Child, socket.socket]]) -> None:
    try:
        child, connection = await forking
    except (Unfit, OSError):
        return
    connection.close()
    await child.stop(0)


# ── One fork server ──────────────────────────────────────────────────────────────────────────────


class ForkServer:
    """The dispatcher's end of one fork server process.

    Args:
        child: The process.
        channel: Socket for orders and their answers, which arrive in the same order.

    Attributes:
        orders: Number of pending orders.
    """

    def __init__(self, child: Child, channel: socket.socket) -> None:
        self.child = child
        self.orders = 0
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._turns = asyncio.Semaphore(_MAX_ORDERS)
        self._unused = asyncio.Event()
        self._unused.set()
        self._is_ending = False
        #: Outstanding answers. None means that the answer will never arrive.
        self._answers: deque[asyncio.Future[ForkAnswer | None]] = deque()
        self._begun = self._expect()
        self._loop.add_reader(channel.fileno(), self._read_answers)
        child.exited.add_done_callback(lambda _: self._on_exit())

    @classmethod
    async def launch(
        cls, setup: InterpreterSetup, boot: list[str], kill_on_death: KillOnDeath
    ) -> ForkServer:
        """Start a fork server. The caller must await `wait_until_ready` before using it, and finally `end`.

        Args:
            setup: The interpreter, directory and environment to start with.
            boot: boot.py, the directory of pytriton, and the control endpoint.
            kill_on_death: Kills the process if the daemon is killed.

        Raises:
            OSError: The process cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                child = await Child.start(
                    [setup.python, *boot, FORKS, str(os.getpid()), str(theirs.fileno())],
                    env=dict(setup.env),
                    cwd=setup.cwd,
                    on_line=_log_line,
                    kill_on_death=kill_on_death,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        return cls(child, ours)

    async def wait_until_ready(self, limit_s: float) -> None:
        """Wait until the fork server has imported all modules.

        Raises:
            Unfit: The process cannot be forked, has exited, or was not ready in time.
        """
        await asyncio.wait([self._begun], timeout=limit_s)
        if not self._begun.done():
            raise Unfit(f"it did not start within {limit_s:g} s")
        answer = self._begun.result()
        if answer is None:
            raise Unfit(f"it {describe_exit(self.child.exited.result())}")
        if not answer.pid:
            raise Unfit(answer.refused)

    def when_idle(self, act: Callable[[], None]) -> None:
        """Call `act` if this server stays unused for the next `_IDLE_S` seconds. Restarts the timer."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_ending:
            self._timer = self._loop.call_later(_IDLE_S, act)

    async def fork(self, order: Order, output: int, stats: int) -> tuple[int, socket.socket]:
        """Fork a worker. Return its pid, and the connection on which it waits for GO. Closing the connection ends the
        worker.

        Raises:
            Stale, Ended: Another fork server may work.
            Unfit: The system does not allow the fork.
            OSError: The worker cannot change to its directory.
        """
        async with self._turns:
            if self._is_ending or self.child.exited.done():
                raise self._gone()
            self.orders += 1
            self._unused.clear()
            try:
                return await self._fork(order, output, stats)
            finally:
                self.orders -= 1
                if not self.orders:
                    self._unused.set()

    async def end(self) -> None:
        """Stop the process. Its forks, including unfinished ones, keep running."""
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._kill()
        await asyncio.wait([self.child.exited])
        await self._unused.wait()
        self._channel.close()
        await self.child.stop(0)  # also kills processes started by a start-up file
        await _reap_strays(self.child.pid)

    async def _fork(self, order: Order, output: int, stats: int) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                try:
                    descriptors = [output, stats, theirs.fileno()]
                    socket.send_fds(self._channel, [msgspec.msgpack.encode(order)], descriptors)
                except OSError as error:
                    raise Ended(f"it is not accepting requests: {error.strerror}") from None
            return await self._pid(order, self._expect(), ours), ours
        except BaseException:
            ours.close()
            raise

    async def _pid(
        self, order: Order, answer: asyncio.Future[ForkAnswer | None], worker: socket.socket
    ) -> int:
        """Return the pid reported by the fork server, once the forked worker is running."""
        await asyncio.wait([answer], timeout=_FORK_TIMEOUT_S)
        if not answer.done():
            self._kill()  # its exit resolves the answer
            await asyncio.wait([answer], timeout=_FORK_TIMEOUT_S)
        reported = answer.result() if answer.done() else None
        pid = 0 if reported is None else _child(_pid_in(reported, order))
        message = b""
        try:
            message = await _received(worker, _FORK_TIMEOUT_S)  # a fork survives its fork server
        finally:
            if pid and not message:
                kill_and_reap(pid)
        if not message:
            raise self._gone() if reported is None else Ended("its forks exit at once")
        return pid or _child(message[len(BEGUN) :])

    def _gone(self) -> Unfit:
        """Return an exception that explains why this server accepts no orders."""
        if self._is_ending:
            return Stale("it has been stopped")
        exited = self.child.exited
        return Ended(f"it {describe_exit(exited.result())}" if exited.done() else "it hangs")

    def _kill(self) -> None:
        if not self.child.exited.done():  # not reaped yet, so the pid cannot have been reused
            os.kill(self.child.pid, signal.SIGKILL)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def _expect(self) -> asyncio.Future[ForkAnswer | None]:
        answer: asyncio.Future[ForkAnswer | None] = self._loop.create_future()
        self._answers.append(answer)
        return answer

    def _read_answers(self) -> None:
        """Resolve the answers that have arrived."""
        try:
            while data := self._next():
                answer = msgspec.msgpack.decode(data, type=ForkAnswer)
                waits = self._answers.popleft()
                if not waits.done():
                    waits.set_result(answer)
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError, IndexError) as error:
            _log.error("unexpected message from fork server", reason=str(error))
        self._loop.remove_reader(self._channel.fileno())
        self._kill()

    def _next(self) -> bytes:
        """Return the next message; b"" at the end of the stream."""
        try:
            return self._channel.recv(LARGEST)
        except ConnectionResetError:  # it left orders unread; messages that it sent follow
            return self._channel.recv(LARGEST)

    def _on_exit(self) -> None:
        """Read the remaining messages of the exited process, and resolve all outstanding answers with None."""
        self._read_answers()
        for waits in self._answers:
            if not waits.done():
                waits.set_result(None)
        self._loop.remove_reader(self._channel.fileno())


def _pid_in(answer: ForkAnswer, order: Order) -> int:
    """Return the pid from an answer. Raises the same exceptions as `ForkServer.fork`."""
    if answer.is_stale:
        raise Stale("its environment has changed")
    if answer.error:
        raise OSError(answer.error, os.strerror(answer.error), order.cwd)
    if not answer.pid:
        raise Unfit(answer.refused)
    return answer.pid


def _child(number: int | bytes) -> int:
    """Convert `number` to a pid; raise Unfit unless it is the pid of one of this process's children."""
    try:
        pid = int(number)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ValueError, OverflowError, OSError):
        raise Unfit(f"it reported a pid that is not a child of the daemon: {number!r}") from None
    return pid


async def _received(connection: socket.socket, limit_s: float) -> bytes:
    """Receive the next message from a forked worker; b"" if the worker has closed the connection.

    Raises:
        Unfit: No message arrived in time.
    """
    receiving = asyncio.get_running_loop().sock_recv(connection, LARGEST)
    try:
        return await asyncio.wait_for(receiving, limit_s)
    except asyncio.TimeoutError:
        raise Unfit(f"its fork did not begin within {limit_s:g} s") from None
    except ConnectionError:
        return b""


async def _reap_strays(group: int) -> None:
    """Reap the forks that exited before their pids were reported. They are children of the dispatcher."""
    with contextlib.suppress(ChildProcessError):  # no more children in this group
        while True:
            if os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is None:  # killed, exits soon
                await asyncio.to_thread(os.waitid, os.P_PGID, group, os.WEXITED)


def _log_line(pid: int, line: bytes) -> None:
    _log.debug("fork server output", pid=pid, line=line.decode(errors="replace"))
