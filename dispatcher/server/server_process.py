"""One tritonserver process: start, readiness, liveness and exit.

`ServerProcess.start` starts a process, `until_ready` waits until it can load models, and `stop` stops it. A pidfd
reports its exit. Once it is ready, liveness probes watch it, and it is killed if it makes no progress, because it is
stopped or deadlocked, or its frontend is stuck. A busy server must not count as hung, so the probes use several
connections, and the server is killed only if no answer at all arrives within `server_probe_timeout_s`::

    interval ──▶ probe on the daemon's own connection ─┬─ any answer ──▶ alive
                 after 1/3 of the timeout, on a new one ┤
                 after 2/3, on another new one          └─ none by the end ──▶ hung

The existing connection works even if the server has no descriptors left for new ones; the new ones work even if that
connection is stuck. Each probe stays open until the end, so late answers count. The three probes start one after the
other, so that a daemon that was itself paused (by a frozen machine) probes again before it decides.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.ancestors import ancestors
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import linux
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import Child, describe_exit
from pytriton.dispatcher.runtime.tasks import until_next_tick
from pytriton.dispatcher.server import admin_token
from pytriton.dispatcher.server.frontend import Admin, Frontend, ServerRefused, Unreached
from pytriton.dispatcher.server.preload_layout import GATE

_log = structlog.get_logger(__name__)

#: Interval of polling until a process is up, in seconds. (Its log shows that only with log-info.)
_READY_INTERVAL_S = 0.02
#: Time for a process without models to exit, in seconds. It only waits for idle connections.
EXIT_GRACE_S = 2.0
#: How long to wait for a process to begin to exit after it has closed its connection, in seconds.
_EXIT_BEGINS_S = 1.0
#: Flag in /proc/PID/stat of a thread that the kernel is ending (linux/sched.h).
_PF_EXITING = 0x4
_MAX_PROBES = 3

#: Signals that indicate a crash, as opposed to a kill.
_FAULTS = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
)

#: Triton's answer to an invalid configuration, and the start of the log line with the cause, printed before it.
_NOT_POLLED = "failed to poll from model repository"
_POLL_FAILED = "Poll failed for model directory '{}': "
#: How long to wait for that log line, in seconds. (It never arrives with log-error=false.)
_LINE_S = 1.0


class ServerLost(RemoteFailure):
    """Raised if tritonserver is not up, or exits before it answers."""


class ServerCrashed(ServerLost):
    """Raised if tritonserver crashes while it is loading this model and no other."""


class ServerStartError(Exception):
    """Raised if tritonserver does not start. The message contains its last output."""


class ServerProcess:
    """A tritonserver process, with the connection over which it is administered.

    Attributes:
        pid: process id
        child: the process as a child of this one
        admin: connection for administration
        version: version of Triton's core; "" until the process is ready
    """

    def __init__(self, config: DaemonConfig, frontend: Frontend, child: Child) -> None:
        self.pid = child.pid
        self.admin = frontend.connect(child.pid)
        self._config = config
        self._frontend = frontend
        self.child = child
        self._watch: asyncio.Task[None] | None = None
        self._hung = ""  #: description of how the process hung; "" if it did not
        self._silence = ""  #: why the last probe during the start failed
        self.version = ""

    @classmethod
    async def start(
        cls,
        config: DaemonConfig,
        frontend: Frontend,
        preload: Sequence[str],
        *,
        vertex: bool,
        as_successor: bool = False,
    ) -> ServerProcess:
        """Start a process, without waiting until it is ready. For the arguments, see `Frontend.start`."""
        return cls(
            config,
            frontend,
            await frontend.start(preload, vertex=vertex, as_successor=as_successor),
        )

    @classmethod
    def adopt(cls, config: DaemonConfig, frontend: Frontend, child: Child) -> ServerProcess:
        """Supervise a process that is ready and was started by the previous version of the daemon."""
        one = cls(config, frontend, child)
        one._watch = asyncio.create_task(one._kill_when_hung())
        return one

    @property
    def running(self) -> bool:
        return not self.child.exited.done()

    async def until_ready(self) -> dict[str, str]:
        """Wait until the process can load models. Then start the liveness probes, which kill the process if it hangs.

        Returns:
            The state of each model in the repository, by name.

        Raises:
            ServerStartError: the process exited, was not ready in time, or failed to initialize
        """
        await self._until_up()
        try:
            states = await self.admin.repository_states()
            self.version = await self.admin.version()
        except (ServerRefused, Unreached) as error:
            raise ServerStartError(
                f"tritonserver is up but does not work ({error}). Its last output:\n{self._last_lines()}"
            ) from error
        self._frontend.hide_secrets(self.pid)
        self._watch = asyncio.create_task(self._kill_when_hung())
        return states

    async def load(self, name: str, config: str | None) -> None:
        """Load a model. `config` is its configuration in JSON, or None to use the one in its directory.

        Raises:
            ServerRefused, Unreached: the model was not loaded. If its configuration is invalid, the message includes
                the cause from tritonserver's log.
        """
        what = _POLL_FAILED.format(name)
        printed = self.child.next_line_with(what.encode())
        try:
            await self.admin.load(name, config)
        except ServerRefused as error:
            if _NOT_POLLED not in str(error):
                raise
            await asyncio.wait([printed], timeout=_LINE_S)
            if not printed.done():
                raise
            line = printed.result().decode(errors="backslashreplace")
            reason = logs.unquoted(line.rstrip().partition("] ")[2]).partition(what)[2]
            raise ServerRefused(f"{error}: {reason}") from error
        finally:
            printed.cancel()

    async def shut_down(self, busy: Callable[[], bool]) -> None:
        """Shut the process down: send SIGTERM, then SIGKILL once `busy()` is False or the grace period has expired."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + self._config.grace_period_s
        while self.running:
            await asyncio.wait([self.child.exited], timeout=EXIT_GRACE_S)
            if not busy() or asyncio.get_running_loop().time() > deadline:
                self.child.signal_group(signal.SIGKILL)

    async def wait_exited(self) -> str:
        """Wait until the process has exited, and describe how."""
        code = await asyncio.shield(self.child.exited)
        self.child.signal_group(signal.SIGKILL)  # its stubs would wait for the process forever
        await self.child.drained()
        return f"tritonserver (pid {self.pid}) {describe_exit(code)}{self._hung}"

    async def is_exiting(self) -> bool:
        """Wait for the exit of a process that is exiting or begins to within a second. Return whether it has exited.

        A process that crashes loses its connections before its exit is reported. In between, the kernel frees the rest
        of what its descriptors refer to, such as shared memory, which can take seconds.
        """
        await asyncio.wait([self.child.exited], timeout=_EXIT_BEGINS_S)
        if self.running and is_dying(self.pid):
            await asyncio.wait([self.child.exited])
        return not self.running

    def exit_description(self) -> str:
        """Describe how the process exited, for example "was killed by signal 11 (SIGSEGV)"."""
        return describe_exit(self.child.exited.result())

    @property
    def crashed(self) -> bool:
        """Whether the process exited because of a crash, rather than being killed or shut down."""
        return not self.running and -self.child.exited.result() in _FAULTS

    async def stop(self, grace_s: float = EXIT_GRACE_S) -> None:
        """Stop the process: SIGTERM, then SIGKILL after `grace_s` seconds; kill its descendants."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self.admin.close()
        await self.child.stop(grace_s)
        self._frontend.forget(self.pid)

    def kill(self) -> None:
        """Kill the process and its descendants immediately."""
        if self.running:
            self.child.signal_group(signal.SIGKILL)

    def started(self, pid: int) -> bool:
        """Return whether `pid` is this process or one of its descendants."""
        return self.running and (pid == self.pid or self.pid in ancestors(pid))

    async def _until_up(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._config.server_start_timeout_s
        while not await self._answers():
            if not self.running:
                await self.child.drained()
                end = describe_exit(self.child.exited.result())
                raise ServerStartError(
                    f"tritonserver {end} while starting. Its last output:\n{self._last_lines()}"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise ServerStartError(
                    f"tritonserver was not ready within {self._config.server_start_timeout_s:g} s. The last probe failed: {self._silence}. "
                    f"Its last output:\n{self._last_lines()}"
                )
            await asyncio.wait([self.child.exited], timeout=_READY_INTERVAL_S)

    async def _answers(self) -> bool:
        """Return whether the process is live and listens on every endpoint."""
        try:
            if not await self.admin.is_live():
                self._silence = "it reports that it is not live"
                return False
            await self._frontend.check_listening()
        except (ServerRefused, Unreached, OSError) as error:
            self._silence = str(error)
            _log.debug("tritonserver is not answering yet", error=self._silence)
            return False
        return True

    async def _kill_when_hung(self) -> None:
        """Probe the process, and kill it if it hangs; it is then handled like any process that exits."""
        config = self._config
        interval_s, timeout_s = config.server_probe_interval_s, config.server_probe_timeout_s
        if not timeout_s or not await wait_hung(
            self.child,
            self.admin,
            lambda: self._frontend.connect(self.pid),
            interval_s=interval_s,
            timeout_s=timeout_s,
        ):
            return
        self._hung = (
            f": the daemon killed it, because it had not answered for {timeout_s:g} s "
            f"(server_probe_timeout_s); its state was {process_state(self.pid)}"
        )
        self.child.signal_group(signal.SIGKILL)

    def _last_lines(self) -> str:
        return admin_token.hide(self.child.last_lines(), self._config.access_token)


async def wait_hung(
    child: Child,
    admin: Admin,
    connect: Callable[[], Admin],
    *,
    interval_s: float,
    timeout_s: float,
) -> bool:
    """Probe a process until it hangs or exits. Return True if it hangs, False if it has exited.

    Args:
        child: the process
        admin: open connection to it
        connect: opens another connection
        interval_s: interval between probes while the process answers, in seconds
        timeout_s: time without an answer after which the process counts as hung, in seconds
    """
    while True:
        await asyncio.wait([child.exited], timeout=until_next_tick(interval_s))
        if not await _is_alive(child, admin, connect, timeout_s):
            return True
        if child.exited.done():
            return False


async def _is_alive(
    child: Child, admin: Admin, connect: Callable[[], Admin], timeout_s: float
) -> bool:
    """Return whether the process answers a probe within `timeout_s`. A process that exits in that time counts as
    alive, too.
    """
    probes: list[asyncio.Task[None]] = []
    try:
        while len(probes) < _MAX_PROBES:
            probe = _probe_on_new_connection(child, connect) if probes else _probe(child, admin)
            probes.append(asyncio.create_task(probe))
            signs: list[asyncio.Future[Any]] = [child.exited, *probes]
            done, _ = await asyncio.wait(
                signs, timeout=timeout_s / _MAX_PROBES, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return True
        return False
    finally:
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


async def _probe(child: Child, admin: Admin) -> None:
    """Send a probe. Return once the process has answered or exited. A failed request does not count as an answer."""
    try:
        await admin.is_live()
    except Exception as error:  # each kind of connection has its own exceptions
        _log.debug("tritonserver did not answer a probe", error=f"{type(error).__name__}: {error}")
        await asyncio.shield(child.exited)


async def _probe_on_new_connection(child: Child, connect: Callable[[], Admin]) -> None:
    admin = connect()
    try:
        await _probe(child, admin)
    finally:
        await admin.close()


def process_state(pid: int) -> str:
    """Return the state of a process as the kernel reports it, for example "S (sleeping)" or "T (stopped)"."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        return f"unknown ({error.strerror})"
    return next((line.split(None, 1)[1] for line in lines if line.startswith("State:")), "unknown")


def is_dying(pid: int) -> bool:
    """Return whether the kernel is ending a process, or at least its main thread. Its exit may not be reported yet."""
    try:
        flags = linux.stat_fields(f"/proc/{pid}/stat")[9]
    except OSError:
        return False
    return int(flags) & _PF_EXITING != 0


def log_line(pid: int, line: bytes) -> None:
    """Log a line that tritonserver printed."""
    logger = logs.child_logger(source="tritonserver", pid=pid)
    if GATE.encode() in line:  # the gate is meant to fail
        logger.debug(line.decode(errors="backslashreplace"))
        return
    logs.log_child_line(logger, line, of_triton=True)
