"""Work that finishes although its task is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest
import structlog
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.runtime.tasks import (
    ChangeSignal,
    SupervisedTasks,
    cause_of,
    run_in_background,
    started_executor,
    uninterrupted,
    until,
    until_next_tick,
)


class Work:
    """An operation that starts, waits until it may continue, and ends."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), False
        self.was_cancelled = False
        self._error = error

    async def run(self) -> None:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self._error is not None:
            raise self._error
        self.ended = True


async def test_uninterrupted_work_is_awaited() -> None:
    work = Work()
    work.may_end.set()
    await uninterrupted(work.run())
    assert work.ended


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancelled_task_finishes_the_work_first(cancellations: int) -> None:
    work = Work()
    task = asyncio.ensure_future(uninterrupted(work.run()))
    await work.begun.wait()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.wait([task], timeout=0)
    assert not task.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended
    assert not work.was_cancelled


async def test_the_work_is_cancelled_after_the_time_limit() -> None:
    work = Work()
    task = asyncio.ensure_future(uninterrupted(work.run(), at_most_s=0.01))
    await work.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.was_cancelled


async def test_the_error_of_the_work_reaches_the_caller() -> None:
    work = Work(ValueError("went wrong"))
    work.may_end.set()
    with pytest.raises(ValueError, match="went wrong"):
        await uninterrupted(work.run())


async def test_a_cancellation_is_not_lost_when_the_work_fails() -> None:
    """Otherwise a loop that handles such errors never ends: `stop` hung while a changed model was reloaded."""
    work = Work(ValueError("went wrong"))
    causes: list[BaseException] = []

    async def caller() -> None:
        try:
            await uninterrupted(work.run())
        except asyncio.CancelledError as error:
            # Below Python 3.11, awaiting the task raises another CancelledError, without a cause.
            causes.append(cause_of(error))
            raise

    task = asyncio.ensure_future(caller())
    await work.begun.wait()
    task.cancel()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(cause) for cause in causes] == [ValueError]


async def test_a_vital_task_that_ends_makes_the_group_unhealthy() -> None:
    async def fail() -> None:
        raise OSError("no room")

    with structlog.testing.capture_logs() as logged:
        tasks = SupervisedTasks()
        tasks.start("watch", asyncio.sleep(0), vital=True)
        tasks.start("other", fail())
        tasks.start("endless", asyncio.Event().wait())  # type: ignore[arg-type]
        assert tasks.is_healthy
        await tasks.wait("watch")
        assert not tasks.is_healthy
        tasks.cancel("endless")
        await tasks.wait("endless")
        tasks.cancel_all()
    assert [(line["event"], line["task"]) for line in logged] == [
        ("internal error: task failed", "other")
    ]


async def test_a_background_task_is_referenced_until_it_ends() -> None:
    work, tasks = Work(), set[asyncio.Task[None]]()
    run_in_background(tasks, work.run())
    await work.begun.wait()
    assert len(tasks) == 1
    work.may_end.set()
    await asyncio.wait(tasks)
    assert work.ended
    assert not tasks


def test_tasks_with_the_same_interval_tick_together(loop: VirtualLoop) -> None:
    ticks: list[float] = []

    async def tick(start_s: float) -> None:
        await asyncio.sleep(start_s)
        while True:
            await asyncio.sleep(until_next_tick(5.0))
            ticks.append(loop.time())

    tasks = [loop.create_task(tick(start_s)) for start_s in (0.1, 2.0, 4.97)]
    loop.advance(16.0)
    assert [round(at, 3) for at in ticks] == [5.0] * 2 + [10.0] * 3 + [15.0] * 3
    for task in tasks:
        task.cancel()
    loop.settle()


def test_until_checks_its_condition_after_each_change(loop: VirtualLoop) -> None:
    one, other = ChangeSignal(), ChangeSignal()
    seen: list[int] = []

    def is_third() -> bool:
        seen.append(len(seen))
        return len(seen) == 3

    waiting = loop.create_task(until(is_third, one, other))
    loop.advance(100.0)
    assert len(seen) == 1
    one.notify()
    loop.settle()
    assert len(seen) == 2
    assert not waiting.done()
    other.notify()
    loop.settle()
    assert waiting.done()


async def test_blocking_calls_need_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(started_executor())

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        found = await asyncio.gather(*(asyncio.to_thread(abs, -number) for number in range(20)))
    assert found == list(range(20))
