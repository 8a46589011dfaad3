"""Work that must not stay half done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def uninterrupted(work: Coroutine[Any, Any, None], at_most_s: float | None = None) -> None:
    """Await `work` to its end although this task is cancelled meanwhile; the cancellation goes on then.

    Args:
        work: what is to be finished: undoing a registration whose client has gone, say
        at_most_s: once cancelled, wait no longer than this, and cancel the work, too

    Raises:
        CancelledError: this task was cancelled meanwhile.
        Exception: what `work` raised, cancelled or not.
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
