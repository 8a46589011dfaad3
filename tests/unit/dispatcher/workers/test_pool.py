"""The progress reported by a pool while it loads several workers, and which failure reaches the caller."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.pool import Pool
from pytriton.dispatcher.workers.supervisor import RestartPolicy
from pytriton.dispatcher.workers.worker import Worker


class PoolOfThree:
    """A pool of three instances. `failing` lists the slots whose next workers fail to load."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.failing: set[int] = set()
        self.workers: list[FakeWorker] = []
        self.progress: list[str] = []
        policy = RestartPolicy(10.0, 0, 0.0, 0.0)
        spec = msgspec.structs.replace(SPEC, instances=3)
        self.pool = loop.ask(lambda: Pool(spec, self._start_worker, policy))

    async def _start_worker(self, spec: object, slot: int, registrant: object) -> Worker:
        worker = FakeWorker(len(self.workers), slot=slot)
        self.workers.append(worker)
        if slot in self.failing:
            worker.failed(messages.WorkerFailed(worker.name, "no weights", "Traceback"))
        else:
            worker.loaded()
        return worker

    async def report(self, progress: messages.Progress) -> None:
        self.progress.append(progress.text)

    def start(self) -> None:
        self.loop.run(self.pool.start(self.report))

    def retry_now(self) -> None:
        self.progress.clear()
        self.loop.run(self.pool.retry_now(self.report))


@pytest.fixture
def three(loop: VirtualLoop) -> Iterator[PoolOfThree]:
    pool = PoolOfThree(loop)
    yield pool
    loop.run(pool.pool.stop(0))
    loop.settle()


def test_each_loaded_worker_is_reported(three: PoolOfThree) -> None:
    three.start()
    assert three.progress == [
        "loading 3 workers",
        "worker 1 of 3 loaded",
        "worker 2 of 3 loaded",
        "worker 3 of 3 loaded",
    ]


def test_a_worker_that_cannot_be_loaded_fails_the_start(three: PoolOfThree) -> None:
    three.failing = {1}
    with pytest.raises(RemoteFailure, match="no weights"):
        three.start()


def test_a_retry_loads_missing_workers_and_names_failed_instances(three: PoolOfThree) -> None:
    three.start()
    three.failing = {1, 2}
    for worker in three.workers[1:3]:
        three.loop.ask(worker.end)
    three.loop.settle()
    three.failing = {2}
    with pytest.raises(RemoteFailure) as caught:
        three.retry_now()
    assert caught.value.kind is ErrorKind.LOAD_FAILED
    assert caught.value.traceback == "Traceback"
    assert caught.value.text == (
        "instance 2 of model m has no worker: model m could not be loaded: no weights"
    )
    assert three.progress == ["loading 2 workers to replace exited ones"]
    assert [info.state for info in three.loop.ask(three.pool.infos)] == ["ready", "ready", "failed"]


def test_a_retry_reports_nothing_if_no_worker_is_missing(three: PoolOfThree) -> None:
    three.start()
    three.retry_now()
    assert three.progress == []
