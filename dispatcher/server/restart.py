"""Starts tritonserver again whenever it ends by itself: at once, then with growing pauses.

Workers keep their models meanwhile. A first start that fails (a missing library, a wrong option) ends the daemon, see
`cold_start.py`. A server that was up once can come up again, so the daemon tries for ever, unless the setting
`server_restart_limit` has it end, for a service manager to notice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events

_log = structlog.get_logger(__name__)

#: A tritonserver that was up this long was not part of a crash loop.
_HEALTHY_S = 60.0
#: The pause before the second start in a row; the first comes at once, each further one waits twice as long.
_FIRST_PAUSE_S = 0.5


class ServerWatch:
    """Looks after one tritonserver that has been started.

    Args:
        server: that is up now
        config: tells how long the pauses get, and when to give up
        lost: is called when it has ended, with all that it had loaded
        preload: tells what it is to load before it opens its ports again: name -> configuration
        load_again: loads all else that it served, once it is up again; gets the names of what it has loaded
        undo: is called when another one should have taken its place, has loaded perhaps some of it, and does not
        events: takes what is decided about it

    Attributes:
        restarts: how often another one had to be started: it had "ended" by itself, a new one was "planned", or it was
            "replaced" by one that was started beside it.
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
        self._limit = config.server_restart_limit
        self._longest_pause_s = config.server_backoff_max_s
        self._lost = lost
        self._preload = preload
        self._load_again = load_again
        self._undo = undo
        self._began = time.monotonic()  #: the present start of it
        self._planned = False
        self.restarts: Counter[str] = Counter()
        self._failures = 0  #: ends and failed starts in a row
        self._last = ""  #: how the last of them was
        self._up_since: float | None = time.monotonic()
        self._next_start: float | None = None

    async def run(self) -> str:
        """Start it again and again; return why when the setting says that it has been often enough."""
        while True:
            end = await self._server.ended()
            self._lost()
            self.restarts["planned" if self._planned else "ended"] += 1
            if self._planned:
                self._planned = False
            else:
                self._events.tell(kinds.SERVER_ENDED, reason=end)
                self._count(end)
            while not await self._start():
                if self._limit is not None and self._failures > self._limit:
                    return (
                        f"tritonserver does not stay up: {self._failures} times in a row, last: {self._last} "
                        f"(server_restart_limit is {self._limit})"
                    )

    async def start_anew(self, why: str, busy: Callable[[], bool]) -> None:
        """Have tritonserver end in order, to be started again at once."""
        _log.info("tritonserver is started anew", why=why)
        self._planned = True
        await self._server.quit(busy)

    async def replace(self, why: str, *, force: bool = False) -> int:
        """Have another tritonserver take this one's place, and return its pid; see TritonServer.replace."""
        _log.info("tritonserver is to be replaced", why=why)
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
            self._events.tell(kinds.SERVER_NOT_REPLACED, reason=str(error))
            raise
        self.restarts["replaced"] += 1
        self._up_since = time.monotonic()
        self._events.tell(kinds.SERVER_REPLACED, numbers={"pid": pid})
        return pid

    def tell_started(self) -> None:
        """Tell that tritonserver is up."""
        took_s = round(time.monotonic() - self._began, 3)
        self._events.tell(
            kinds.SERVER_STARTED, numbers={"pid": self._server.info().pid or 0, "took_s": took_s}
        )

    def problem(self) -> str | None:
        """Return what status says of a tritonserver that ends again and again; None while all is well."""
        if self._failures < 2 or self._stable:
            return None
        text = f"tritonserver failed {self._failures} times in a row, last: {self._last}. "
        if self._up_since is not None:
            return f"{text}It is up again since {time.monotonic() - self._up_since:.0f} s."
        if self._next_start is None:
            return f"{text}It is being started again."
        left_s = max(0.0, self._next_start - time.monotonic())
        return f"{text}It is started again in {left_s:.0f} s."

    @property
    def _stable(self) -> bool:
        return self._up_since is not None and time.monotonic() - self._up_since > _HEALTHY_S

    def _count(self, failure: str) -> None:
        self._failures = 1 if self._stable else self._failures + 1
        self._last = failure.splitlines()[0]
        self._up_since = None

    async def _start(self) -> bool:
        """Start it after a pause, and load what it served; whether that went well, or it is not to be tried."""
        await self._server.clean_up()
        if self._limit is not None and self._failures > self._limit:
            return False
        pause_s = self._pause_s()
        if pause_s:
            self._next_start = time.monotonic() + pause_s
            self._events.tell(
                kinds.SERVER_LATER,
                reason=self._last,
                numbers={"failures": self._failures, "next_try_s": pause_s},
            )
            await asyncio.sleep(pause_s)
            self._next_start = None
        try:
            self._began = time.monotonic()
            loaded = await self._server.start(self._preload())
            self._up_since = time.monotonic()
            self.tell_started()
            await self._load_again(loaded)
        except Exception as error:  # whatever it is, it may be gone the next time
            _log.exception("tritonserver could not be started again")
            self._events.tell(kinds.SERVER_FAILED, reason=str(error) or type(error).__name__)
            self._lost()
            self._count(str(error) or type(error).__name__)
            return False
        return True

    def _pause_s(self) -> float:
        if self._failures <= 1:
            return 0.0
        exponent = min(self._failures - 2, 30)
        return min(self._longest_pause_s, _FIRST_PAUSE_S * 2.0**exponent)
