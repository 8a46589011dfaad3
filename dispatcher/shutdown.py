"""Shutdown and drain of the daemon: the reason, the exit code, and whether to shut down gracefully."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Optional

import structlog

from pytriton._host import exit_record
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.readiness import ReadinessController
from pytriton.dispatcher.runtime.owner import Owner
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events

_log = structlog.get_logger(__name__)


class ShutdownController:
    """The shutdown of one daemon. The first request sets the reason and the exit code.

    Args:
        status: shows the reason
        events: receives an event with the reason
        rundir: stores the exit record
        server: killed if the daemon exits at once
        registry: knows whether requests are in flight

    Attributes:
        requested: set once the daemon should stop.
        code: the daemon's exit code.
    """

    def __init__(
        self,
        status: DaemonStatus,
        events: Events,
        rundir: RuntimeDir,
        server: TritonServer,
        registry: Registry,
    ) -> None:
        self.requested = asyncio.Event()
        self.code = ExitCode.OK
        self._status = status
        self._events = events
        self._rundir = rundir
        self._server = server
        self._registry = registry
        self._was_signalled = False
        self._needs_restart = False  #: a callable has reported that only a restart helps

    def request(self, why: str, code: ExitCode = ExitCode.OK) -> None:
        """Begin a graceful shutdown for the reason `why`, with an exit code."""
        self._events.emit(kinds.STOPPING, reason=why)
        self._ask(why, code)

    def _ask(self, why: str, code: ExitCode) -> None:
        if not self.requested.is_set():
            self._status.why_stopped, self.code = why, code
            self.requested.set()

    def unrecoverable(self, model: str, text: str) -> None:
        """Stop because a callable reported an unrecoverable error, which only restarting the daemon can resolve."""
        self._events.emit(kinds.UNRECOVERABLE, model=model, reason=text)
        self._needs_restart = True
        self._ask(f"unrecoverable error in model {model}: {text}", ExitCode.UNRECOVERABLE)

    def on_unrecoverable_exit(self, model: str) -> None:
        """Stop because a worker's exit status reports an unrecoverable error, unless a worker's own message has arrived."""
        if not self._needs_restart:
            text = f"its worker's exit code reports it; for the reason, see: pytriton-daemon logs {model}"
            self.unrecoverable(model, text)

    def server_failed(self, why: str, code: ExitCode) -> None:
        """Record that tritonserver did not start. There is nothing to stop."""
        self._events.emit(kinds.SERVER_FAILED, reason=why)
        self.code = code
        self._status.why_stopped = why

    def signalled(self, name: str) -> None:
        """Handle a stop signal: shut down gracefully, or at once after a second signal or SIGINT during a shutdown.

        Ignore the first SIGTERM during a shutdown: its sender, a script or a service manager, may not know that the
        daemon is stopping already.
        """
        if self._was_signalled or (name == "SIGINT" and self.requested.is_set()):
            _log.warning("second stop signal: exiting immediately", signal=name)
            try:
                self._cut_short("second stop signal")
            finally:
                os._exit(ExitCode.INTERRUPTED)  # the kernel kills the children with us
        self._was_signalled = True
        if self.requested.is_set():
            _log.info(
                "stop signal during shutdown; the next one forces an immediate exit", signal=name
            )
        else:
            self.request(name)

    def dispossessed(self, why: str) -> None:
        """Exit at once, because another daemon is using the runtime directory. Cleaning up would remove that daemon's files."""
        _log.error(
            "another daemon is using this one's runtime directory: exiting immediately", reason=why
        )
        try:
            self._server.kill()
        finally:
            os._exit(ExitCode.ALREADY_RUNNING)  # the kernel kills the children with us

    def orphaned(self, owner: Owner) -> None:
        """Stop because the daemon's owner has exited: gracefully if requests are in flight, otherwise at once."""
        why = f"its owner, process {owner.pid}, has exited"
        if self._registry.busy:
            self.request(why)
            return
        self._cut_short(why)
        owner.exit_now()

    def write_record(self) -> None:
        """Write the record of the daemon's exit, which `status` shows later."""
        why = self._status.why_stopped
        exit_record.write(self._rundir, self.code, why)
        self._events.emit(kinds.STOPPED, reason=why, numbers={"exit_code": int(self.code)})

    def _cut_short(self, why: str) -> None:
        self._server.kill()
        self._rundir.access_token_file.unlink(missing_ok=True)
        exit_record.write(self._rundir, ExitCode.INTERRUPTED, why)


# ── DrainController: drain the daemon before its host goes away, without failing requests ──

_DAY_S = 86400
#: The answer to clients that try to change models.
REFUSAL = "the daemon is draining because its host is going away; use another daemon"


class DrainController:
    """Drains one daemon. A second request changes the delays.

    Args:
        status: shows the drain
        readiness: makes tritonserver report not ready
        registry: refuses further changes to models
        shutdown: stops the daemon at the end
        events: receives an event about the drain
        set_grace_period: sets the grace period for in-flight requests, in seconds
    """

    def __init__(
        self,
        status: DaemonStatus,
        readiness: ReadinessController,
        registry: Registry,
        shutdown: ShutdownController,
        events: Events,
        set_grace_period: Callable[[float], None],
    ) -> None:
        self._status = status
        self._readiness = readiness
        self._registry = registry
        self._shutdown = shutdown
        self._events = events
        self._use_grace = set_grace_period
        self._settle_task: Optional[asyncio.Task[None]] = None

    async def begin(self, request: messages.Drain) -> None:
        """Begin draining. Return immediately if the daemon should stop, otherwise when the settle time is over.

        A daemon that is still starting stops at once, since it serves no clients.

        Raises:
            RemoteFailure: a delay is out of range.
        """
        for seconds in (request.settle_s, request.timeout_s or 0.0):
            if not 0 <= seconds <= _DAY_S:
                raise RemoteFailure(ErrorKind.INVALID, f"{seconds} is not between 0 and {_DAY_S} s")
        if self._shutdown.requested.is_set():
            return
        if request.timeout_s is not None:
            self._use_grace(request.timeout_s)
        settle_s = request.settle_s if self._status.phase in ("ready", "draining") else 0.0
        numbers = {"settle_s": settle_s, "stop": int(request.stop)}
        self._events.emit(kinds.DRAINING, numbers=numbers)
        if self._status.phase == "ready":
            self._status.phase = "draining"
        self._registry.refusal = REFUSAL
        await self._readiness.withdraw()
        if self._settle_task is not None:
            self._settle_task.cancel()
        self._settle_task = asyncio.create_task(self._settle(settle_s, stop=request.stop))
        while not (request.stop or self._settle_task.done()):
            await asyncio.wait([self._settle_task])  # a further request replaces this task

    async def _settle(self, settle_s: float, *, stop: bool) -> None:
        await asyncio.sleep(settle_s)
        if stop:
            self._shutdown.request("it was drained")
