"""Workers prestarted for a suspended model: one that exits is cleaned up like any other."""

from __future__ import annotations

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


def test_a_prestarted_worker_that_exits_leaves_nothing() -> None:
    loop = VirtualLoop()

    async def play() -> tuple[PrestartedWorkers, Counted]:
        prestarted, owner, worker = PrestartedWorkers(2), MemoryAccounts().open(SPEC), Counted(1)
        await prestarted.put(owner, worker)
        worker.end()
        assert prestarted.take(owner) is None
        return prestarted, worker

    prestarted, worker = loop.run(play())
    loop.settle()
    assert worker.stops == 1
    assert not prestarted.workers()
    assert prestarted.is_quiescent
    loop.close()


def test_a_prestarted_worker_is_taken_once() -> None:
    loop = VirtualLoop()

    async def play() -> Counted:
        prestarted, owner, worker = PrestartedWorkers(2), MemoryAccounts().open(SPEC), Counted(1)
        await prestarted.put(owner, worker)
        assert prestarted.take(owner) is worker
        assert prestarted.take(owner) is None
        worker.end()
        return worker

    worker = loop.run(play())
    loop.settle()
    assert worker.stops == 0
    loop.close()
