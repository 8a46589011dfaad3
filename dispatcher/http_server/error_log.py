"""Rate-limited log of errors that clients can cause; it counts them and never shows what clients sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["ErrorLog", "place_of"]

#: Minimum seconds between two lines of the same kind.
_EVERY_S = 10.0


class ErrorLog(logging.Handler):
    """Logs at most one line per kind every ten seconds.

    Also serves as a `logging` handler: messages of aiohttp and asyncio quote requests, including keys, so only the
    message template and the type of the exception are logged.
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
        """Count an occurrence, and log the number since the last line if the interval has passed."""
        now = self._clock()
        count, said_at = self._kinds.get(kind, (0, now - _EVERY_S))
        count += 1
        if now - said_at >= _EVERY_S:
            self._say(f"{kind}: {count}")
            count, said_at = 0, now
        self._kinds[kind] = (count, said_at)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record of a library without the arguments of its message."""
        error = record.exc_info[1] if record.exc_info else None
        what = "" if error is None else f" {type(error).__name__} {place_of(error)}"
        head = str(record.msg).partition("\n")[0][:100]
        self.count(f"{record.name}: {head}{what}")


def place_of(error: BaseException) -> str:
    """Return where an exception was raised, without its text, which may contain data from a client."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
