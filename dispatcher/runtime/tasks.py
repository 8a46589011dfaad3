"""Work that must not be left half done, and a signal for tasks that wait for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def uninterrupted(work: Coroutine[Any, Any, None], at_most_s: float | None = None) -> None:
    """Await `work` to its end even if this task is cancelled; re-raise the cancellation afterwards.

    Args:
        work: the work to complete, such as undoing a registration whose client has disconnected
        at_most_s: after a cancellation, wait no longer than this, then cancel the work, too

    Raises:
        CancelledError: this task was cancelled; its cause is the exception of `work`, if that failed.
        Exception: the exception of `work`.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # noqa: PERF203, that is what the loop is for
            if not cancelled and at_most_s is not None:
                loop.call_later(at_most_s, task.cancel)
            cancelled = True
    if cancelled:  # even if `work` failed: a loop that handles its exception would run on forever
        raise asyncio.CancelledError from (None if task.cancelled() else task.exception())
    task.result()


def cause_of(error: BaseException) -> BaseException:
    """Return the failure behind a cancellation that `uninterrupted` has raised; any other error itself."""
    cancelled = isinstance(error, asyncio.CancelledError) and error.__cause__ is not None
    return error.__cause__ or error if cancelled else error


# ── A signal for tasks that wait for the next change of something ──


class ChangeSignal:
    """Wakes all tasks that wait for the next change.

    A task that waits for a condition must take `next` before it checks the condition, so that it misses no change.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event that the next change sets."""
        return self._next

    def notify(self) -> None:
        """Signal a change to all waiting tasks."""
        self._next.set()
        self._next = asyncio.Event()
