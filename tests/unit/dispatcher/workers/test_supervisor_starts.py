"""Where a pool's next worker comes from, and which exited workers are remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.memory_account import MemoryAccounts
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.supervisor import WorkerStarts
from pytriton.dispatcher.workers.worker import Worker


class Parked(FakeWorker):
    """A prestarted worker; `unpark_fails` makes it unreachable."""

    unpark_fails: BaseException | None = None

    async def unpark(self) -> None:
        if self.unpark_fails is not None:
            raise self.unpark_fails
        await super().unpark()


class Starts:
    """The starts of one pool."""

    def __init__(self, loop: VirtualLoop, room: int = 1) -> None:
        self.loop = loop
        self.started: list[Parked] = []
        self.fails: RemoteFailure | None = None
        self.takes_s = 0.0
        self.workers: dict[str, Worker] = {}
        self.forgotten: list[str] = []
        self.suspended = True
        self.prestarted = PrestartedWorkers(room)
        account = loop.ask(lambda: MemoryAccounts().open(SPEC))
        self.starts = WorkerStarts(
            self._start,
            None,
            self.workers,
            ModelCounters(),
            self.prestarted,
            account,
            self.forgotten.append,
        )

    async def _start(self, *_: object) -> Worker:
        await asyncio.sleep(self.takes_s)
        if self.fails is not None:
            raise self.fails
        self.started.append(Parked(len(self.started) + 1))
        return self.started[-1]

    def start(self, slot: int = 0) -> str:
        return self.loop.run(self.starts.start(SPEC, slot)).name

    def prestart(self) -> asyncio.Task[None]:
        return self.loop.create_task(self.starts.prestart(SPEC, lambda: self.suspended))

    def prestarted_names(self) -> list[str]:
        self.loop.settle()
        return [worker.name for worker in self.prestarted.workers()]

    def alive(self) -> list[str]:
        self.loop.settle()
        return [worker.name for worker in self.started if worker.alive]

    def close(self) -> None:
        for worker in self.started:
            if worker.alive:
                worker.end()
        self.loop.settle()


@pytest.fixture
def starts(loop: VirtualLoop) -> Any:
    one = Starts(loop)
    yield one
    one.close()


def test_the_prestarted_worker_is_for_the_first_slot(starts: Starts) -> None:
    starts.loop.run(starts.prestart())
    assert starts.started[0].parked
    assert starts.start(slot=1) == "w2"
    assert starts.start() == "w1"
    assert not starts.started[0].parked
    assert starts.start() == "w3"
    assert list(starts.workers) == ["w1", "w2", "w3"]


def test_a_prestarted_worker_that_exited_is_not_taken(starts: Starts) -> None:
    starts.loop.run(starts.prestart())
    starts.started[0].end()
    assert starts.start() == "w2"


@pytest.mark.parametrize("error", [RuntimeError("no peer"), asyncio.CancelledError()])
def test_an_unreachable_prestarted_worker_is_stopped(starts: Starts, error: BaseException) -> None:
    """No other task knows it: it would live as long as the daemon."""
    starts.loop.run(starts.prestart())
    starts.started[0].unpark_fails = error
    with pytest.raises(type(error)):
        starts.start()
    assert starts.alive() == starts.prestarted_names() == []
    assert starts.start() == "w2"


@pytest.mark.parametrize(
    ("happens", "parked", "alive"),
    [
        ("nothing", ["w1"], ["w1"]),
        ("the model resumes before it has started", [], []),
        ("its start fails", [], []),
        ("an upgrade begins", [], []),
        ("it is stopped afterwards", [], []),
    ],
)
def test_prestarting_a_worker_for_a_suspended_model(
    starts: Starts, happens: str, parked: list[str], alive: list[str]
) -> None:
    starts.takes_s = 1.0
    if happens == "its start fails":
        starts.fails = RemoteFailure(ErrorKind.UNAVAILABLE, "too many processes")
    prestarted = starts.prestart()
    starts.loop.settle()
    starts.suspended = happens != "the model resumes before it has started"
    if happens == "an upgrade begins":
        starts.loop.run(starts.prestarted.hold())
    starts.loop.run(prestarted)
    if happens == "it is stopped afterwards":
        starts.loop.run(starts.starts.stop_prestarted())
    assert (starts.prestarted_names(), starts.alive()) == (parked, alive)
    assert starts.prestarted.is_quiescent


def test_nothing_is_prestarted_without_room(loop: VirtualLoop) -> None:
    starts = Starts(loop, room=0)
    loop.run(starts.prestart())
    assert starts.started == []


def test_the_last_sixteen_exited_workers_are_remembered(starts: Starts) -> None:
    """A proxy may ask what happened to its batch. Live workers are always known."""
    first = starts.start()
    for _ in range(20):
        starts.start()
        starts.started[-1].end()
        starts.loop.settle()
    starts.start()
    assert starts.forgotten == ["w2", "w3", "w4", "w5"]
    assert list(starts.workers) == [first, *(f"w{number}" for number in range(6, 23))]


def test_an_adopted_worker_is_known(starts: Starts) -> None:
    worker = starts.loop.ask(lambda: Parked(50))
    starts.started.append(worker)
    starts.loop.ask(lambda: starts.starts.adopt(worker))
    assert starts.workers == {"w50": worker}
