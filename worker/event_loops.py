"""The event loop of an asynchronous callable. It is created on demand, and used for the factory, warm-up and calls.

Each serving thread has its own: the main thread of a worker process, or a worker thread in a registrant's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pytriton.worker.fault_reports import ExecutionTimeout

__all__ = ["close", "current", "new_event_loop", "run", "within_limit"]

#: A module that patches asyncio's own loop, and does not work with any other.
_PATCHES = "nest_asyncio"

_here = threading.local()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop. Use uvloop if the model's environment has it, because it halves the cost per token."""
    if _PATCHES not in sys.modules:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def current() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread's worker. Create it if necessary."""
    loop: asyncio.AbstractEventLoop | None = getattr(_here, "loop", None)
    if loop is None or loop.is_closed():
        loop = _here.loop = new_event_loop()
        asyncio.set_event_loop(loop)
    return loop


def run(awaitable: Awaitable[Any]) -> Any:
    """Run this thread's event loop until an awaitable is done, and return the result."""
    return current().run_until_complete(_awaited(awaitable))


def close() -> None:
    """Cancel the callable's remaining tasks on this thread's event loop, wait for them, and close the loop."""
    loop: asyncio.AbstractEventLoop | None = getattr(_here, "loop", None)
    if loop is None or loop.is_closed():
        return
    with contextlib.suppress(RuntimeError):  # a task stopped the loop; the worker exits anyway
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def within_limit(
    producing: Coroutine[Any, Any, Any],
    limit_s: float | None,
    held_s: Callable[[], float] = lambda: 0.0,
) -> Any:
    """Await a coroutine with a time limit. The seconds that `held_s` returns do not count.

    Raises:
        ExecutionTimeout: the coroutine exceeded the limit, and was cancelled.
    """
    if limit_s is None:
        return await producing
    task = asyncio.ensure_future(producing)
    began = time.monotonic()
    try:
        while not task.done():
            left_s = began + held_s() + limit_s - time.monotonic()
            if left_s <= 0:
                text = f"a batch was still running after {limit_s:g} s (execution_timeout_s)"
                raise ExecutionTimeout(text)
            await asyncio.wait([task], timeout=left_s)
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait([task])
        del task  # its exception refers to this frame, which would be a reference cycle
