"""Helpers for asyncio: uninterruptible work, change signals, supervised groups of tasks, and the threads for blocking
calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

_log = structlog.get_logger(__name__)

#: Maximum share of an interval by which a timer may fire too early.
_EARLY_SHARE = 0.01


async def uninterrupted(work: Coroutine[Any, Any, None], at_most_s: float | None = None) -> None:
    """Await `work` until it has ended, even if the current task is cancelled; then re-raise the cancellation.

    Args:
        work: the work to complete, such as rolling back a registration whose client has disconnected
        at_most_s: seconds after a cancellation until `work` is cancelled as well; None for never

    Raises:
        CancelledError: the task was cancelled; its `__cause__` is the exception of `work`, if that failed
        Exception: the exception of `work`
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # noqa: PERF203, the loop exists to continue after this
            if not cancelled and at_most_s is not None:
                loop.call_later(at_most_s, task.cancel)
            cancelled = True
    if cancelled:  # even if `work` failed: a caller that handles its exception would not notice the cancellation
        raise asyncio.CancelledError from (None if task.cancelled() else task.exception())
    task.result()


def cause_of(error: BaseException) -> BaseException:
    """Return `error`. If it is a cancellation raised by `uninterrupted`, return the exception of its work instead."""
    if isinstance(error, asyncio.CancelledError) and error.__cause__ is not None:
        return error.__cause__
    return error


def run_in_background(tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, object]) -> None:
    """Start `work` as a task, and keep it in `tasks` until it ends: asyncio holds only weak references to tasks."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def until_next_tick(interval_s: float) -> float:
    """Return the time until the next multiple of `interval_s` on the event loop's clock, in seconds.

    Periodic tasks with the same interval that sleep for this time run together, so an idle process wakes up only once.
    """
    left_s = interval_s - asyncio.get_running_loop().time() % interval_s
    # A timer may fire a little too early. Without this, the task would run again after the rest of the interval.
    return left_s if left_s > interval_s * _EARLY_SHARE else left_s + interval_s


#: Number of threads for the daemon's blocking calls.
_THREADS = 8


def started_executor() -> ThreadPoolExecutor:
    """Return an executor whose threads are all running.

    asyncio's own executor starts its threads when they are needed. At a limit on tasks (see task_limits.py), the daemon
    could then neither remove a registration nor shut down.

    Raises:
        RuntimeError: the threads cannot be started
    """
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="blocking")
    all_started = threading.Event()
    try:
        # No thread is idle until all have started, so each call starts one.
        for _ in range(_THREADS):
            executor.submit(all_started.wait)
    finally:
        all_started.set()
    return executor


# ── Signals for tasks that wait for the next change of something ──


class ChangeSignal:
    """Signal that wakes all tasks waiting for the next change.

    To wait for a condition without missing a change, a task takes `next` first, then checks the condition, then waits.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Event that the next change sets."""
        return self._next

    def notify(self) -> None:
        """Wake all tasks that are waiting for a change."""
        self._next.set()
        self._next = asyncio.Event()


async def until(condition: Callable[[], bool], *signals: ChangeSignal) -> None:
    """Wait until `condition` holds. Check it now, and again whenever one of the signals reports a change."""
    while not condition():
        await next_change(*signals)


async def next_change(*signals: ChangeSignal, timeout_s: float | None = None) -> None:
    """Wait until one of the signals reports a change, for at most `timeout_s` seconds."""
    waits = [asyncio.ensure_future(one.next.wait()) for one in signals]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class SupervisedTasks:
    """Group of named background tasks. Failures are logged.

    If a vital task ends before it is cancelled, the daemon is unhealthy.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._vital: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None], *, vital: bool = False) -> None:
        """Run `work` in a new task with this name."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(_report_failure, name))
        self._tasks[name] = task
        if vital:
            self._vital.append(task)

    def cancel(self, *names: str) -> None:
        """Cancel tasks by name, without waiting for them to end."""
        for name in names:
            self._tasks[name].cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks, without waiting for them to end."""
        self.cancel(*self._tasks)

    async def wait(self, name: str) -> None:
        """Wait until a task has ended, been cancelled or failed."""
        await asyncio.wait([self._tasks[name]])

    @property
    def is_healthy(self) -> bool:
        """Whether all vital tasks are still running."""
        return not any(task.done() for task in self._vital)


def _report_failure(name: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("internal error: task failed", task=name, exc_info=task.exception())
