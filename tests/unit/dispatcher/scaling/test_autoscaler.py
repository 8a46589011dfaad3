"""Histories of models that follow their load, on a virtual clock: the daemon's own loop, registry and pools."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.fakes.brain import Brain
from support.fakes.fake_clients import model_spec

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.lanes.stats_page import NOTHING, Counts
from pytriton.dispatcher.elastic.sharing import Room
from pytriton.dispatcher.models.admission import check
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.scaling.autoscaler import Autoscaler, Taken, machine_room, taken_by

RULES = messages.Autoscale(1, 6, up_after_s=2.0, down_after_s=20.0)
MIB = 1 << 20


class Load:
    """What models are asked: `wanted` instances' worth of work each; what there are too few for is not done."""

    def __init__(self, brain: Brain) -> None:
        self.wanted: dict[str, float] = {}
        self.memory = 0
        self.room = Room(1000.0)
        self._brain = brain
        self._done: dict[str, Counts] = {}
        self._at = 0.0
        autoscaler = brain.daemon.autoscaler
        autoscaler.counts = self._counts
        autoscaler.taken = lambda registration: Taken(0.0, self.memory)
        autoscaler.room = lambda: self.room
        autoscaler.queued = self._queued
        self.queue: dict[str, int] = {}
        self.asked = 0
        self._looked: dict[str, float] = {}

    async def _queued(self) -> dict[str, int]:
        self.asked += 1
        return self.queue

    def _counts(self, registration: Registration) -> Counts:
        name, now = registration.spec.name, self._brain.loop.time()
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
def load(brain: Brain) -> Load:
    return Load(brain)


def register(
    brain: Brain, name: str = "m", rules: messages.Autoscale = RULES, **more: object
) -> None:
    spec = model_spec(name, instances=rules.least, autoscale=rules, **more)
    brain.served(brain.client.ask(messages.Register(spec), [b"callable"]))


def info_of(brain: Brain, name: str) -> messages.ModelInfo:
    return next(one for one in brain.loop.ask(brain.daemon.model_infos) if one.name == name)


def test_instances_follow_the_load_up_and_down(brain: Brain, load: Load) -> None:
    register(brain)
    brain.advance(30.0)
    assert len(brain.alive("m")) == 1
    load.wanted["m"] = 3.0
    brain.advance(15.0)
    assert len(brain.alive("m")) == 5  # 3 of them busy are 60 %
    assert len(brain.server.models["m"].proxies) == 5
    assert info_of(brain, "m").scaling == "1 to 6 instances, now 5, load 3.0"
    load.wanted["m"] = 0.5
    brain.advance(9.0)
    assert len(brain.alive("m")) == 5  # not at once
    brain.advance(40.0)
    assert len(brain.alive("m")) == 1
    assert brain.kept()["m"].spec.instances == 1  # decisions are not kept


def test_what_waits_in_tritonserver_counts(brain: Brain, load: Load) -> None:
    """One instance that is busy all the time would be doubled; for 30 requests behind it that is not enough."""
    register(brain)
    brain.advance(10.0)
    assert load.asked == 0  # no worker has work, so nothing can wait
    load.wanted["m"], load.queue["m"] = 1.0, 30
    brain.advance(3.5)
    assert load.asked > 2
    assert len(brain.alive("m")) == 4


def test_it_stays_within_its_bounds_and_tells(brain: Brain, load: Load) -> None:
    register(brain)
    load.wanted["m"] = 50.0
    brain.advance(60.0)
    assert len(brain.alive("m")) == 6
    assert "its load needs more than its maximum" in info_of(brain, "m").scaling


def test_a_full_machine_keeps_it_from_more_and_that_is_told(brain: Brain, load: Load) -> None:
    load.memory, load.room = 1000 * MIB, Room(1000.0, 100 * MIB)
    register(brain)
    load.wanted["m"] = 50.0
    brain.advance(60.0)
    assert len(brain.alive("m")) == 1
    words = "limited by memory: an instance takes 1,000 MiB, and 100 MiB are left"
    assert words in info_of(brain, "m").scaling


def test_models_share_by_weight(brain: Brain, load: Load) -> None:
    """Memory for six more: the one that came first gives up what is the other's share."""
    load.memory = 100
    register(brain, "a")
    load.wanted = {"a": 50.0}
    brain.advance(30.0)
    assert len(brain.alive("a")) == 6
    load.room = Room(1000.0, 0)
    register(brain, "b")
    load.wanted["b"] = 50.0
    brain.advance(60.0)
    counts = {name: len(brain.alive(name)) for name in "ab"}
    assert counts["b"] in (3, 4)
    assert sum(counts.values()) == 7


def test_workers_that_fail_are_not_tried_again_and_again(brain: Brain, load: Load) -> None:
    register(brain)
    brain.usual_plan = "fails"
    load.wanted["m"] = 3.0
    brain.advance(60.0)
    assert len(brain.alive("m")) == 1
    assert 2 <= len(brain.workers) - 1 <= 8
    brain.usual_plan = "serves"
    brain.advance(60.0)
    assert len(brain.alive("m")) == 5


