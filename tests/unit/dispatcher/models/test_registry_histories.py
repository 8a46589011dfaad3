"""Random histories of the registry: models are registered, replaced, scaled and removed; workers, tritonserver and clients exit.

The whole daemon runs on a virtual clock (fakes/simulated_daemon.py). After every step, everything runs until it waits,
and the invariants are checked.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from fakes.fake_clients import Client, Request
from fakes.fake_worker import FakeWorker
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import examples

from pytriton._protocol import messages

_NAMES = st.sampled_from(["a", "b"])
_MAX_INSTANCES = 3
#: Number of steps of one daemon before it is restarted.
_LONG = 12


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the log: thousands of histories would print every change of every instance."""
    former = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**former)


@pytest.fixture(autouse=True)
def _poll_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll rarely: no model here autoscales or is provisional, and the polls would be half of each history."""
    for name in ("scaling.autoscaler._TICK_S", "models.leases._POLL_INTERVAL_S"):
        monkeypatch.setattr(f"pytriton.dispatcher.{name}", 10.0)


@dataclass
class Asked:
    """A request, its client, and whether the client has cancelled it."""

    request: Request
    client: Client
    given_up: bool = False

    @property
    def pending(self) -> bool:
        return self.request.answer is None and not self.given_up and self.client.lives


class RegistryHistories(RuleBasedStateMachine):
    """Successive daemons in one folder, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="sim-")
        self.asked: list[Asked] = []
        self.obstacles: list[Obstacle] = []
        self.begin()

    def begin(self, plan: str = "serves") -> None:
        self.sim = SimulatedDaemon(Path(self.folder.name), usual_plan=plan)
        self.steps = 0
        self.clients = [self.sim.client, self.sim.connect()]
        self.sim.advance(2.0)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────

    def ask(self, client: Client, request: Request) -> None:
        self.asked.append(Asked(request, client))
        self.sim.settle()

    def client(self, data: Any) -> Client:
        live = [client for client in self.clients if client.lives]
        if not live:
            live = [self.sim.connect()]
            self.clients += live
        picked: Client = data.draw(st.sampled_from(live))
        return picked

    @rule(
        data=st.data(),
        name=_NAMES,
        replace=st.booleans(),
        how=st.sampled_from(["kept", "kept", "kept", "ephemeral", "thread"]),
        instances=st.integers(1, _MAX_INSTANCES),
    )
    def is_registered(self, data: Any, name: str, replace: bool, how: str, instances: int) -> None:
        client = self.client(data)
        isolation = "thread" if how == "thread" else "process"
        request = client.register(
            name,
            replace=replace,
            ephemeral=how == "ephemeral",
            instances=instances,
            isolation=isolation,
        )
        self.ask(client, request)

    @precondition(lambda self: self.known())
    @rule(data=st.data(), instances=st.integers(1, _MAX_INSTANCES))
    def a_kept_one_is_replaced(self, data: Any, instances: int) -> None:
        client = self.client(data)
        name = data.draw(st.sampled_from(self.known()))
        self.ask(client, client.register(name, replace=True, instances=instances))

    def known(self) -> list[str]:
        """Return the models that requests may name, or all."""
        registry = self.sim.services.registry
        busy = self.sim.being_changed()
        return [
            name
            for name in ("a", "b")
            if name in registry.served or name in busy or registry.restoring.knows(name)
        ]

    @precondition(lambda self: self.known())
    @rule(data=st.data(), instances=st.integers(1, _MAX_INSTANCES))
    def is_scaled(self, data: Any, instances: int) -> None:
        client = self.client(data)
        name = data.draw(st.sampled_from(self.known()))
        self.ask(client, client.ask(messages.Scale(name, instances)))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def is_unregistered(self, data: Any) -> None:
        client = self.client(data)
        name = data.draw(st.sampled_from(self.known()))
        self.ask(client, client.ask(messages.Unregister(name)))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def is_rolled_back(self, data: Any) -> None:
        client = self.client(data)
        name = data.draw(st.sampled_from(self.known()))
        self.ask(client, client.ask(messages.Rollback(name)))

    def waits(self) -> bool:
        return any(asked.pending for asked in self.asked)

    @precondition(waits)
    @rule(data=st.data())
    def is_given_up(self, data: Any) -> None:
        asked = data.draw(st.sampled_from([one for one in self.asked if one.pending]))
        asked.given_up = True
        asked.client.give_up(asked.request)
        self.sim.settle()

    def has_clients(self) -> bool:
        return any(client.lives for client in self.clients)

    @precondition(has_clients)
    @rule(data=st.data())
    def a_client_ends(self, data: Any) -> None:
        self.client(data).end_process()
        self.sim.settle()

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    @rule(plan=st.sampled_from(["serves", "serves", "fails", "crashes", "hangs"]))
    def workers_change(self, plan: str) -> None:
        self.sim.usual_plan = plan

    def hang(self) -> list[FakeWorker]:
        return [one for one in self.sim.alive() if not one.ready.done()]

    def serve(self) -> list[FakeWorker]:
        return [one for one in self.sim.alive() if one.ready.done()]

    @precondition(lambda self: self.hang())
    @rule(data=st.data(), how=st.sampled_from(["serves", "fails", "crashes"]))
    def a_worker_comes_back(self, data: Any, how: str) -> None:
        worker = data.draw(st.sampled_from(self.hang()))
        if how == "serves":
            worker.loaded()
        elif how == "fails":
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        else:
            worker.end()
        self.sim.settle()

    @precondition(lambda self: self.serve())
    @rule(data=st.data(), in_batch=st.booleans())
    def a_worker_crashes(self, data: Any, in_batch: bool) -> None:
        data.draw(st.sampled_from(self.serve())).end(in_batch=in_batch)
        self.sim.settle()

    # ── tritonserver ─────────────────────────────────────────────────────────────────────────────

    @rule(name=_NAMES, what=st.sampled_from(["refuse", "hang", "end"]), times=st.integers(1, 3))
    def a_load_meets(self, name: str, what: str, times: int) -> None:
        self.obstacles.append(Obstacle(what, times))
        self.sim.server.obstacles[name] = self.obstacles[-1]

    @precondition(lambda self: any(not one.gone.is_set() for one in self.obstacles))
    @rule()
    def loads_go_on(self) -> None:
        for obstacle in self.obstacles:
            obstacle.gone.set()
        self.sim.settle()

    @precondition(lambda self: self.sim.server.ready)
    @rule(starts_fail=st.integers(0, 2))
    def tritonserver_ends(self, starts_fail: int) -> None:
        self.sim.server.starts_fail = starts_fail
        self.sim.server.end()
        self.sim.settle()

    @rule(hold=st.booleans())
    def batches_take_long(self, hold: bool) -> None:
        self.sim.server.hold_proxies = hold
        if not hold:
            self.sim.let_batches_end()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.5, 3.0, 40.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.sim.advance(seconds)

    @precondition(lambda self: self.steps > _LONG)
    @rule(plan=st.sampled_from(["serves", "serves", "fails", "crashes", "hangs"]))
    def the_daemon_is_started_again(self, plan: str) -> None:
        """Restart the daemon: registered models are restored if possible, and pending requests cancelled."""
        before = self.end_daemon()
        self.begin(plan)
        self.sim.advance(5.0)
        registry = self.sim.services.registry
        if plan == "serves":
            assert {one.spec.name for one in registry.served} == set(before)
        else:
            assert all(registry.restoring.knows(name) for name in before)

    def end_daemon(self) -> dict[str, Any]:
        self.let_everything_succeed()
        self.sim.stop()
        for asked in self.asked:
            assert asked.given_up or not asked.client.lives or asked.request.answers
        kept = self.sim.persisted()
        self.sim.close()
        self.asked.clear()
        self.obstacles.clear()
        return kept

    # ── what must always hold ────────────────────────────────────────────────────────────────────

    @invariant()
    def a_step_is_counted(self) -> None:
        self.steps += 1

    @invariant()
    def there_are_never_more_workers_than_asked_for(self) -> None:
        for registration in self.sim.services.registry.served.keys.values():
            pool = registration.pool
            alive = [one for one in pool._workers.values() if one.alive]
            count = registration.spec.instances
            if registration.spec.name not in self.sim.being_changed():
                assert len(alive) <= count, f"{len(alive)} workers for {count} instances"
            assert len(alive) <= _MAX_INSTANCES

    @invariant()
    def an_unregistered_model_leaves_nothing(self) -> None:
        registry = self.sim.services.registry
        for name in ("a", "b"):
            gone = name not in registry.served and not registry.restoring.knows(name)
            # Its folder stays until tritonserver has finished an abandoned load.
            loading = self.sim.server.late_load(name) is not None
            if gone and not loading and name not in self.sim.being_changed():
                assert self.sim.is_clean(name)

    @invariant()
    def what_is_kept_is_what_is_registered(self) -> None:
        registry = self.sim.services.registry
        kept = self.sim.persisted()
        for name in ("a", "b"):
            if name in self.sim.being_changed() or registry.restoring.knows(name):
                continue
            registration = registry.served.get(name)
            if registration is None or not registration.kept:
                assert name not in kept
            else:
                assert kept[name].spec == registration.spec

    @invariant()
    def a_model_that_is_ready_is_served(self) -> None:
        """Check that every ready model is served by its current registration: the old or the new one, never none."""
        if not self.sim.server.ready:
            return
        for registration in self.sim.services.registry.served:
            if registration.ready and registration.in_triton.mark() is not None:
                assert self.sim.is_served(registration.spec.name)
                proxies = self.sim.server.models[registration.spec.name].proxies
                assert len(proxies) == registration.spec.instances

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def let_everything_succeed(self) -> None:
        """Let everything succeed from now on, and continue what waits."""
        sim = self.sim
        sim.usual_plan = "serves"
        sim.server.starts_fail = 0
        sim.server.obstacles.clear()
        for obstacle in self.obstacles:
            obstacle.gone.set()
        for worker in self.hang():
            worker.loaded()
        sim.let_batches_end()

    def teardown(self) -> None:
        """Given time, everything is answered and served, and can be stopped."""
        try:
            self.look_at_the_end()
        finally:
            self.sim.close()
            self.folder.cleanup()

    def look_at_the_end(self) -> None:
        sim = self.sim
        self.let_everything_succeed()
        sim.advance(700.0)
        assert [one for one in self.asked if one.pending] == []
        if sim.server.ready:  # what could not be restored is tried again in the next tritonserver
            sim.server.end()
        sim.advance(100.0)
        registry = sim.services.registry
        assert sim.server.gate_open
        for registration in registry.served:
            assert (registration.state, sim.is_served(registration.spec.name)) == ("ready", True)
            alive = [one for one in registration.pool._workers.values() if one.alive]
            assert len(alive) == registration.spec.instances
        client = sim.connect()
        for name in [one.spec.name for one in registry.served]:
            assert sim.answered(client.ask(messages.Unregister(name))) == messages.Done()
        assert sim.is_clean("a")
        assert sim.is_clean("b")
        assert list((sim.state / "models").iterdir()) == []


TestRegistryHistories = RegistryHistories.TestCase
#: Without shrinking: histories are short, and shrinking one takes minutes.
TestRegistryHistories.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
)
