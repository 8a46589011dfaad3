"""Pieces of an answer that are there at the same time go out as one: each response costs every process on its way."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

__all__ = ["Held"]

#: A piece is held only if the one before came that long before it at most, and its callable awaited nothing
#: between: then another one is likely to be there. So the first one goes out at once.
_QUICK_S = 0.0003
#: Pieces that are held at most: then the worker sees whether there is room for them.
_MOST = 64


class Held:
    """The texts of one stream that have not gone out.

    Args:
        send: sends a text at once; None: nothing is to be held
    """

    def __init__(self, send: Callable[[str], None] | None) -> None:
        self._send = send
        self._texts: list[str] = []
        self._first = True
        self._quick = False
        self._waited = False
        self._failed: Exception | None = None

    async def next(self, pieces: Any) -> Any:
        """Return the next piece of an asynchronous iterator; what is held goes out when that has to be awaited."""
        if self._send is None:
            return await pieces.__anext__()
        self._waited = False
        first = self._first
        self._first = False
        began = time.perf_counter()
        piece = await _Watched(pieces.__anext__(), self._waits)
        if self._failed is not None:
            raise self._failed
        took_s = time.perf_counter() - began
        self._quick = not first and not self._waited and took_s < _QUICK_S
        return piece

    def keeps(self, text: str) -> bool:
        """Take the text of a piece; False: what is held is to go out now."""
        if text:
            self._texts.append(text)
        return self._quick and len(self._texts) < _MOST

    def taken(self) -> str:
        """Return what is held, which is not any more."""
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def _waits(self) -> None:
        self._waited = True
        if self._texts and self._send is not None:
            try:
                self._send(self.taken())
            except Exception as error:  # told when the callable is not in the middle of an await
                self._failed = error


class _Watched:
    """An awaitable that says so when it is really waited for."""

    def __init__(self, awaitable: Awaitable[Any], waits: Callable[[], None]) -> None:
        self._awaitable = awaitable
        self._waits = waits

    def __await__(self) -> Generator[Any, None, Any]:
        steps: Any = self._awaitable.__await__()
        try:
            future = next(steps)
            self._waits()
            while True:
                try:
                    yield future
                except BaseException as error:  # noqa: PERF203 - cancelled: as `yield from` does it
                    future = steps.throw(error)
                else:
                    future = next(steps)
        except StopIteration as end:
            return end.value
