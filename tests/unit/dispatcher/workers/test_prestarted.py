"""Workers prestarted for a suspended model: one that exits is cleaned up like any other."""

from __future__ import annotations

import pytest
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.workers.memory_account import MemoryAccounts
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers


class Counted(FakeWorker):
    """Counts calls of `stop`, which kills leftover processes and notifies the kill-on-death helper."""

    stops = 0

    async def stop(self, grace_s: float) -> None:
        self.stops += 1
        await super().stop(grace_s)


@pytest.fixture
def worker(loop: VirtualLoop) -> Counted:
    return loop.ask(lambda: Counted(1))


def test_a_prestarted_worker_that_exits_leaves_nothing(loop: VirtualLoop, worker: Counted) -> None:
    prestarted, owner = PrestartedWorkers(2), loop.ask(lambda: MemoryAccounts().open(SPEC))
    loop.run(prestarted.put(owner, worker))
    loop.ask(worker.end)
    assert prestarted.take(owner) is None
    loop.settle()
    assert worker.stops == 1
    assert not prestarted.workers()
    assert prestarted.is_quiescent


def test_a_prestarted_worker_is_taken_once(loop: VirtualLoop, worker: Counted) -> None:
    prestarted, owner = PrestartedWorkers(2), loop.ask(lambda: MemoryAccounts().open(SPEC))
    loop.run(prestarted.put(owner, worker))
    assert prestarted.take(owner) is worker
    assert prestarted.take(owner) is None
    loop.ask(worker.end)
    loop.settle()
    assert worker.stops == 0
