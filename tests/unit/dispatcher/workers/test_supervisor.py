"""How an exited worker is replaced: failures of the instance, back-off, crash loops, and immediate retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes.fake_worker import SPEC, FakeWorker

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.telemetry.events.explain import CRASH_LOOP
from pytriton.dispatcher.workers.pool import Pool
from pytriton.dispatcher.workers.supervisor import (
    ImmediateRetry,
    RestartPolicy,
    Supervisor,
)
from pytriton.dispatcher.workers.worker import Worker

#: A delay longer than any test.
NEVER_S = 1000.0


class Instance:
    """A supervisor whose workers load or fail as the test says."""

    def __init__(self, limit: int | None = None, first_delay_s: float = NEVER_S) -> None:
        self.loads = True
        self.started: list[FakeWorker] = []
        self._changes = asyncio.Condition()
        policy = RestartPolicy(10.0, limit, first_delay_s, NEVER_S)
        self.supervisor = Supervisor(0, SPEC, self.start, policy, self._on_change)

    async def start(self, slot: int) -> Worker:
        worker = FakeWorker(len(self.started))
        self.started.append(worker)
        if self.loads:
            worker.loaded()
        else:
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        return worker

    async def _on_change(self, ready: str | None) -> None:
        async with self._changes:
            self._changes.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._changes:
            await asyncio.wait_for(self._changes.wait_for(condition), 10)

    async def serving(self, count: int) -> FakeWorker:
        """Wait until this many workers have been started; return the serving one."""
        await self.until(lambda: len(self.started) == count and self.supervisor.serving is not None)
        return self.started[-1]

    @property
    def state(self) -> str:
        return self.supervisor.info(0, standby=False).state


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_workers_crashed_by_a_batch_are_always_replaced_at_once() -> None:
    """Even with a restart limit of 0, and if none of them answered a batch."""

    async def test() -> None:
        one = Instance(limit=0)
        for count in range(1, 30):
            (await one.serving(count)).end(in_batch=True)
        worker = await one.serving(30)
        info = one.supervisor.info(0, standby=False)
        assert (info.state, info.restarts, info.consecutive_exits) == ("ready", 29, 29)
        assert not one.supervisor.is_crash_looping
        assert "29 exits in a row" in (one.supervisor.problem() or "")
        worker.begin()
        worker.answer()
        assert one.supervisor.problem() is None
        assert one.supervisor.info(0, standby=False).consecutive_exits == 0
        await one.supervisor.stop(0)

    run(test)


def test_a_crash_loop_is_reported_and_retried_forever() -> None:
    async def test() -> None:
        one = Instance(first_delay_s=0.0)
        await one.serving(1)
        one.loads = False
        one.started[0].end()
        await one.until(lambda: len(one.started) > 20)
        assert one.supervisor.is_crash_looping
        reported = one.supervisor.problem() or ""
        assert "instance 0 is in a crash loop" in reported
        assert "model m could not be loaded: no file" in reported
        one.loads = True
        await one.until(lambda: one.supervisor.serving is not None)
        assert not one.supervisor.is_crash_looping
        await one.supervisor.stop(0)

    run(test)


@pytest.mark.parametrize("limit", [None, 1], ids=["backing off", "restart limit reached"])
def test_a_retry_loads_a_worker_at_once(limit: int | None) -> None:
    async def test() -> None:
        one = Instance(limit)
        await one.serving(1)
        one.loads = False
        one.started[0].end()
        resting_state = "backoff" if limit is None else "failed"
        await one.until(lambda: len(one.started) == 2 and one.state == resting_state)
        reported = one.supervisor.problem() or ""
        if limit is None:
            next_try_at = one.supervisor.info(0, standby=False).next_try_at
            assert next_try_at is not None
            assert NEVER_S - 60 < next_try_at - time.time() < NEVER_S
            assert reported == ""  # two in a row are not a crash loop yet
        else:
            assert "instance 0 has reached its restart limit" in reported
        with pytest.raises(RemoteFailure, match="no file"):
            await one.supervisor.retry_now()
        assert len(one.started) == 3
        await one.until(lambda: one.state == resting_state)
        one.loads = True
        await one.supervisor.retry_now()
        assert (one.state, len(one.started)) == ("ready", 4)
        await one.supervisor.retry_now()  # nothing to do
        assert len(one.started) == 4
        await one.supervisor.stop(0)

    run(test)


def test_waiters_for_a_retry_are_notified_when_the_instance_stops() -> None:
    async def test() -> None:
        one = Instance()
        await one.serving(1)
        one.loads = False
        one.started[0].end()
        await one.until(lambda: len(one.started) == 2 and one.state == "backoff")
        retry_task = asyncio.ensure_future(one.supervisor.retry_now())
        await asyncio.sleep(0)
        await one.supervisor.stop(0)
        with pytest.raises(RemoteFailure, match=r"is being stopped|no file"):
            await retry_task

    run(test)


def test_delays_grow_to_the_maximum() -> None:
    policy = RestartPolicy(1.0, None, 0.5, 30.0)
    delays = [policy.delay_s(failures) for failures in (1, 2, 3, 8, 9, 100_000)]
    assert delays == [0.0, 0.5, 1.0, 30.0, 30.0, 30.0]
    assert RestartPolicy(1.0, 2, 0.5, 30.0).delay_s(3) is None


def test_proxies_do_not_wait_for_a_crash_loop_to_end() -> None:
    """A proxy that asks for a worker gets the reason and the time of the next attempt instead of waiting."""

    async def test() -> None:
        loads = True
        started: list[FakeWorker] = []

        async def start(spec: object, slot: int, registrant: object) -> Worker:
            worker = FakeWorker(len(started))
            started.append(worker)
            if loads:
                worker.loaded()
            else:
                worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
            return worker

        async def report(_: messages.Progress) -> None:
            pass

        pool = Pool(SPEC, start, RestartPolicy(10.0, None, 0.0, NEVER_S))
        pool_of_long_pauses: Any = RestartPolicy(10.0, None, NEVER_S, NEVER_S)
        await pool.start(report)
        pool._instances.supervisors[0]._policy = pool_of_long_pauses
        loads = False
        started[0].end()
        await pool.until(lambda: pool.infos()[0].next_try_at is not None and len(started) == 2)
        waiting = asyncio.ensure_future(pool.proxies.route("proxy", None))
        with pytest.raises(RemoteFailure, match=r"instance 0 of model m has no worker.*no file"):
            await pool.retry_now(report)  # the third failure in a row
        with pytest.raises(
            RemoteFailure, match=r"crash loop.*no file.*the next attempt is in"
        ) as caught:
            await waiting
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert len(started) == CRASH_LOOP
        (problem,) = pool.problems()
        assert problem.startswith("model m: instance 0 is in a crash loop: 3 exits in a row")
        loads = True
        await pool.retry_now(report)
        attached = await pool.proxies.route("proxy", None)
        assert attached.worker == "w3"
        await pool.stop(0)

    run(test)


# ── concurrent requests for an immediate retry ───────────────────────────────────────────────────


def play(scene: Callable[[ImmediateRetry], Awaitable[None]]) -> None:
    async def played() -> None:
        await scene(ImmediateRetry())

    asyncio.run(played())


def test_concurrent_requests_share_one_attempt_and_its_failure() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        requests = [asyncio.create_task(retry.request()) for _ in range(2)]
        await retry.requested.wait()
        await asyncio.sleep(0)
        retry.finish(RemoteFailure(ErrorKind.LOAD_FAILED, "no weights"))
        for one in requests:
            with pytest.raises(RemoteFailure, match="no weights"):
                await one
        again = asyncio.create_task(retry.request())
        await retry.requested.wait()
        assert not again.done()
        retry.finish(None)
        await again
        assert not retry.requested.is_set()

    play(scene)


def test_a_cancelled_request_leaves_the_attempt_to_others() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        cancelled, other = (asyncio.create_task(retry.request()) for _ in range(2))
        await retry.requested.wait()
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert retry.requested.is_set()
        retry.finish(None)
        await other

    play(scene)


def test_requests_fail_after_an_internal_error_ended_the_supervisor() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        early = asyncio.create_task(retry.request())
        await retry.requested.wait()
        await asyncio.sleep(0)
        retry.give_up(ValueError("no such proxy"))
        for request in (early, asyncio.create_task(retry.request())):
            with pytest.raises(RemoteFailure, match="internal error: no such proxy"):
                await asyncio.wait_for(request, 10)

    play(scene)
