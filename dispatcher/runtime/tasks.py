"""Work that must not be left half done."""

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
        CancelledError: this task was cancelled.
        Exception: the exception of `work`, cancelled or not.
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
    task.result()
    if cancelled:
        raise asyncio.CancelledError
