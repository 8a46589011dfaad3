"""Histories of autoscaled models on a virtual clock: the daemon's own loop, registry and pools."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.lanes.stats_page import NOTHING, Counts
from pytriton.dispatcher.models.admission import check
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.scaling.autoscaler import (
    Autoscaler,
    ResourceUse,
    machine_resources,
    resource_use_of,
)
from pytriton.dispatcher.scaling.policy import MachineResources

RULES = messages.Autoscale(1, 6, up_after_s=2.0, down_after_s=20.0)
MIB = 1 << 20


class Load:
    """The load of each model: `wanted` instances' worth of work; excess work waits."""

    def __init__(self, sim: SimulatedDaemon) -> None:
        self.wanted: dict[str, float] = {}
        self.memory = 0
        self.room = MachineResources(1000.0)
        self._sim = sim
        self._done: dict[str, Counts] = {}
        self._at = 0.0
        autoscaler = sim.services.autoscaler
        autoscaler.counts = self._counts
        autoscaler.resource_use = lambda registration: ResourceUse(0.0, self.memory)
        autoscaler.resources = lambda: self.room
        autoscaler.queued = self._queued
        self.queue: dict[str, int] = {}
        self.asked = 0
        self._looked: dict[str, float] = {}

    async def _queued(self) -> dict[str, int]:
        self.asked += 1
        return self.queue

    def done(self, name: str) -> Counts:
        """Return what the workers of a model have done so far."""
        return self._done.get(name, NOTHING)

    def _counts(self, registration: Registration) -> Counts:
        name, now = registration.spec.name, self._sim.loop.time()
        since = now - self._looked.setdefault(name, now)
        self._looked[name] = now
        ready = len(registration.pool.ready_workers())
        busy_s = min(self.wanted.get(name, 0.0), ready) * since
        before = self._done.get(name, NOTHING)
        batches = before.calls + round(10 * busy_s)
        self._done[name] = before._replace(
            busy_ns=before.busy_ns + round(busy_s * 1e9), calls=batches, requests=batches
        )
        return self._done[name]


@pytest.fixture
def load(sim: SimulatedDaemon) -> Load:
    return Load(sim)


def register(
    sim: SimulatedDaemon, name: str = "m", rules: messages.Autoscale = RULES, **more: object
) -> None:
    spec = model_spec(name, instances=rules.least, autoscale=rules, **more)
    sim.served(sim.client.ask(messages.Register(spec), [b"callable"]))


def info_of(sim: SimulatedDaemon, name: str) -> messages.ModelInfo:
    return next(one for one in sim.loop.ask(sim.services.status.model_infos) if one.name == name)


def test_instances_follow_the_load_up_and_down(sim: SimulatedDaemon, load: Load) -> None:
    register(sim)
    sim.advance(30.0)
    assert len(sim.alive("m")) == 1
    load.wanted["m"] = 3.0
    sim.advance(15.0)
    assert len(sim.alive("m")) == 5  # 3 of them busy are 60 %
    assert len(sim.server.models["m"].proxies) == 5
    assert info_of(sim, "m").scaling == "1 to 6 instances, now 5, load 3.0"
    load.wanted["m"] = 0.5
    sim.advance(9.0)
    assert len(sim.alive("m")) == 5  # not at once
    sim.advance(40.0)
    assert len(sim.alive("m")) == 1
    assert sim.persisted()["m"].spec.instances == 1  # decisions are not kept


def test_queued_requests_count(sim: SimulatedDaemon, load: Load) -> None:
    """One busy instance alone would be doubled, which is not enough for 30 waiting requests."""
    register(sim)
    sim.advance(10.0)
    assert load.asked == 0  # no worker has work, so nothing can wait
    load.wanted["m"], load.queue["m"] = 1.0, 30
    sim.advance(3.5)
    assert load.asked > 2
    assert len(sim.alive("m")) == 4


def test_instances_stay_within_bounds_and_drops_are_reported(
    sim: SimulatedDaemon, load: Load
) -> None:
    register(sim)
    load.wanted["m"] = 50.0
    sim.advance(60.0)
    assert len(sim.alive("m")) == 6
    assert "its load needs more than its maximum" in info_of(sim, "m").scaling


def test_a_full_machine_limits_scaling_and_the_reason_is_reported(
    sim: SimulatedDaemon, load: Load
) -> None:
    load.memory, load.room = 1000 * MIB, MachineResources(1000.0, 100 * MIB)
    register(sim)
    load.wanted["m"] = 50.0
    sim.advance(60.0)
    assert len(sim.alive("m")) == 1
    words = "limited by memory: an instance takes 1,000 MiB, and 100 MiB are left"
    assert words in info_of(sim, "m").scaling


