"""Coalescing of pieces that are available at the same time: each response costs every process on its path."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["ChunkCoalescer"]

#: A piece is held only if the one before came that long before it at most: then another one is likely to be there.
#: So the first one goes out at once.
_QUICK_S = 0.0003
#: Maximum number of buffered pieces; then the worker checks whether there is room for them.
_MAX_CHUNKS = 64


class ChunkCoalescer:
    """Buffer of the texts of one stream that have not been sent.

    They are sent with the next piece that is not buffered, and at the latest in the next turn of the event loop: so
    none waits for something that its callable awaits.

    Args:
        send: sends a text at once; None: do not buffer
        soon: schedules a function in the loop's next turn
        clock: seconds; for tests
    """

    def __init__(
        self,
        send: Callable[[str], None] | None,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._send = send
        self._soon = soon
        self._clock = clock
        self._texts: list[str] = []
        self._last = float("-inf")  #: when the newest piece arrived
        self._flushes = False  #: scheduled for the next turn
        self._failed: Exception | None = None

    def keeps(self, text: str) -> bool:
        """Buffer the text of a piece; return False if the buffer must be sent now.

        Raises:
            Exception: the previously buffered text could not be sent
        """
        if self._failed is not None:
            raise self._failed
        if text:
            self._texts.append(text)
        if self._send is None:
            return False
        now = self._clock()
        quick = now - self._last < _QUICK_S
        self._last = now
        if not quick or len(self._texts) >= _MAX_CHUNKS:
            return False
        if not self._flushes:
            self._flushes = True
            self._soon(self._flush)
        return True

    def taken(self) -> str:
        """Return and clear the buffered text."""
        texts = self._texts
        if len(texts) == 1:
            return texts.pop()
        text = "".join(texts)
        texts.clear()
        return text

    def close(self) -> None:
        """Drop the buffered text: the stream is over, and nothing may be sent any more."""
        self._send = None
        self._texts.clear()

    def _flush(self) -> None:
        self._flushes = False
        if self._texts and self._send is not None:
            try:
                self._send(self.taken())
            except Exception as error:  # raised with the next piece
                self._failed = error
