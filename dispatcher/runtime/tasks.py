"""Tasks: work that cannot be interrupted, signals for changes, and supervised groups of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


async def uninterrupted(work: Coroutine[Any, Any, None], at_most_s: float | None = None) -> None:
    """Await `work` to its end even if this task is cancelled; re-raise the cancellation afterwards.

    Args:
        work: the work to complete, such as undoing a registration whose client has disconnected
        at_most_s: after a cancellation, wait no longer than this, then also cancel the work

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
    if isinstance(error, asyncio.CancelledError) and error.__cause__ is not None:
        return error.__cause__
    return error


def run_in_background(tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, object]) -> None:
    """Start `work` as a task, and keep the task in `tasks` until it ends: asyncio holds tasks only weakly."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


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


class SupervisedTasks:
    """Named tasks that run until they are cancelled. If one fails, this is logged.

    A vital task must not end before it is cancelled: without it the daemon is unhealthy.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._vital: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None], *, vital: bool = False) -> None:
        """Run `work` in a task."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(_report_failure, name))
        self._tasks[name] = task
        if vital:
            self._vital.append(task)

    def cancel(self, *names: str) -> None:
        """Cancel these tasks, without waiting for them."""
        for name in names:
            self._tasks[name].cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks that still run."""
        self.cancel(*self._tasks)

    async def wait(self, name: str) -> None:
        """Wait until a task has ended, however it ends."""
        await asyncio.wait([self._tasks[name]])

    @property
    def is_healthy(self) -> bool:
        """Return whether all vital tasks run."""
        return not any(task.done() for task in self._vital)


def _report_failure(name: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("internal error: task failed", task=name, exc_info=task.exception())