def test_models_share_by_weight(sim: SimulatedDaemon, load: Load) -> None:
    """Memory for six more: the earlier model gives up the other's share."""
    load.memory = 100
    register(sim, "a")
    load.wanted = {"a": 50.0}
    sim.advance(30.0)
    assert len(sim.alive("a")) == 6
    load.room = MachineResources(1000.0, 0)
    register(sim, "b")
    load.wanted["b"] = 50.0
    sim.advance(60.0)
    counts = {name: len(sim.alive(name)) for name in "ab"}
    assert counts["b"] in (3, 4)
    assert sum(counts.values()) == 7


def test_failing_workers_are_not_retried_endlessly(sim: SimulatedDaemon, load: Load) -> None:
    register(sim)
    sim.usual_plan = "fails"
    load.wanted["m"] = 3.0
    sim.advance(60.0)
    assert len(sim.alive("m")) == 1
    assert 2 <= len(sim.workers) - 1 <= 8
    sim.usual_plan = "serves"
    sim.advance(60.0)
    assert len(sim.alive("m")) == 5


@pytest.mark.parametrize("what", ["scale", "unregister", "replace"])
def test_client_requests_have_priority(sim: SimulatedDaemon, load: Load, what: str) -> None:
    """Workers that never finish loading block nobody."""
    register(sim)
    sim.usual_plan = "hangs"
    load.wanted["m"] = 3.0
    sim.advance(10.0)
    assert len(sim.alive("m")) > 1
    sim.usual_plan = "serves"
    if what == "scale":
        sim.served(sim.client.ask(messages.Scale("m", 2)))
        sim.advance(60.0)
        assert len(sim.alive("m")) == 2  # from then on it is a fixed number
        assert info_of(sim, "m").scaling == ""
    elif what == "unregister":
        sim.answered(sim.client.ask(messages.Unregister("m")))
        assert sim.is_clean("m")
    else:
        message = messages.Register(model_spec("m", instances=2), replace=True)
        sim.served(sim.client.ask(message, [b"callable"]))
        assert len(sim.alive("m")) == 2


def test_an_existing_model_can_start_to_autoscale(sim: SimulatedDaemon, load: Load) -> None:
    sim.served(sim.client.register("m", instances=3))
    sim.served(sim.client.ask(messages.Scale("m", 0, RULES)))
    assert len(sim.alive("m")) == 3
    sim.advance(30.0)
    assert len(sim.alive("m")) == 1
    assert sim.persisted()["m"].spec.autoscale == RULES


def test_devices_are_used_in_turn_however_often_it_is_scaled(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytriton._host.gpus.missing", lambda device: None)
    spec = model_spec("m", instances=2, devices=["", "0,1"])
    sim.served(sim.client.ask(messages.Register(spec), [b"callable"]))
    for instances in (1, 2, 3, 1, 3):
        sim.served(sim.client.ask(messages.Scale("m", instances)))
        seen = [one.device for one in info_of(sim, "m").instances]
        assert seen == list(itertools.islice(itertools.cycle(["", "0,1"]), instances))
        assert sim.persisted()["m"].spec.devices == ["", "0,1"]


@pytest.mark.parametrize(
    ("rules", "payloads", "words"),
    [
        (messages.Autoscale(0, 0), 1, "from 0 to 0: both bounds must be 0 to 1024"),
        (messages.Autoscale(3, 2), 1, "from 3 to 2"),
        (messages.Autoscale(1, 5000), 1, "from 1 to 5000"),
        (messages.Autoscale(1, 2, target=0.0), 1, "target must be above 0"),
        (messages.Autoscale(1, 2, up_after_s=float("nan")), 1, "idle_after_s must be above 0"),
        (messages.Autoscale(1, 2, weight=-1.0), 1, "weight above 0"),
        (messages.Autoscale(2, 3), 2, "a list has one callable for each instance"),
    ],
)
def test_invalid_bounds_are_refused(
    sim: SimulatedDaemon, rules: messages.Autoscale, payloads: int, words: str
) -> None:
    spec = model_spec("m", instances=max(1, rules.least), autoscale=rules)
    request = sim.client.ask(messages.Register(spec), [b"callable"] * payloads)
    sim.answered(request)
    assert words in request.failure
    assert sim.is_clean("m")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"config": {"sequence_batching": {}}}, "a sequence is bound to one instance"),
        ({"isolation": "thread"}, "its workers are threads of the process"),
    ],
)
def test_models_that_cannot_autoscale(more: dict[str, Any], words: str) -> None:
    spec = msgspec.structs.replace(model_spec("m", autoscale=RULES), **more)
    with pytest.raises(RemoteFailure, match=words):
        check(spec, [b"callable"])


