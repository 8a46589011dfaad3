"""One tritonserver process: start, readiness, liveness and exit.

The process runs from `ServerProcess.start` to `stop`. In between, `until_ready` waits until it can load models, and from
then on liveness probes kill it if it hangs. A pidfd reports the exit of a process; the probes detect one that exists but
makes no progress, because it is stopped, deadlocked or its frontend is stuck. A busy server must not be taken for a hung
one, so it counts as hung only if no answer at all has arrived within `server_probe_timeout_s`, on several connections::

    interval ──▶ probe on the daemon's own connection ─┬─ any answer ──▶ alive
                 after 1/3 of the timeout, on a new one ┤
                 after 2/3, on another new one          └─ none by the end ──▶ hung

The daemon's own connection covers a server that has no descriptors left for new ones; the new ones cover a single
connection that is stuck. Each probe stays open until the end, so a late answer counts. Each of the three probes gets a
third of the timeout in turn: a daemon that was itself paused (a frozen machine) probes again before it decides.
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
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import Child, describe_exit
from pytriton.dispatcher.server import admin_token
from pytriton.dispatcher.server.frontend import Admin, Frontend, ServerRefused, Unreached
from pytriton.dispatcher.server.preload_layout import GATE

_log = structlog.get_logger(__name__)

#: tritonserver has no "ready" event that works with --log-info=false, so it is polled.
_READY_INTERVAL_S = 0.02
#: After its models are unloaded nothing is in progress: tritonserver only waits for idle connections.
EXIT_GRACE_S = 2.0
#: How long to wait for the exit of a process after its connection was closed.
_END_SEEN_S = 1.0
_MAX_PROBES = 3

#: Signals that indicate a crash of the process.
_FAULTS = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
)

#: The answer to a rejected configuration, and the log line with the cause, which is printed before the answer.
_NOT_POLLED = "failed to poll from model repository"
_POLL_FAILED = "Poll failed for model directory '{}': "
#: How long that log line may take to arrive; with log-error=false it never does.
_LINE_S = 1.0


class ServerLost(RemoteFailure):
    """tritonserver is not up, or exited before it answered."""


class ServerCrashed(ServerLost):
    """tritonserver crashed while it was loading this model and no other."""


class ServerStartError(Exception):
    """tritonserver did not start; the text contains its last output."""


class ServerProcess:
    """A process that has been started, and the connection over which it is administered.

    Attributes:
        pid: its process id
        child: the child process
        admin: the connection
        version: the version of Triton's core, once it is ready
    """

    def __init__(self, config: DaemonConfig, frontend: Frontend, child: Child) -> None:
        self.pid = child.pid
        self.admin = frontend.connect(child.pid)
        self._config = config
        self._frontend = frontend
        self.child = child
        self._watch: asyncio.Task[None] | None = None
        self._hung = ""  #: how the process was found to hang, if so
        self._silence = ""  #: why the last probe failed
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
        """Start a process; `until_ready` waits until it is ready. For the arguments, see `Frontend.start`."""
        return cls(
            config,
            frontend,
            await frontend.start(preload, vertex=vertex, as_successor=as_successor),
        )

    @classmethod
    def adopt(cls, config: DaemonConfig, frontend: Frontend, child: Child) -> ServerProcess:
        """Adopt a process that the previous version of the daemon started and that is ready."""
        one = cls(config, frontend, child)
        one._watch = asyncio.create_task(one._kill_when_hung())
        return one

    @property
    def running(self) -> bool:
        return not self.child.exited.done()

    async def until_ready(self) -> dict[str, str]:
        """Wait until the process can load models; from then on, kill it if it hangs.

        Returns:
            The models that it sees, with their states.

        Raises:
            ServerStartError: it exited, was not ready in time, or failed to initialize.
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
        """Load a model with a configuration (JSON), or with its own if None.

        Raises:
            ServerRefused, Unreached: the model was not loaded. If its configuration is invalid, the text includes the cause
                from tritonserver's log.
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
        """Shut the process down; wait for requests in progress, at most for the grace period."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + self._config.grace_period_s
        while self.running:
            await asyncio.wait([self.child.exited], timeout=EXIT_GRACE_S)
            if not busy() or asyncio.get_running_loop().time() > deadline:
                self.child.signal_group(signal.SIGKILL)

    async def wait_exited(self) -> str:
        """Wait until the process has exited, and return a description of how it did."""
        code = await asyncio.shield(self.child.exited)
        self.child.signal_group(signal.SIGKILL)  # its stubs would wait for it forever
        await self.child.drained()
        return f"tritonserver (pid {self.pid}) {describe_exit(code)}{self._hung}"

    async def is_exiting(self) -> bool:
        """Return whether the process has exited or is exiting."""
        await asyncio.wait([self.child.exited], timeout=_END_SEEN_S)
        return not self.running

    def exit_description(self) -> str:
        """Return how an exited process ended, for example "was killed by signal 11 (SIGSEGV)"."""
        return describe_exit(self.child.exited.result())

    @property
    def crashed(self) -> bool:
        """Whether the process crashed, rather than being killed or shut down."""
        return not self.running and -self.child.exited.result() in _FAULTS

    async def stop(self, grace_s: float = EXIT_GRACE_S) -> None:
        """Stop the process if it runs, within `grace_s`; then kill its descendants."""
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
        """Return whether the process is live and every endpoint listens."""
        try:
            if not await self.admin.is_live():
                self._silence = "it reports that it is not live"
                return False
            await self._frontend.check_listening()
        except (ServerRefused, Unreached, OSError) as error:
            self._silence = str(error)
            _log.debug("tritonserver does not answer yet", error=self._silence)
            return False
        return True

    async def _kill_when_hung(self) -> None:
        """Kill the process if it hangs, so that it is handled like one that has exited."""
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
    """Return True once the process stops answering, False if it has exited.

    Args:
        child: the process
        admin: an open connection to it
        connect: opens another connection
        interval_s: seconds from an answer to the next probe
        timeout_s: seconds without an answer after which the process counts as hung
    """
    while True:
        await asyncio.wait([child.exited], timeout=interval_s)
        if not await _is_alive(child, admin, connect, timeout_s):
            return True
        if child.exited.done():
            return False


async def _is_alive(
    child: Child, admin: Admin, connect: Callable[[], Admin], timeout_s: float
) -> bool:
    """Return whether the process answers a probe in time, or has exited."""
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
    """Return when the process has answered or exited. A failed request does not count as an answer."""
    try:
        await admin.is_live()
    except Exception as error:  # each transport has its own exceptions
        _log.debug("tritonserver did not answer a probe", error=f"{type(error).__name__}: {error}")
        await asyncio.shield(child.exited)


async def _probe_on_new_connection(child: Child, connect: Callable[[], Admin]) -> None:
    admin = connect()
    try:
        await _probe(child, admin)
    finally:
        await admin.close()


def process_state(pid: int) -> str:
    """Return the kernel's state of a process, for example "S (sleeping)" or "T (stopped)"."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        return f"unknown ({error.strerror})"
    return next((line.split(None, 1)[1] for line in lines if line.startswith("State:")), "unknown")


def log_line(pid: int, line: bytes) -> None:
    """Log a line that tritonserver printed."""
    logger = logs.child_logger(source="tritonserver", pid=pid)
    if GATE.encode() in line:  # a model that fails on purpose
        logger.debug(line.decode(errors="backslashreplace"))
        return
    logs.log_child_line(logger, line, of_triton=True)
