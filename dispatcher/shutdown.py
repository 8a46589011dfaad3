"""Why the daemon ends, with which exit code, and whether in order or at once."""

from __future__ import annotations

import asyncio
import os

import structlog

from pytriton._host import exit_record
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.runtime.owner import Owner
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events

_log = structlog.get_logger(__name__)


class ShutdownController:
    """The end of one daemon; the first who asks for it is named as the reason, and says the exit code.

    Args:
        status: is told why
        events: takes what is decided
        rundir: where the end is written down
        server: is killed where there is no time
        registry: knows whether anything is under way

    Attributes:
        asked: set once the daemon shall end.
        code: its exit code.
    """

    def __init__(
        self,
        status: DaemonStatus,
        events: Events,
        rundir: RuntimeDir,
        server: TritonServer,
        registry: Registry,
    ) -> None:
        self.asked = asyncio.Event()
        self.code = ExitCode.OK
        self._status = status
        self._events = events
        self._rundir = rundir
        self._server = server
        self._registry = registry
        self._was_signalled = False
        self._is_hopeless = False  #: a callable has said that only a fresh start will help
        self._word_may_come = False  #: the reason is a worker's end, before what it has said last

    def request(self, why: str, code: ExitCode = ExitCode.OK) -> None:
        """Begin to stop in order, with an exit code."""
        self._events.tell(kinds.STOPPING, reason=why)
        self._ask(why, code)

    def _ask(self, why: str, code: ExitCode) -> None:
        if not self.asked.is_set():
            self._status.why_stopped, self.code = why, code
            self.asked.set()

    def unrecoverable(self, model: str, text: str) -> None:
        """Stop because a callable said that only a fresh start will help."""
        self._events.tell(kinds.UNRECOVERABLE, model=model, reason=text)
        self._is_hopeless = True
        why = f"unrecoverable error in model {model}: {text}"
        if self._word_may_come:
            self._status.why_stopped, self._word_may_come = why, False
        self._ask(why, ExitCode.UNRECOVERABLE)

    def given_up(self, model: str) -> None:
        """Stop because a worker's end says the same, if its word for it has not come; that may come yet."""
        if not self._is_hopeless:
            said = f"its worker ended so, and its log says why: pytriton-daemon logs {model}"
            is_first = not self.asked.is_set()
            self.unrecoverable(model, said)
            self._word_may_come = is_first

    def never_served(self, why: str, code: ExitCode) -> None:
        """Note that tritonserver did not start: there is nothing to stop."""
        self._events.tell(kinds.SERVER_FAILED, reason=why)
        self.code = code
        self._status.why_stopped = why

    def signalled(self, name: str) -> None:
        """Stop in order; at the second signal at once, and at SIGINT as soon as the daemon stops already.

        A first SIGTERM changes nothing if the daemon stops already: a script stops what it has started, and a service
        manager what it has drained, whether or not they know that.
        """
        if self._was_signalled or (name == "SIGINT" and self.asked.is_set()):
            _log.warning("told to stop again: ending at once", signal=name)
            try:
                self._cut_short("told to stop twice")
            finally:
                os._exit(ExitCode.INTERRUPTED)  # the kernel ends the children with us
        self._was_signalled = True
        if self.asked.is_set():
            _log.info("told to stop while it ends; a second signal ends it at once", signal=name)
        else:
            self.request(name)

    def dispossessed(self, why: str) -> None:
        """End at once, because the runtime directory is another daemon's: what an end removes would be that one's."""
        _log.error("another daemon has this one's runtime directory: ending at once", reason=why)
        try:
            self._server.kill()
        finally:
            os._exit(ExitCode.ALREADY_RUNNING)  # the kernel ends the children with us

    def orphaned(self, owner: Owner) -> None:
        """Note that the daemon's owner has ended: answer what is under way, else end at once."""
        why = f"its owner, process {owner.pid}, has ended"
        if self._registry.busy:
            self.request(why)
            return
        self._cut_short(why)
        owner.end_all()

    def write_down(self) -> None:
        """Leave why it ended to whoever asks later."""
        why = self._status.why_stopped
        exit_record.write(self._rundir, self.code, why)
        self._events.tell(kinds.STOPPED, reason=why, numbers={"exit_code": int(self.code)})

    def _cut_short(self, why: str) -> None:
        self._server.kill()
        self._rundir.access_token_file.unlink(missing_ok=True)
        exit_record.write(self._rundir, ExitCode.INTERRUPTED, why)
