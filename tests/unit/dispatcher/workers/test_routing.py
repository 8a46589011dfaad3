"""Which worker a proxy gets, or why none, while workers start and exit, and proxies attach, detach or ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop
from hypothesis import given
from hypothesis import strategies as st

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY
from pytriton.dispatcher.workers.instances import Instances
from pytriton.dispatcher.workers.routing import ProxyRouter, Routes
from pytriton.dispatcher.workers.suspension import ResumeBounds, Suspension
from pytriton.dispatcher.workers.worker import Worker

#: Each version has workers of its own.
_PYTHON_MODEL = messages.PythonModel("{}")


class Slot:
    """The part of an instance that its supervisor shows to routing."""

    def __init__(self, version: int | None) -> None:
        self.version = version
        self.serving: FakeWorker | None = None
        self.is_crash_looping = False
        self.why: str | None = None

    def problem(self) -> str | None:
        return self.why


class Served:
    """The proxies of one model, whose workers the test controls: w1 is that of the first slot."""

    def __init__(self, loop: VirtualLoop, slots: int = 2, **spec: Any) -> None:
        self.loop = loop
        self.spec = msgspec.structs.replace(SPEC, **spec)
        self.changed = asyncio.Condition()
        self.workers: dict[str, Worker] = {}
        self.suspension = loop.ask(lambda: Suspension("m", ResumeBounds(), LOG_ONLY))
        self.instances = Instances(self.spec, self.suspension)
        own = self.instances.own_versions
        self.slots = [Slot(own[n % len(own)] if own else None) for n in range(slots)]
        self.instances.supervisors = self.slots  # type: ignore[assignment]  # all that is asked of them
        self.proxies = ProxyRouter(
            self.instances, self.workers, self.suspension, self.changed, self.wake_up, LOG_ONLY
        )
        self.resumes = 0

    def wake_up(self) -> None:
        self.resumes += 1

    def serves(self, *slots: int) -> None:
        """Let exactly these slots have serving workers."""
        for number, slot in enumerate(self.slots, 1):
            worker = None
            if number in slots:
                worker = slot.serving or self._worker(number, slot)
            slot.serving = worker
        self.report()

    def _worker(self, number: int, slot: Slot) -> FakeWorker:
        worker = self.loop.ask(lambda: FakeWorker(number, self.spec, number - 1))
        worker.version = slot.version or 1
        self.workers[worker.name] = worker
        return worker

    def report(self) -> None:
        async def reported() -> None:
            async with self.changed:
                self.changed.notify_all()

        self.loop.run(reported())
        self.loop.settle()

    def ask(self, proxy: str, lost: str | None = None, **more: Any) -> asyncio.Task[Any]:
        asked = self.loop.create_task(self.proxies.route(proxy, lost, **more))
        self.loop.settle()
        return asked

    def assigned(self, proxy: str, lost: str | None = None, **more: Any) -> str:
        """Return the worker assigned to a proxy, or the reason why there is none."""
        return answer_to(self.ask(proxy, lost, **more))

    def lanes(self) -> list[int]:
        return [self.proxies.lanes_of(f"w{number}") for number in range(1, len(self.slots) + 1)]

    def withdrawn(self) -> list[int]:
        """Return how many proxies each worker was asked to give up."""
        self.loop.settle()
        return [
            worker.lanes_withdrawn
            for worker in self.workers.values()
            if isinstance(worker, FakeWorker)
        ]

    def close(self) -> None:
        for worker in self.workers.values():
            if isinstance(worker, FakeWorker) and worker.alive:
                worker.end()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.settle()


def answer_to(request: asyncio.Task[Any]) -> str:
    """Return the assigned worker, or the error; "" while the request waits."""
    if not request.done():
        return ""
    error = request.exception()
    return str(error) if error is not None else request.result().worker


# ── proxies that leave while they wait ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("goes", ["detaches", "tritonserver ends"])
def test_a_proxy_that_detaches_while_it_waits_gets_no_worker(loop: VirtualLoop, goes: str) -> None:
    """Otherwise it would count forever: its model would always have proxies, and a worker would lack one."""
    served = Served(loop)
    asked = served.ask("p1")
    if goes == "detaches":
        loop.ask(lambda: served.proxies.detach("p1"))
    else:
        loop.ask(served.proxies.forget_all)
    served.serves(1)
    assert "has exited" in answer_to(asked)
    assert len(served.proxies) == 0
    assert served.assigned("p2") == "w1"
    served.close()


def test_a_detached_proxy_learns_that_its_model_is_being_stopped(loop: VirtualLoop) -> None:
    """It may still have a batch, whose clients get the reason."""
    served = Served(loop)
    asked = served.ask("p1", batch=True)
    loop.ask(lambda: served.proxies.detach("p1"))
    served.instances.stopping = True
    served.report()
    assert answer_to(asked) == "model m is being stopped"
    served.close()


def test_only_the_last_request_of_a_proxy_is_answered(loop: VirtualLoop) -> None:
    served = Served(loop)
    first = served.ask("p1", avoid=["w1"])
    second = served.ask("p1")
    served.serves(1)
    assert answer_to(second) == "w1"
    served.serves(1, 2)
    assert "sent a newer request" in answer_to(first)
    assert served.lanes() == [1, 0]  # w2 does not count a proxy that never reached it
    served.close()


def test_a_cancelled_waiter_leaves_nothing(loop: VirtualLoop) -> None:
    served = Served(loop)
    asked = served.ask("p1")
    asked.cancel()
    served.serves(1)
    assert len(served.proxies) == 0
    assert served.assigned("p1") == "w1"
    served.close()


# ── which worker a proxy gets ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ready", "question", "given"),
    [
        ([1], {}, "w1"),
        ([1, 2], {"lost": "w1"}, "w2"),
        ([1], {"lost": "w1"}, ""),  # its exit is not noticed yet
        ([1, 2], {"avoid": ["w1"]}, "w2"),
        ([1, 2], {"avoid": ["w1", "w2"]}, "model m: all its workers wait for this request"),
        ([], {"avoid": ["w1"]}, ""),  # another one comes
        ([1], {"lost": "unheard of"}, "w1"),
        ([1], {"version": 7}, "w1"),  # each serves all versions
    ],
)
def test_which_worker_a_proxy_gets(
    loop: VirtualLoop, ready: Collection[int], question: dict[str, Any], given: str
) -> None:
    served = Served(loop)
    served.serves(*ready)
    assert served.assigned("p1", **question) == given
    served.close()


def test_each_version_has_its_own_workers(loop: VirtualLoop) -> None:
    served = Served(loop, 4, versions=[1, 3], python_model=_PYTHON_MODEL, instances=2)
    served.serves(1, 2)
    assert served.assigned("p1", version=3) == "w2"
    assert served.assigned("p2", version=3) == "w2"
    assert served.assigned("p3", version=2) == "model m has no version 2; it has [1, 3]"
    served.serves(1, 2, 3)
    loop.run(served.proxies.balance())
    assert served.withdrawn() == [0, 0, 0]  # w1 and w3 serve another version
    served.serves(1, 2, 3, 4)
    loop.run(served.proxies.balance())
    assert served.withdrawn() == [0, 1, 0, 0]
    served.close()


def test_a_worker_gives_up_one_proxy_at_a_time(loop: VirtualLoop) -> None:
    served = Served(loop, 3)
    served.serves(1)
    assert [served.assigned(f"p{number}") for number in range(3)] == ["w1"] * 3
    served.serves(1, 2, 3)
    for _ in range(3):
        loop.run(served.proxies.balance())
    assert served.withdrawn() == [1, 0, 0]
    assert served.assigned("p0") == "w2"
    assert served.withdrawn() == [2, 0, 0]  # for w3
    loop.ask(lambda: served.proxies.detach("p1"))
    assert served.withdrawn() == [2, 0, 0]  # w1 has one left
    served.close()


@pytest.mark.parametrize(
    ("ready", "waiting", "is_stuck"),
    [([1, 2], ["w1"], False), ([1, 2], ["w1", "w2"], True), ([], [], False), ([1], ["w9"], False)],
)
def test_a_call_cycle_fails_if_all_workers_wait_for_it(
    loop: VirtualLoop, ready: Collection[int], waiting: list[str], is_stuck: bool
) -> None:
    served = Served(loop)
    served.serves(*ready)
    verdict = served.proxies.judge_call(["m", "n"], waiting)
    assert verdict.action == ("fail" if is_stuck else "retry")
    assert ("form a cycle, m → n → m" in verdict.text) is is_stuck
    served.close()


@pytest.mark.parametrize(
    ("spec", "native", "lanes"),
    [
        ({"max_inflight_batches": 0}, True, 4),
        ({"max_inflight_batches": 0, "instances": 2}, True, 2),
        ({"max_inflight_batches": 0}, False, 2),
        ({"max_inflight_batches": 0, "python_model": _PYTHON_MODEL}, True, 4),
        ({"max_inflight_batches": 2}, True, 2),
        ({"max_inflight_batches": 3, "instances": 2}, False, 3),
    ],
    ids=[
        "only worker",
        "several workers",
        "Python proxies",
        "model.py",
        "chosen",
        "chosen for several",
    ],
)
def test_how_many_proxies_a_worker_gets(
    loop: VirtualLoop, spec: dict[str, Any], native: bool, lanes: int
) -> None:
    suspension = loop.ask(lambda: Suspension("m", ResumeBounds(), LOG_ONLY))
    instances = Instances(msgspec.structs.replace(SPEC, **spec), suspension, native=native)
    assert instances.lanes == lanes


# ── suspension ────────────────────────────────────────────────────────────────────────────────────────


def test_only_a_batch_resumes_a_model(loop: VirtualLoop) -> None:
    served = Served(loop)
    served.suspension.suspended = True
    assert served.assigned("p1") == ""  # it asks again when it has a batch
    assert (len(served.proxies), served.resumes) == (1, 0)
    batch = served.ask("p1", batch=True)
    assert (answer_to(batch), served.resumes) == ("", 1)
    served.suspension.suspended = False
    served.serves(2)
    assert answer_to(batch) == "w2"
    served.close()


# ── why no worker serves ────────────────────────────────────────────────────────────────────────────

_LOOP = "model m has no worker: instance 0 is in a crash loop; instance 1 is, too. See"


@pytest.mark.parametrize(
    ("crash_looping", "state", "why"),
    [
        ([1, 2], {}, _LOOP),
        ([1], {}, ""),
        ([1, 2], {"stopping": True}, "model m is being stopped"),
        ([], {"stopping": True}, "model m is being stopped"),
        ([], {"disabled_reason": "its client has ended"}, "its client has ended"),
        ([1, 2], {"disabled_reason": "gone", "stopping": True}, "gone"),
    ],
)
def test_waiting_proxies_learn_why_no_worker_comes(
    loop: VirtualLoop, crash_looping: Collection[int], state: dict[str, Any], why: str
) -> None:
    served = Served(loop)
    asked = served.ask("p1")
    for number in crash_looping:
        slot = served.slots[number - 1]
        slot.is_crash_looping = True
        slot.why = "instance 0 is in a crash loop" if number == 1 else "instance 1 is, too"
    for name, value in state.items():
        setattr(served.instances, name, value)
    served.report()
    assert answer_to(asked).startswith(why) if why else not asked.done()
    served.close()


@pytest.mark.parametrize("sleeps", ["suspended", "lacks_room"])
def test_a_crash_loop_before_the_suspension_does_not_count(loop: VirtualLoop, sleeps: str) -> None:
    served = Served(loop)
    for slot in served.slots:
        slot.is_crash_looping = True
    assert served.instances.is_crash_looping()
    setattr(served.suspension, sleeps, True)
    assert not served.instances.is_crash_looping()
    served.instances.disabled_reason = "its client has ended"
    assert served.instances.is_crash_looping()
    served.close()


def test_status_distinguishes_standby_and_suspended_workers(loop: VirtualLoop) -> None:
    served = Served(loop, 2)
    reported: list[tuple[int, bool]] = []
    for index, slot in enumerate(served.slots):
        as_supervisor: Any = slot
        as_supervisor.index, as_supervisor.worker = index, SimpleNamespace(name=f"w{index + 1}")
        as_supervisor.info = lambda lanes, standby: reported.append((lanes, standby))
    served.serves(1)
    served.assigned("p1")
    served.instances.infos(served.proxies.lanes_of)
    served.suspension.suspended = True
    served.instances.infos(served.proxies.lanes_of)
    assert reported == [(1, False), (0, True), (1, True), (0, True)]
    served.close()


def test_a_stopping_pool_refuses_immediately(loop: VirtualLoop) -> None:
    served = Served(loop)
    served.instances.stopping = True
    with pytest.raises(RemoteFailure, match="is being stopped"):
        loop.run(served.proxies.route("p1", None))
    served.close()


# ── the routing table ────────────────────────────────────────────────────────────────────────────

WORKERS = ["w1", "w2", "w3"]


def loads(routes: Routes) -> list[int]:
    return [routes.lanes_of(worker) for worker in WORKERS]


def routes_for(lanes: int) -> Routes:
    return Routes(lambda: lanes)


def test_a_proxy_that_is_assigned_again_counts_once() -> None:
    routes = routes_for(2)
    for _ in range(3):
        routes.assign("p0", WORKERS)
    assert len(routes) == 1
    assert routes.worker_of["p0"] == "w1"


def test_surplus_proxies_go_to_the_least_busy_workers() -> None:
    """A worker has exited without a replacement: its four proxies are spread over the others."""
    routes = routes_for(4)
    for i in range(12):
        routes.assign(f"p{i}", WORKERS)
    for i in range(4):
        assert routes.worker_of[f"p{i}"] == "w1"
        routes.assign(f"p{i}", WORKERS[1:])
    assert loads(routes) == [0, 6, 6]


def test_a_replacement_worker_gets_its_proxies_back_one_at_a_time() -> None:
    """Each from a worker that has too many at that moment."""
    routes = routes_for(2)
    for i in range(6):
        routes.assign(f"p{i}", ["w2", "w3"])
    assert loads(routes) == [0, 3, 3]
    given_away = 0
    while (giver := routes.giver_for("w1")) is not None:
        proxy = next(f"p{i}" for i in range(6) if routes.worker_of.get(f"p{i}") == giver)
        assert routes.assign(proxy, WORKERS) == "w1"
        given_away += 1
    assert given_away == 2
    assert loads(routes) == [2, 2, 2]
    assert [routes.giver_for(worker) for worker in WORKERS] == [None] * 3
    assert routes_for(2).giver_for("w1") is None


STEPS = st.lists(st.tuples(st.integers(0, 7), st.sets(st.sampled_from(WORKERS), min_size=1)))


@given(st.integers(1, 3), STEPS)
def test_a_partly_filled_worker_is_preferred_then_the_least_busy(
    lanes: int, steps: list[tuple[int, set[str]]]
) -> None:
    routes = routes_for(lanes)
    for proxy, ready in steps:
        routes.forget(f"p{proxy}")
        before = {worker: routes.lanes_of(worker) for worker in ready}
        chosen = routes.assign(f"p{proxy}", sorted(ready))
        assert routes.lanes_of(chosen) == before[chosen] + 1
        begun = [count for count in before.values() if 0 < count < lanes]
        assert before[chosen] == (max(begun) if begun else min(before.values()))
    assert len(routes) == sum(loads(routes))


@given(st.integers(1, 3), STEPS)
def test_balancing_ends_with_no_worker_overloaded_while_another_lacks_proxies(
    lanes: int, steps: list[tuple[int, set[str]]]
) -> None:
    routes = routes_for(lanes)
    for proxy, ready in steps:
        routes.assign(f"p{proxy}", sorted(ready))
    for _ in range(8):  # as many as there are proxies at most
        asked = [(routes.giver_for(idle), idle) for idle in WORKERS]
        moves = [(giver, idle) for giver, idle in asked if giver is not None]
        assert all(routes.lanes_of(giver) > lanes for giver, _ in moves)
        if not moves:
            break
        giver = moves[0][0]
        routes.assign(
            next(f"p{i}" for i in range(8) if routes.worker_of.get(f"p{i}") == giver), WORKERS
        )
    assert max(loads(routes)) <= lanes or min(loads(routes)) >= lanes
