"""One process of tritonserver's: it starts, becomes ready, is watched for hanging, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence

import structlog

from pytriton._host.ancestors import ancestors
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import Child, describe_exit
from pytriton.dispatcher.server import admin_token, liveness
from pytriton.dispatcher.server.frontend import Front, Refused, Unreached
from pytriton.dispatcher.server.preloading import GATE

_log = structlog.get_logger(__name__)

#: tritonserver offers no event for "ready" that survives --log-info=false, so it is asked this often.
_READY_INTERVAL_S = 0.02
#: Once its models are unloaded nothing is under way: tritonserver then only waits for idle connections.
EXIT_GRACE_S = 2.0
#: A process that is ending closes its connections first.
_END_SEEN_S = 1.0

#: Signals that a process gets for what it has done itself.
_FAULTS = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
)

#: The answer to a configuration that is refused, and what the log says then; it is printed before the answer.
_NOT_POLLED = "failed to poll from model repository"
_POLL_FAILED = "Poll failed for model directory '{}': "
#: How long the log's line may take through its pipe; with log-error=false it never comes.
_LINE_S = 1.0


class ServerLost(RemoteFailure):
    """tritonserver is not up, or ended before it had answered."""


class ServerCrashed(ServerLost):
    """tritonserver ended by a fault of its own while it loaded this model, and no other."""


class ServerStartError(Exception):
    """tritonserver did not come up; the text holds what it said last."""


class ServerProcess:
    """A process that has been started. It has one connection over which it is administered.

    Attributes:
        pid: its process id
        admin: the connection
    """

    def __init__(self, config: DaemonConfig, front: Front, child: Child) -> None:
        self.pid = child.pid
        self.admin = front.connect(child.pid)
        self._config = config
        self._front = front
        self._child = child
        self._watch: asyncio.Task[None] | None = None
        self._hung = ""  #: how the process was found to hang, if it was
        self._silence = ""  #: why it was not reached last
        self.version = ""  #: of Triton's core, once it is ready

    @classmethod
    async def start(
        cls,
        config: DaemonConfig,
        front: Front,
        preload: Sequence[str],
        *,
        vertex: bool,
        beside: bool = False,
    ) -> ServerProcess:
        """Start it; `until_ready` waits for it. For the arguments, see `Front.start`."""
        return cls(config, front, await front.start(preload, vertex=vertex, beside=beside))

    @classmethod
    def adopt(cls, config: DaemonConfig, front: Front, child: Child) -> ServerProcess:
        """Go on with one that a former version of this process has started, and that is ready."""
        one = cls(config, front, child)
        one._watch = asyncio.create_task(one._kill_when_hung())
        return one

    @property
    def child(self) -> Child:
        """The child process that it is."""
        return self._child

    @property
    def running(self) -> bool:
        return not self._child.exited.done()

    async def until_ready(self) -> dict[str, str]:
        """Return when it can load models, and from then on end it should it hang.

        Returns:
            The models that it sees, with their states.

        Raises:
            ServerStartError: it has ended, was not ready in time, or something of it could not be initialized.
        """
        await self._until_up()
        try:
            states = await self.admin.repository_states()
            self.version = await self.admin.version()
        except (Refused, Unreached) as error:
            raise ServerStartError(
                f"tritonserver is up but does not work ({error}). It said:\n{self._last_lines()}"
            ) from error
        self._front.conceal(self.pid)
        self._watch = asyncio.create_task(self._kill_when_hung())
        return states

    async def load(self, name: str, config: str | None) -> None:
        """Load a model with a configuration (JSON; None: its own).

        Raises:
            Refused, Unreached: it is not loaded. What is wrong with its configuration, only tritonserver's log says;
                the text has that, too.
        """
        what = _POLL_FAILED.format(name)
        printed = self._child.next_line_with(what.encode())
        try:
            await self.admin.load(name, config)
        except Refused as error:
            if _NOT_POLLED not in str(error):
                raise
            await asyncio.wait([printed], timeout=_LINE_S)
            if not printed.done():
                raise
            line = printed.result().decode(errors="backslashreplace")
            reason = logs.unquoted(line.rstrip().partition("] ")[2]).partition(what)[2]
            raise Refused(f"{error}: {reason}") from error
        finally:
            printed.cancel()

    async def quit(self, busy: Callable[[], bool]) -> None:
        """Have it end; what is under way is answered, at most for the grace period."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + self._config.grace_period_s
        while self.running:
            await asyncio.wait([self._child.exited], timeout=EXIT_GRACE_S)
            if not busy() or asyncio.get_running_loop().time() > deadline:
                self._child.signal_group(signal.SIGKILL)

    async def ended(self) -> str:
        """Wait for the process to end, and say how it did."""
        code = await asyncio.shield(self._child.exited)
        self._child.signal_group(signal.SIGKILL)  # its stubs, which wait for it in vain
        await self._child.drained()
        return f"tritonserver (pid {self.pid}) {describe_exit(code)}{self._hung}"

    async def ends_now(self) -> bool:
        """Whether it has ended, or does so in this moment."""
        await asyncio.wait([self._child.exited], timeout=_END_SEEN_S)
        return not self.running

    def how_it_ended(self) -> str:
        """Say how a process ended that has: "was killed by signal 11 (SIGSEGV)"."""
        return describe_exit(self._child.exited.result())

    @property
    def crashed(self) -> bool:
        """Whether it has ended by a fault of its own: nobody has killed it, and it was not told to end."""
        return not self.running and -self._child.exited.result() in _FAULTS

    async def stop(self, grace_s: float = EXIT_GRACE_S) -> None:
        """End it, should it run, `grace_s` after it was told to at the latest; then all that it started."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self.admin.close()
        await self._child.stop(grace_s)
        self._front.forget(self.pid)

    def kill(self) -> None:
        """End it and all that it started at once."""
        if self.running:
            self._child.signal_group(signal.SIGKILL)

    def started(self, pid: int) -> bool:
        """Whether a process is this one, or was started by it, or by one of those."""
        return self.running and (pid == self.pid or self.pid in ancestors(pid))

    async def _until_up(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._config.server_start_timeout_s
        while not await self._answers():
            if not self.running:
                await self._child.drained()
                end = describe_exit(self._child.exited.result())
                raise ServerStartError(
                    f"tritonserver {end} while starting. It said:\n{self._last_lines()}"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise ServerStartError(
                    f"tritonserver was not ready within {self._config.server_start_timeout_s:g} s "
                    f"(server_start_timeout_s). Asking it failed with: {self._silence}. "
                    f"It said:\n{self._last_lines()}"
                )
            await asyncio.wait([self._child.exited], timeout=_READY_INTERVAL_S)

    async def _answers(self) -> bool:
        """Whether it is live, and every endpoint listens."""
        try:
            if not await self.admin.is_live():
                self._silence = "it says that it is not live"
                return False
            await self._front.check_open()
        except (Refused, Unreached, OSError) as error:
            self._silence = str(error)
            _log.debug("tritonserver does not answer yet", error=self._silence)
            return False
        return True

    async def _kill_when_hung(self) -> None:
        """Make a process that hangs one that ended; the daemon knows how to go on from there."""
        config = self._config
        interval_s, timeout_s = config.server_probe_interval_s, config.server_probe_timeout_s
        if not interval_s or not await liveness.wait_hung(
            self._child,
            self.admin,
            lambda: self._front.connect(self.pid),
            interval_s=interval_s,
            timeout_s=timeout_s,
        ):
            return
        self._hung = (
            f": the daemon killed it, because it had given no sign of life for {timeout_s:g} s "
            f"(server_probe_timeout_s); its state was {liveness.process_state(self.pid)}"
        )
        self._child.signal_group(signal.SIGKILL)

    def _last_lines(self) -> str:
        return admin_token.hide(self._child.last_lines(), self._config.access_token)


def log_line(pid: int, line: bytes) -> None:
    """Log a line that tritonserver has printed."""
    logger = logs.child_logger(source="tritonserver", pid=pid)
    if GATE.encode() in line:  # a model that fails on purpose
        logger.debug(line.decode(errors="backslashreplace"))
        return
    logs.log_child_line(logger, line, of_triton=True)
