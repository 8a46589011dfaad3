"""How the dispatcher stops a worker process, and learns why one has exited."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.exit_codes import WORKER_LOAD_FAILED
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.workers.worker_process import WorkerProcess

#: Ignores SIGTERM, and prints when it arrives.
_STAYS = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
print("up", flush=True)
time.sleep(1e6)
"""


async def test_an_endless_cleanup_is_killed(tmp_path: Path, kill_on_death: KillOnDeath) -> None:
    """Even of a replaced worker, whose batches have no time limit."""
    up = asyncio.Event()
    child = await Child.start(
        [sys.executable, "-c", _STAYS],
        env={},
        cwd=None,
        on_line=lambda pid, line: up.set(),
        kill_on_death=kill_on_death,
    )
    stats, descriptor = WorkerStatsPage.create()
    os.close(descriptor)
    path = tmp_path / "lane"
    worker = WorkerProcess("w1", child, SPEC, 0, lane_path=path, stats=stats, clean_up_s=0.3)
    await up.wait()
    stats.mark_ending()
    with structlog.testing.capture_logs() as said:
        await worker.end_after_batch()
    assert child.exited.result() == -signal.SIGKILL
    assert "did not exit within grace_period_s" in said[0]["event"]


class _StarvedChild:
    """A process that exits on SIGTERM as soon as it runs, at `runs_at`."""

    pid = 0

    def __init__(self, loop: VirtualLoop, runs_at: float, *, is_runnable: bool) -> None:
        self.exited: asyncio.Future[int] = loop.create_future()
        self.killed_at: float | None = None
        self._loop = loop
        self._is_runnable = is_runnable
        loop.call_at(runs_at, self._exit)

    def _exit(self) -> None:
        if not self.exited.done():
            self.exited.set_result(0)

    def is_runnable(self) -> bool:
        return self._is_runnable

    async def stop(self, grace_s: float) -> None:
        if not self.exited.done():
            self.killed_at = self._loop.time()
            self.exited.set_result(-signal.SIGKILL)

    async def drained(self) -> None: ...

    def last_lines(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("is_loaded", "is_runnable", "runs_at", "killed_at"),
    [
        (True, True, 20.0, None),
        (True, True, 1000.0, 30.0),  # after the time for its clean-up
        (True, False, 1000.0, 5.0),  # it sleeps, so the signal did not reach it
        (False, True, 1000.0, 5.0),  # it has nothing to clean up
    ],
)
def test_an_idle_worker_is_killed_early_only_if_it_cannot_react(
    is_loaded: bool,
    is_runnable: bool,
    runs_at: float,
    killed_at: float | None,
    loop: VirtualLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    stats, descriptor = WorkerStatsPage.create()
    os.close(descriptor)

    async def end() -> float | None:
        child: Any = _StarvedChild(loop, runs_at, is_runnable=is_runnable)
        path = Path("/nonexistent/lane")
        worker = WorkerProcess("w1", child, SPEC, 0, lane_path=path, stats=stats, clean_up_s=30.0)
        if is_loaded:
            worker.loaded()
        await worker.end_after_batch()
        return cast(_StarvedChild, child).killed_at

    assert loop.run(end()) == killed_at


@pytest.mark.parametrize(
    ("delay_s", "reason"), [(1.0, "could not be loaded: no weights"), (60.0, "w1 exited before")]
)
def test_the_reason_of_a_failed_load_may_arrive_after_the_exit(
    loop: VirtualLoop, delay_s: float, reason: str
) -> None:
    async def fail() -> None:
        worker = FakeWorker(1)
        worker.exited.set_result(WORKER_LOAD_FAILED)
        message = messages.WorkerFailed("w1", "no weights", "")
        asyncio.get_running_loop().call_later(delay_s, worker.failed, message)
        with pytest.raises(RemoteFailure, match=reason):
            await worker.ready

    loop.run_until_complete(fail())


@pytest.mark.parametrize(("is_loaded", "when"), [(False, "before"), (True, "right after")])
def test_an_exit_before_the_worker_is_ready_names_the_phase(
    is_loaded: bool, when: str, loop: VirtualLoop
) -> None:
    """For example, it runs out of memory after loading, or its report is lost with it."""

    async def crash() -> None:
        worker = FakeWorker(1)
        if is_loaded:
            worker.stats_of_worker.loaded(load_ns=1, warmup_ns=0)
        worker.end()
        with pytest.raises(RemoteFailure, match=f"w1 exited {when} its callable was loaded"):
            await worker.ready

    loop.run_until_complete(crash())
