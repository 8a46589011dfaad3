"""The log of a server: what clients can cause is counted there, and what they sent is never shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["ErrorLog", "place_of"]

#: Seconds from one line of a kind to the next of the same.
_EVERY_S = 10.0


class ErrorLog(logging.Handler):
    """Lines of the log, at most one of a kind every ten seconds.

    It stands in for the handlers of `logging`, too: the messages of aiohttp and asyncio quote requests, keys
    among them, so only their first words and the kind of the exception are said.
    """

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._clock = clock
        self._kinds: dict[
            str, tuple[int, float]
        ] = {}  #: since the last line of each; when that was

    def count(self, kind: str) -> None:
        """Say how often something happened, if it is time to."""
        now = self._clock()
        count, said_at = self._kinds.get(kind, (0, now - _EVERY_S))
        count += 1
        if now - said_at >= _EVERY_S:
            self._say(f"{kind}: {count}")
            count, said_at = 0, now
        self._kinds[kind] = (count, said_at)

    def emit(self, record: logging.LogRecord) -> None:
        """Count what a library logs; the arguments of its message are left out."""
        error = record.exc_info[1] if record.exc_info else None
        what = "" if error is None else f" {type(error).__name__} {place_of(error)}"
        head = str(record.msg).partition("\n")[0][:100]
        self.count(f"{record.name}: {head}{what}")


def place_of(error: BaseException) -> str:
    """Return where an exception was raised; its text may hold what a client sent."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