@pytest.mark.parametrize("what", ["scale", "unregister", "replace"])
def test_what_a_client_wants_goes_first(brain: Brain, load: Load, what: str) -> None:
    """Workers that never finish loading keep nobody waiting."""
    register(brain)
    brain.usual_plan = "hangs"
    load.wanted["m"] = 3.0
    brain.advance(10.0)
    assert len(brain.alive("m")) > 1
    brain.usual_plan = "serves"
    if what == "scale":
        brain.served(brain.client.ask(messages.Scale("m", 2)))
        brain.advance(60.0)
        assert len(brain.alive("m")) == 2  # from then on it is a fixed number
        assert info_of(brain, "m").scaling == ""
    elif what == "unregister":
        brain.answered(brain.client.ask(messages.Unregister("m")))
        assert brain.is_clean("m")
    else:
        message = messages.Register(model_spec("m", instances=2), replace=True)
        brain.served(brain.client.ask(message, [b"callable"]))
        assert len(brain.alive("m")) == 2


def test_a_model_that_is_there_begins_to_follow_its_load(brain: Brain, load: Load) -> None:
    brain.served(brain.client.register("m", instances=3))
    brain.served(brain.client.ask(messages.Scale("m", 0, RULES)))
    assert len(brain.alive("m")) == 3
    brain.advance(30.0)
    assert len(brain.alive("m")) == 1
    assert brain.kept()["m"].spec.autoscale == RULES


def test_devices_are_used_in_turn_however_often_it_is_scaled(
    brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytriton._register.gpus.missing", lambda device: None)
    spec = model_spec("m", instances=2, devices=["", "0,1"])
    brain.served(brain.client.ask(messages.Register(spec), [b"callable"]))
    for instances in (1, 2, 3, 1, 3):
        brain.served(brain.client.ask(messages.Scale("m", instances)))
        seen = [one.device for one in info_of(brain, "m").instances]
        assert seen == list(itertools.islice(itertools.cycle(["", "0,1"]), instances))
        assert brain.kept()["m"].spec.devices == ["", "0,1"]


@pytest.mark.parametrize(
    ("rules", "payloads", "words"),
    [
        (messages.Autoscale(0, 0), 1, "from 0 to 0: both must be 0 to 1024"),
        (messages.Autoscale(3, 2), 1, "from 3 to 2"),
        (messages.Autoscale(1, 5000), 1, "from 1 to 5000"),
        (messages.Autoscale(1, 2, target=0.0), 1, "target has to be above 0"),
        (messages.Autoscale(1, 2, up_after_s=float("nan")), 1, "its times must be"),
        (messages.Autoscale(1, 2, weight=-1.0), 1, "weight above 0"),
        (messages.Autoscale(2, 3), 2, "a list of callables has one for each instance"),
    ],
)
def test_bounds_that_are_wrong_are_refused(
    brain: Brain, rules: messages.Autoscale, payloads: int, words: str
) -> None:
    spec = model_spec("m", instances=max(1, rules.least), autoscale=rules)
    request = brain.client.ask(messages.Register(spec), [b"callable"] * payloads)
    brain.answered(request)
    assert words in request.failure
    assert brain.is_clean("m")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"config": {"sequence_batching": {}}}, "a sequence is bound to one instance"),
        ({"isolation": "thread"}, "threads share the process"),
    ],
)
def test_models_that_cannot_follow_their_load(more: dict[str, Any], words: str) -> None:
    spec = msgspec.structs.replace(model_spec("m", autoscale=RULES), **more)
    with pytest.raises(RemoteFailure, match=words):
        check(spec, [b"callable"])


def test_the_machine_is_measured(brain: Brain) -> None:
    room = machine_room()
    assert room.cpus > 0
    assert room.memory is not None
    assert room.memory > 0
    brain.served(brain.client.register("m"))
    registration = brain.loop.ask(lambda: brain.daemon.registry.by_name("m"))
    assert brain.loop.ask(lambda: taken_by(registration)).cpu_s >= 0


def test_models_come_while_those_that_wake_are_told_what_waits() -> None:
    """Whoever wakes one waits for a lock meanwhile, and others are registered."""
    models: dict[str, Any] = {}

    async def wake() -> None:
        models[f"m{len(models)}"] = waking(lambda: asyncio.sleep(0))

    def waking(tell: Any) -> Any:
        sleep = SimpleNamespace(waking=True, queued=0)
        pool = SimpleNamespace(sleep=sleep, wake=tell)
        return SimpleNamespace(pool=pool, spec=SimpleNamespace(name=f"m{len(models)}"))

    async def queued() -> dict[str, int]:
        return {"m0": 3, "m1": 4}

    class Registry:
        def __iter__(self) -> Iterator[Any]:
            return iter(models.values())

    models["m0"] = waking(wake)
    models["m1"] = waking(wake)
    registry: Any = Registry()
    assert asyncio.run(Autoscaler(registry, queued=queued)._queued()) == {"m0": 3, "m1": 4}
    assert [one.pool.sleep.queued for one in models.values()] == [3, 4, 0, 0]
