"""Random histories of a pool: workers load, fail, crash and become due; proxies attach, detach and are scaled.

A fake clock and fake workers: no process, no waiting. After every step, everything runs until it waits, and the
invariants are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import structlog
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from support.examples import examples

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.pool import Pool
from pytriton.dispatcher.workers.supervisor import RestartPolicy
from pytriton.dispatcher.workers.worker import Worker

_START_S, _FIRST_S, _MAX_DELAY_S = 60.0, 0.5, 30.0
_MAX_INSTANCES = 4


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the log: thousands of histories would print every change of every instance."""
    former = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**former)


class PoolHistories(RuleBasedStateMachine):
    """One pool, its workers and proxies, and pending requests."""

    proxies = Bundle("proxies")

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.workers: list[FakeWorker] = []
        self.routed: dict[str, asyncio.Task[messages.Attached]] = {}
        self.serial = itertools.count()
        self.spec = SPEC
        self.limit: int | None = None
        self.scaling: asyncio.Task[None] | None = None

    # ── what the pool is given ───────────────────────────────────────────────────────────────────

    async def start_worker(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None
    ) -> Worker:
        number = next(self.serial)
        self.workers.append(FakeWorker(number, self.spec, slot, greeted=False))
        return self.workers[-1]

    async def report(self, progress: messages.Progress) -> None:
        """Do nothing: nobody waits for progress in these tests."""

    @initialize(
        count=st.integers(1, 3),
        standby_workers=st.integers(0, 1),
        limit=st.sampled_from([None, None, 0, 2]),
    )
    def start(self, count: int, standby_workers: int, limit: int | None) -> None:
        self.limit = limit
        self.spec = msgspec.structs.replace(SPEC, instances=count, standby_workers=standby_workers)

        async def started() -> Pool:
            policy = RestartPolicy(_START_S, limit, _FIRST_S, _MAX_DELAY_S)
            pool = Pool(self.spec, self.start_worker, policy)
            starting = asyncio.ensure_future(pool.start(self.report))
            while len(self.workers) < count + standby_workers:
                await asyncio.sleep(0)
            for worker in self.workers:
                worker.greet()
                worker.loaded()
            await starting
            return pool

        self.pool = self.loop.run(started())
        self.loop.settle()

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def alive(self, such: Callable[[FakeWorker], bool] = lambda _: True) -> list[FakeWorker]:
        return [worker for worker in self.workers if worker.alive and such(worker)]

    def worker(self, name: str) -> FakeWorker:
        return next(one for one in self.workers if one.name == name)

    def pick(self, data: Any, among: list[FakeWorker]) -> FakeWorker:
        picked: FakeWorker = data.draw(st.sampled_from(among))
        return picked

    def has_loading(self) -> bool:
        return bool(self.alive(lambda worker: not worker.ready.done()))

    def has_ready(self) -> bool:
        return bool(self.alive(lambda worker: worker.ready.done()))

    @precondition(has_loading)
    @rule(data=st.data(), well=st.booleans())
    def loads(self, data: Any, well: bool) -> None:
        worker = self.pick(data, self.alive(lambda worker: not worker.ready.done()))
        if not worker.greeted.done():
            worker.greet()
        if well:
            worker.loaded()
        else:
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        self.loop.settle()

    @precondition(has_loading)
    @rule(data=st.data())
    def dies_while_it_loads(self, data: Any) -> None:
        self.pick(data, self.alive(lambda worker: not worker.ready.done())).end()
        self.loop.settle()

    @precondition(has_ready)
    @rule(data=st.data(), answered=st.booleans(), in_batch=st.booleans())
    def dies(self, data: Any, answered: bool, in_batch: bool) -> None:
        worker = self.pick(data, self.alive(lambda worker: worker.ready.done()))
        if answered:
            worker.begin()
            worker.answer()
        if in_batch:
            worker.begin()
        worker.end()
        self.loop.settle()

    @precondition(has_ready)
    @rule(data=st.data())
    def request_recycle(self, data: Any) -> None:
        self.pick(data, self.alive(lambda worker: worker.ready.done())).become_due()
        self.loop.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.advance(seconds)

    # ── proxies and people ───────────────────────────────────────────────────────────────────────

    @rule(target=proxies)
    def attaches(self) -> str:
        name = f"p{next(self.serial)}"
        self.routed[name] = self.loop.create_task(self.pool.proxies.route(name, None))
        self.loop.settle()
        return name

    @rule(name=proxies)
    def asks_again(self, name: str) -> None:
        """Ask for a worker again after a lane ended, because its worker exited or gave up the proxy."""
        before = self.routed[name]
        if not before.done():
            return
        gone = None
        if before.exception() is None:
            worker = self.worker(before.result().worker)
            gone = None if worker.alive else worker.name
        self.routed[name] = self.loop.create_task(self.pool.proxies.route(name, gone))
        self.loop.settle()

    @rule(name=consumes(proxies))
    def detaches(self, name: str) -> None:
        routed = self.routed.pop(name)
        routed.cancel()
        self.loop.settle()
        self.loop.ask(lambda: self.pool.proxies.detach(name))
        self.loop.settle()

    def is_still(self) -> bool:
        return self.scaling is None or self.scaling.done()

    @precondition(is_still)
    @rule(count=st.integers(1, _MAX_INSTANCES))
    def is_scaled(self, count: int) -> None:
        spec = msgspec.structs.replace(self.spec, instances=count)
        growing = count > self.spec.instances
        doing = self.pool.grow(spec, self.report) if growing else self.pool.shrink(spec, 1.0)
        self.scaling = self.loop.create_task(self._scale(doing, spec))
        self.loop.settle()

    async def _scale(self, doing: Any, spec: messages.ModelSpec) -> None:
        with contextlib.suppress(RemoteFailure):
            # The pool is unchanged, which the invariants check.
            await doing
            self.spec = spec

    @precondition(is_still)
    @rule()
    def is_healed(self) -> None:
        async def retry_now() -> None:
            with contextlib.suppress(RemoteFailure):  # a worker could not be loaded
                await self.pool.retry_now(self.report)

        self.scaling = self.loop.create_task(retry_now())
        self.loop.settle()

    # ── what must always hold ────────────────────────────────────────────────────────────────────

    @invariant()
    def there_are_never_more_workers_than_asked_for(self) -> None:
        if not hasattr(self, "pool"):
            return
        slots: dict[int, list[FakeWorker]] = {}
        for worker in self.alive():
            slots.setdefault(worker.slot, []).append(worker)
        most = (
            max(self.spec.instances, 0 if self.is_still() else _MAX_INSTANCES)
            + self.spec.standby_workers
        )
        assert set(slots) <= set(range(most)), "a worker of an instance that there is not"
        for workers in slots.values():
            staying = [one for one in workers if not one.is_ending]
            assert len(staying) <= 2, "two workers at most: a due one, and what takes its place"
            if len(staying) == 2:
                assert staying[0].recycle_due.done(), "two workers for an instance, and none is due"

    @invariant()
    def a_proxy_has_a_worker_that_was_ready_and_lives_or_its_end_is_to_be_seen(self) -> None:
        for routed in self.routed.values():
            if routed.done() and routed.exception() is None:
                worker = self.worker(routed.result().worker)
                assert worker.ready.done()
                assert worker.ready.exception() is None

    @invariant()
    def nobody_waits_for_a_worker_while_one_is_ready(self) -> None:
        waiting = [name for name, task in self.routed.items() if not task.done()]
        if waiting:
            assert not self.loop.ask(lambda: self.pool.can_serve)
            assert not self.loop.ask(lambda: self.pool.is_crash_looping), "who waits is to be told"

    @invariant()
    def a_refused_proxy_gets_the_reason(self) -> None:
        for routed in self.routed.values():
            if routed.done() and routed.exception() is not None:
                text = str(routed.exception())
                assert "has no worker" in text
                assert (
                    "crash loop" in text
                    or "reached its restart limit" in text
                    or "are waiting for this" in text
                )

    @invariant()
    def an_instance_is_given_up_only_where_a_setting_says_so(self) -> None:
        if not hasattr(self, "pool"):
            return
        for info in self.loop.ask(self.pool.infos):
            assert info.state != "failed" or self.limit is not None
            if info.state == "backoff":
                assert info.next_try_at is not None or info.pid is None

    def teardown(self) -> None:
        """After any history, the pool can be stopped; and given time, every instance is retried."""
        try:
            if hasattr(self, "pool"):
                self._look_at_the_end()
        finally:
            for worker in self.alive():
                worker.end()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.settle()
            self.loop.close()
            asyncio.set_event_loop(None)

    def _look_at_the_end(self) -> None:
        if self.limit is None and self.is_still():
            tried = {one.slot for one in self.alive()}
            started = len(self.workers)
            self.loop.advance(2 * _MAX_DELAY_S)
            tried |= {one.slot for one in self.workers[started:]}
            assert tried == set(range(self.spec.instances + self.spec.standby_workers))
        for task in (*self.routed.values(), *([self.scaling] if self.scaling else [])):
            task.cancel()
        self.loop.settle()
        for worker in self.alive(lambda worker: worker.is_ending):
            worker.end()
        self.loop.run(self.pool.stop(1.0))
        self.loop.settle()
        assert self.alive() == []


TestPoolHistories = PoolHistories.TestCase
#: Without shrinking: histories are short, and shrinking one takes minutes.
TestPoolHistories.settings = settings(
    max_examples=examples(100),
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
)
