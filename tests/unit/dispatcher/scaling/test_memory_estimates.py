"""Expected memory of models: claims that cannot be met, estimates, and memory shared by workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_worker import FakeWorker
from fakes.suspending_daemons import MIB, Budgeted

from pytriton._protocol import messages
from pytriton._protocol.files.shared_entries import Holder, SharedEntry
from pytriton.dispatcher.scaling.memory_policy import Size
from pytriton.dispatcher.workers.suspension import ResumeBounds


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Budgeted]:
    daemon = Budgeted(tmp_path)
    yield daemon
    daemon.sim.close()


def test_unsatisfiable_claims_take_nothing_from_others(daemon: Budgeted) -> None:
    daemon.register("fixed", lazy=False, memory_request=600 * MIB)
    daemon.register("big", memory_request=500 * MIB)
    for name in "abc":
        daemon.register(name, memory_request=100 * MIB)
    daemon.sizes.update(fixed=600, big=500, a=100, b=100, c=100)
    daemon.served("a")
    big = daemon.batch("big")
    daemon.sim.advance(4.0)
    assert not big.done()
    for name in "bc":
        daemon.served(name, 1.0)
    assert daemon.loaded() == {"fixed", "a", "b", "c"}


def test_an_estimate_never_prevents_a_load(daemon: Budgeted) -> None:
    daemon.register("fixed", lazy=False, memory_request=850 * MIB)
    daemon.usual = 50
    daemon.register("new")  # a quarter of the budget, by estimate
    daemon.served("new", 2.0)
    assert daemon.loaded() == {"fixed", "new"}


def test_shared_memory_is_charged_once(daemon: Budgeted) -> None:
    daemon.register("a", instances=3)
    daemon.usual = 100
    loaded = daemon.memory.memory
    daemon.sim.plans = ["hangs"] * 3
    batch = daemon.batch("a")
    daemon.memory.memory = lambda pid: Size(300 * MIB)
    daemon.sim.advance(1.0)
    daemon.memory.memory = loaded
    workers = daemon.sim.alive("a")
    holders = [Holder(one.pid, 1, 3) for one in workers]
    daemon.shared = {"table": SharedEntry("t", "memory", 200 * MIB, holders)}
    for one in workers:
        one.loaded()
    daemon.wait(batch, 1.0)
    daemon.sim.advance(1.0)
    assert daemon.used() == 3 * 109 + 200


def test_a_crash_looping_model_is_suspended_for_others(daemon: Budgeted) -> None:
    daemon.register("a", memory_request=600 * MIB)
    daemon.register("b", memory_request=600 * MIB)
    worker = daemon.served("a")
    daemon.sim.usual_plan = "crashes"
    worker.end()
    daemon.sim.advance(100.0)
    assert daemon.state("a") == "not_ready"
    daemon.sim.usual_plan = "serves"
    daemon.served("b")
    assert daemon.loaded() == {"b"}
    assert daemon.state("a") == "suspended"
    daemon.sim.advance(2.0)
    daemon.served("a")  # it is requested again


def with_a_standby(
    daemon: Budgeted, needs: int, *, bounds: ResumeBounds | None = None, **more: Any
) -> FakeWorker:
    """A model whose standby worker serves, while another model leaves no memory for its instances; return the busy batch."""
    daemon.usual = 200
    daemon.register("m", standby_workers=1, memory_request=200 * MIB, **more)
    daemon.served("m")
    daemon.sim.advance(30.0)
    daemon.register("busy", memory_request=needs * MIB)
    daemon.sizes["busy"] = needs
    busy = daemon.served("busy")
    busy.begin()
    assert daemon.state("m") == "suspended"
    (standby,) = daemon.sim.alive("m")
    if bounds is not None:
        registration = daemon.sim.services.registry.served.get("m")
        assert registration is not None
        pool = registration.pool
        pool._policy = dataclasses.replace(pool._policy, resume_bounds=bounds)
    daemon.wait(daemon.batch("m"), 1.0)
    standby.begin()
    daemon.sim.advance(1.0)
    assert daemon.state("m") == "ready"
    assert daemon.sim.alive("m") == [standby]
    return busy


def test_scaling_down_reduces_the_awaited_instances(daemon: Budgeted) -> None:
    busy = with_a_standby(daemon, 500, instances=3)
    daemon.sim.served(daemon.sim.client.ask(messages.Scale("m", 1)))
    daemon.sim.advance(1.0)
    assert len(daemon.sim.alive("m")) == 2  # with the standby worker
    busy.answer()
    daemon.sim.advance(10.0)
    assert daemon.used() == 400 + 500


def test_fewer_wanted_instances_also_reduce_the_next_claim(daemon: Budgeted) -> None:
    busy = with_a_standby(daemon, 700, instances=3)
    daemon.sim.served(daemon.sim.client.ask(messages.Scale("m", 1)))
    daemon.sim.advance(70.0)
    busy.answer()
    daemon.sim.advance(10.0)
    assert len(daemon.sim.alive("m")) == 2
    assert daemon.used() == 400


@pytest.mark.parametrize(
    "bounds", [None, ResumeBounds(seconds=0.0)], ids=["default", "zero, which does not spin"]
)
def test_a_model_served_by_a_standby_worker_stays_resumed_without_memory(
    daemon: Budgeted, bounds: ResumeBounds | None
) -> None:
    busy = with_a_standby(daemon, 500, bounds=bounds, instances=3)
    daemon.sim.advance(70.0)
    assert daemon.state("m") == "ready"
    busy.answer()
    daemon.sim.advance(10.0)
    assert len(daemon.sim.alive("m")) == 4


def test_a_suspending_model_withdraws_its_claim(daemon: Budgeted) -> None:
    rules = messages.Autoscale(0, 3, idle_after_s=20.0)
    busy = with_a_standby(daemon, 700, lazy=False, autoscale=rules)
    for worker in daemon.sim.alive("m"):
        worker.answer()
    daemon.sim.advance(40.0)
    assert daemon.state("m") == "suspended"
    busy.answer()
    daemon.sim.advance(10.0)
    assert len(daemon.sim.alive("m")) == 1


def test_impossible_claims_are_refused_soon_with_remedies(daemon: Budgeted) -> None:
    """They neither wait for memory that never comes, nor advise to retry later in vain."""
    for name in "ab":
        daemon.register(name, lazy=False, memory_request=400 * MIB)
    daemon.sizes.update(a=400, b=400, c=150)
    daemon.register("c", memory_request=150 * MIB)
    daemon.served("c")
    request = daemon.sim.client.register("d", memory_request=500 * MIB)
    daemon.sim.advance(7.0)
    needs = "model d needs 500 MiB of memory_budget, but only 50 MiB of 1,000 MiB were free for "
    assert request.failure.startswith((f"{needs}5 s", f"{needs}6 s"))
    assert (
        "a, b may never be suspended, so waiting does not help: raise the budget" in request.failure
    )
    assert "later" not in request.failure
    reported = daemon.sim.answered(daemon.sim.client.ask(messages.Explain("d")))
    assert isinstance(reported, messages.Explanation)
    assert "suspend_any_idle_model = true" in reported.findings[0].advice
    assert daemon.loaded() == {"a", "b", "c"}


@pytest.mark.parametrize("what", ["ends", "may shrink"])
def test_possible_claims_wait(daemon: Budgeted, what: str) -> None:
    """For a worker that is about to exit, or a model that may soon need fewer instances."""
    scaling = messages.Autoscale(1, 4) if what == "may shrink" else None
    spec: dict[str, Any] = {"memory_request": 300 * MIB, "instances": 2, "autoscale": scaling}
    daemon.register("a", lazy=False, **spec)
    for worker in daemon.sim.alive("a"):
        worker.begin()
    if what == "ends":
        daemon.sim.server.hold_proxies = True
        daemon.sim.client.ask(messages.Unregister("a"))
    request = daemon.sim.client.register("d", memory_request=500 * MIB)
    daemon.sim.advance(15.0)
    assert request.answer is None
    if what == "ends":
        daemon.sim.let_batches_end()
    else:
        daemon.sim.client.ask(messages.Scale("a", 1))
    daemon.sim.served(request)