def test_the_machine_is_measured(sim: SimulatedDaemon) -> None:
    room = machine_resources()
    assert room.cpus > 0
    assert room.memory is not None
    assert room.memory > 0
    sim.served(sim.client.register("m"))
    registration = sim.loop.ask(lambda: sim.services.registry.served.by_name("m"))
    assert sim.loop.ask(lambda: resource_use_of(registration)).cpu_s >= 0


def test_resuming_models_report_their_waiting_requests() -> None:
    """Each resume waits for a lock meanwhile, and other models are registered."""
    models: dict[str, Any] = {}

    async def wake() -> None:
        models[f"m{len(models)}"] = resuming(lambda: asyncio.sleep(0))
        registry.changes.notify()

    def resuming(wake: Any) -> Any:
        sleep = SimpleNamespace(resuming=True, queued=0)
        pool = SimpleNamespace(suspension=sleep, notify_waiters=wake)
        spec = SimpleNamespace(name=f"m{len(models)}", autoscale=None)
        return SimpleNamespace(pool=pool, spec=spec)

    async def queued() -> dict[str, int]:
        return {"m0": 3, "m1": 4}

    class Served:
        def __iter__(self) -> Iterator[Any]:
            return iter(models.values())

    models["m0"] = resuming(wake)
    models["m1"] = resuming(wake)
    registry: Any = SimpleNamespace(
        served=Served(), changes=ChangeSignal(), scaling_changes=ChangeSignal()
    )
    autoscaler = Autoscaler(registry, resources=lambda: MachineResources(1.0), queued=queued)
    assert asyncio.run(autoscaler._queued()) == {"m0": 3, "m1": 4}
    assert [one.pool.suspension.queued for one in models.values()] == [3, 4, 0, 0]


@pytest.fixture
def ticks(sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which the autoscaler samples the load."""
    found: list[float] = []
    tick = sim.services.autoscaler.tick

    def record(queued: Mapping[str, int]) -> None:
        found.append(sim.loop.time())
        tick(queued)

    monkeypatch.setattr(sim.services.autoscaler, "tick", record)
    return found


def test_the_load_is_sampled_only_while_a_model_is_autoscaled(
    sim: SimulatedDaemon, load: Load, ticks: list[float]
) -> None:
    sim.served(sim.client.register("plain"))
    sim.advance(60.0)
    assert ticks == []
    register(sim)
    sim.advance(10.0)
    assert len(ticks) == pytest.approx(20, abs=2)
    sim.answered(sim.client.ask(messages.Unregister("m")))
    sim.advance(5.0)
    ticks.clear()
    sim.advance(60.0)
    assert ticks == []
    asked = sim.loop.time()
    sim.served(sim.client.ask(messages.Scale("plain", 0, RULES)))
    sim.advance(1.0)
    assert asked < ticks[0] <= asked + 0.5


def test_the_queue_is_read_while_a_model_resumes(
    sim: SimulatedDaemon, load: Load, ticks: list[float]
) -> None:
    spec = model_spec("m", lazy=True)
    sim.served(sim.client.ask(messages.Register(spec), [b"callable"]))
    sim.advance(60.0)
    assert ticks == []
    sim.usual_plan = "hangs"
    sim.loop.ask(lambda: sim.services.registry.served.by_name("m").pool.resume())
    resumed = sim.loop.time()
    sim.advance(5.0)
    assert load.asked == 10
    assert ticks[0] <= resumed + 0.5


def test_resources_of_idle_models_are_not_measured(sim: SimulatedDaemon, load: Load) -> None:
    measured: list[str] = []

    def measure(registration: Registration) -> ResourceUse:
        measured.append(registration.spec.name)
        return ResourceUse(0.0, MIB)

    sim.services.autoscaler.resource_use = measure
    register(sim, "idle")
    register(sim, "busy")
    load.wanted["busy"] = 0.5
    sim.advance(10.0)
    assert measured.count("idle") == 1
    assert measured.count("busy") >= 19
    measured.clear()
    load.wanted["idle"] = 0.5
    sim.advance(1.0)
    assert "idle" in measured


def test_the_cpu_time_of_an_idle_period_is_not_the_cost_of_the_next_requests(
    sim: SimulatedDaemon, load: Load
) -> None:
    """A callable that uses 1 % of a CPU in the background, and half a CPU per instance while it works."""

    def measure(registration: Registration) -> ResourceUse:
        busy_s = load.done(registration.spec.name).busy_ns / 1e9
        return ResourceUse(0.01 * sim.loop.time() + 0.5 * busy_s, MIB)

    sim.services.autoscaler.resource_use = measure
    load.room = MachineResources(10.0)
    register(sim, "other")
    register(sim, "m")
    load.wanted["other"] = 2.0
    sim.advance(3600.0)
    others = len(sim.alive("other"))
    load.wanted["m"] = 3.0
    sim.advance(15.0)
    assert len(sim.alive("m")) == 5
    assert len(sim.alive("other")) == others
