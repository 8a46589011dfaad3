"""Starts tritonserver, and restarts it after an unexpected exit: immediately at first, then with growing back-off.

If the first start fails (for example, because of a missing library or an invalid option), the daemon exits. A server
that has been up can come up again, so restarts are retried without limit. Workers keep their models in the meantime.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events

_log = structlog.get_logger(__name__)

#: Uptime after which an exit does not count as part of a crash loop, in seconds.
_HEALTHY_S = 60.0
#: Back-off before the second of consecutive restarts, in seconds; then it doubles. The first restart is immediate.
_INITIAL_DELAY_S = 0.5

#: Maximum number of attempts of the first start. Another process may take a port between its choice and its use.
_MAX_PORT_ATTEMPTS = 5


async def start_server(
    server: TritonServer, config: DaemonConfig, preload: Callable[[], Mapping[str, dict[str, Any]]]
) -> set[str]:
    """Start tritonserver. If another process takes a port that the daemon has chosen, retry with other ports.

    Args:
        server: the server to start
        config: the settings, with the ports
        preload: returns the models to load before the ports open (name -> configuration); called before each attempt

    Returns:
        The names of the models that were loaded.

    Raises:
        ServerStartError: tritonserver did not start
        PortError: a port that the settings name is in use
    """
    chosen = 0 in (config.http_port, config.grpc_port, config.metrics_port)
    attempt = 1
    while True:
        server.choose_ports()
        try:
            return await server.start(preload())
        except ServerStartError as error:
            await server.stop()
            taken = "in use" in str(error) or "unavailable" in str(error)
            if not (chosen and taken) or attempt == _MAX_PORT_ATTEMPTS:
                raise
            _log.info("one of the chosen ports is in use, retrying with others")
            attempt += 1


class ServerWatch:
    """Supervisor of a running tritonserver.

    Args:
        server: the running server
        config: the settings, with the maximum back-off
        lost: called when the server has exited and so lost all models
        preload: returns the models to load before the ports reopen (name -> configuration)
        load_again: loads the other models once the server is up, given the names of those already loaded
        undo: called when a replacement has failed after it may have loaded models
        events: emits the events

    Attributes:
        restarts: number of restarts by cause: "exited" (unexpectedly), "planned", or "replaced" (by a server started
            alongside it)
    """

    def __init__(
        self,
        server: TritonServer,
        config: DaemonConfig,
        *,
        lost: Callable[[], None],
        preload: Callable[[], Mapping[str, Mapping[str, Any]]],
        load_again: Callable[[set[str]], Awaitable[None]],
        undo: Callable[[], None] = lambda: None,
        events: Events = LOG_ONLY,
    ) -> None:
        self._events = events
        self._server = server
        self._longest_pause_s = config.server_backoff_max_s
        self._lost = lost
        self._preload = preload
        self._load_again = load_again
        self._undo = undo
        self._began = time.monotonic()  #: time of the current start
        self._planned = False
        self.restarts: Counter[str] = Counter()
        self._failures = 0  #: consecutive exits and failed starts
        self._last = ""  #: description of the last failure
        self._up_since: float | None = time.monotonic()
        self._next_start: float | None = None

    async def run(self) -> None:
        """Restart the server whenever it exits, until cancelled."""
        while True:
            end = await self._server.wait_exited()
            self._lost()
            self.restarts["planned" if self._planned else "exited"] += 1
            if self._planned:
                self._planned = False
            else:
                self._events.emit(kinds.SERVER_EXITED, reason=end)
                self._count(end)
            while not await self._start():
                pass

    async def restart(self, why: str, busy: Callable[[], bool]) -> None:
        """Shut tritonserver down gracefully. `run` then restarts it immediately.

        Args:
            why: reason, for the log
            busy: returns whether requests are still in progress
        """
        _log.info("tritonserver is restarting", why=why)
        self._planned = True
        await self._server.shut_down(busy)

    async def replace(self, why: str, *, force: bool = False) -> int:
        """Replace the server with a new process, and return its pid; see `TritonServer.replace`."""
        _log.info("replacing tritonserver", why=why)
        began = False

        async def load_again(loaded: set[str]) -> None:
            nonlocal began
            began = True
            await self._load_again(loaded)

        try:
            pid = await self._server.replace(self._preload(), load_again, force=force)
        except BaseException as error:
            if began:
                self._undo()
            if not isinstance(error, Exception):
                raise
            self._events.emit(kinds.SERVER_REPLACE_FAILED, reason=str(error))
            raise
        self.restarts["replaced"] += 1
        self._up_since = time.monotonic()
        self._events.emit(kinds.SERVER_REPLACED, numbers={"pid": pid})
        return pid

    def emit_started(self) -> None:
        """Emit the event that tritonserver has started."""
        took_s = round(time.monotonic() - self._began, 3)
        self._events.emit(
            kinds.SERVER_STARTED, numbers={"pid": self._server.info().pid or 0, "took_s": took_s}
        )

    def problem(self) -> str | None:
        """If tritonserver keeps failing, return a description of the problem for `status`; otherwise None."""
        if self._failures < 2 or self._stable:
            return None
        text = f"tritonserver failed {self._failures} times in a row, last: {self._last}. "
        if self._up_since is not None:
            return f"{text}It has been up for {time.monotonic() - self._up_since:.0f} s."
        if self._next_start is None:
            return f"{text}It is restarting."
        left_s = max(0.0, self._next_start - time.monotonic())
        return f"{text}It restarts in {left_s:.0f} s."

    @property
    def _stable(self) -> bool:
        return self._up_since is not None and time.monotonic() - self._up_since > _HEALTHY_S

    def _count(self, failure: str) -> None:
        self._failures = 1 if self._stable else self._failures + 1
        self._last = failure.splitlines()[0]
        self._up_since = None

    async def _start(self) -> bool:
        """Wait for the back-off, start the server and load its models; return whether that succeeded."""
        await self._server.clean_up()
        pause_s = self._pause_s()
        if pause_s:
            self._next_start = time.monotonic() + pause_s
            self._events.emit(
                kinds.SERVER_BACKOFF,
                reason=self._last,
                numbers={"failures": self._failures, "next_try_s": pause_s},
            )
            await asyncio.sleep(pause_s)
            self._next_start = None
        try:
            self._began = time.monotonic()
            loaded = await self._server.start(self._preload())
            self._up_since = time.monotonic()
            self.emit_started()
            await self._load_again(loaded)
        except Exception as error:  # any failure may be temporary, so retry
            _log.exception("could not restart tritonserver")
            self._events.emit(kinds.SERVER_FAILED, reason=str(error) or type(error).__name__)
            self._lost()
            self._count(str(error) or type(error).__name__)
            return False
        return True

    def _pause_s(self) -> float:
        if self._failures <= 1:
            return 0.0
        exponent = min(self._failures - 2, 30)
        return min(self._longest_pause_s, _INITIAL_DELAY_S * 2.0**exponent)
