"""Pieces of an answer that are there at the same time go out as one: each response costs every process on its way."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Held"]

#: A piece is held only if the one before came that long before it at most: then another one is likely to be there.
#: So the first one goes out at once.
_QUICK_S = 0.0003
#: Pieces that are held at most: then the worker sees whether there is room for them.
_MOST = 64


class Held:
    """The texts of one stream that have not gone out.

    They go out with the next piece that is not held, and in the next turn of the event loop at the latest: so none
    waits for what its callable awaits.

    Args:
        send: sends a text at once; None: nothing is to be held
        soon: has something called in the loop's next turn
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
        self._last = float("-inf")  #: when the newest piece came
        self._flushes = False  #: in the next turn
        self._failed: Exception | None = None

    def keeps(self, text: str) -> bool:
        """Take the text of a piece; False: what is held is to go out now.

        Raises:
            Exception: what was held before could not be sent
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
        if not quick or len(self._texts) >= _MOST:
            return False
        if not self._flushes:
            self._flushes = True
            self._soon(self._flush)
        return True

    def taken(self) -> str:
        """Return what is held, which is not any more."""
        texts = self._texts
        if len(texts) == 1:
            return texts.pop()
        text = "".join(texts)
        texts.clear()
        return text

    def close(self) -> None:
        """Drop what is held: the stream is over, and nothing of it may go out any more."""
        self._send = None
        self._texts.clear()

    def _flush(self) -> None:
        self._flushes = False
        if self._texts and self._send is not None:
            try:
                self._send(self.taken())
            except Exception as error:  # told with the next piece
                self._failed = error
