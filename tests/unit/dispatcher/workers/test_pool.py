"""What a pool reports while it loads workers, and which failure reaches the caller or a waiting proxy."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.telemetry.events.explain import CRASH_LOOP
from pytriton.dispatcher.workers.pool import Pool
from pytriton.dispatcher.workers.supervisor import RestartPolicy
from pytriton.dispatcher.workers.worker import Worker


class StartedPool:
    """A pool, and its workers. `failing` lists the slots whose next workers fail to load."""

    def __init__(self, loop: VirtualLoop, instances: int = 3, limit: int | None = 0) -> None:
        self.loop = loop
        self.failing: set[int] = set()
        self.workers: list[FakeWorker] = []
        self.progress: list[str] = []
        policy = RestartPolicy(10.0, limit, 60.0, 60.0)
        spec = msgspec.structs.replace(SPEC, instances=instances)
        self.pool = loop.ask(lambda: Pool(spec, self._start_worker, policy))

    async def _start_worker(self, spec: object, slot: int, registrant: object) -> Worker:
        worker = FakeWorker(len(self.workers), slot=slot)
        self.workers.append(worker)
        if slot in self.failing:
            worker.failed(messages.WorkerFailed(worker.name, "no file", "Traceback"))
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
def three(loop: VirtualLoop) -> Iterator[StartedPool]:
    pool = StartedPool(loop)
    yield pool
    loop.run(pool.pool.stop(0))
    loop.settle()


def test_each_loaded_worker_is_reported(three: StartedPool) -> None:
    three.start()
    assert three.progress == [
        "loading 3 workers",
        "worker 1 of 3 loaded",
        "worker 2 of 3 loaded",
        "worker 3 of 3 loaded",
    ]


def test_a_worker_that_cannot_be_loaded_fails_the_start(three: StartedPool) -> None:
    three.failing = {1}
    with pytest.raises(RemoteFailure, match="no file"):
        three.start()


def test_a_retry_loads_missing_workers_and_names_failed_instances(three: StartedPool) -> None:
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
        "instance 2 of model m has no worker: model m could not be loaded: no file"
    )
    assert three.progress == ["loading 2 workers to replace exited ones"]
    assert [info.state for info in three.loop.ask(three.pool.infos)] == ["ready", "ready", "failed"]


def test_a_retry_reports_nothing_if_no_worker_is_missing(three: StartedPool) -> None:
    three.start()
    three.retry_now()
    assert three.progress == []


def test_proxies_do_not_wait_for_a_crash_loop_to_end(loop: VirtualLoop) -> None:
    """A proxy that asks for a worker gets the reason and the time of the next attempt instead of waiting."""
    one = StartedPool(loop, instances=1, limit=None)
    one.start()
    one.failing = {0}
    loop.ask(one.workers[0].end)
    loop.settle()
    waiting = loop.create_task(one.pool.proxies.route("proxy", None))
    with pytest.raises(RemoteFailure, match=r"instance 0 of model m has no worker.*no file"):
        one.retry_now()  # the third failure in a row
    with pytest.raises(
        RemoteFailure, match=r"crash loop.*no file.*the next attempt is in 60 s"
    ) as caught:
        loop.run(waiting)
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert len(one.workers) == CRASH_LOOP
    (problem,) = loop.ask(one.pool.problems)
    assert problem.startswith("model m: instance 0 is in a crash loop: 3 exits in a row")
    one.failing = set()
    one.retry_now()
    assert loop.run(one.pool.proxies.route("proxy", None)).worker == "w3"
    loop.run(one.pool.stop(0))
    loop.settle()
