"""Workers that wait for a model that sleeps: one that ends by itself is cleaned up behind, as any other."""

from __future__ import annotations

from support.fakes.fake_worker import SPEC, FakeWorker
from support.fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.workers.memory_accounts import MemoryAccounts
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers


class Counted(FakeWorker):
    """Counts how often it is stopped, which ends what it has left, and tells the helper that kills on death."""

    stops = 0

    async def stop(self, grace_s: float) -> None:
        self.stops += 1
        await super().stop(grace_s)


def test_one_that_ends_by_itself_leaves_nothing() -> None:
    loop = VirtualLoop()

    async def play() -> tuple[PrestartedWorkers, Counted]:
        parking, owner, worker = PrestartedWorkers(2), MemoryAccounts().open(SPEC), Counted(1)
        await parking.put(owner, worker)
        worker.end()
        assert parking.take(owner) is None
        return parking, worker

    parking, worker = loop.run(play())
    loop.settle()
    assert worker.stops == 1
    assert not parking.workers()
    assert parking.settled
    loop.close()


def test_one_that_is_taken_is_its_takers() -> None:
    loop = VirtualLoop()

    async def play() -> Counted:
        parking, owner, worker = PrestartedWorkers(2), MemoryAccounts().open(SPEC), Counted(1)
        await parking.put(owner, worker)
        assert parking.take(owner) is worker
        assert parking.take(owner) is None
        worker.end()
        return worker

    worker = loop.run(play())
    loop.settle()
    assert worker.stops == 0
    loop.close()
