"""Histories of suspended and resumed models on a virtual clock: the daemon's own code except for processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.fake_clients import model_spec
from fakes.suspending_daemons import SLEEPY, Sleeper
from fakes.triton.fake_server import SERVER_PID, FakeServer, Obstacle

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.admission import check


def worker_of(task: asyncio.Task[Any]) -> str:
    assert task.done(), "it waits"
    return str(task.result().worker)


def failure_of(task: asyncio.Task[Any]) -> str:
    assert task.done(), "it waits"
    with pytest.raises(RemoteFailure) as failure:
        task.result()
    return failure.value.text


Start = Callable[..., Sleeper]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one daemon after another in the same folder."""
    running: list[Sleeper] = []

    def start(**settings: Any) -> Sleeper:
        if running:
            running.pop().sim.close()
        running.append(Sleeper(tmp_path, **settings))
        return running[0]

    yield start
    for sleeper in running:
        sleeper.sim.close()


@pytest.fixture
def sleeper(start: Start) -> Sleeper:
    return start()


def test_an_idle_model_is_suspended_and_a_request_resumes_it(sleeper: Sleeper) -> None:
    sim = sleeper.sim
    sleeper.register()
    sim.advance(59.0)
    assert len(sim.alive("m")) == 1
    sleeper.fall_asleep()
    assert sim.alive("m") == []
    assert sim.is_served("m")  # tritonserver has it, with its proxies
    assert sim.server.history == ["load m"]
    assert sleeper.event("suspended").numbers["workers"] == 1
    assert sleeper.event("suspended").numbers["idle_s"] >= 60.0
    assert "0 to 4 instances, now 0, suspended since" in sleeper.info().scaling
    sim.advance(1000.0)
    assert sleeper.state() == "suspended"
    batches = [sleeper.batch() for _ in range(3)]
    sim.advance(1.0)
    assert [worker_of(one) for one in batches] == [sim.alive("m")[0].name] * 3
    assert len(sim.alive("m")) == 1
    assert sleeper.state() == "ready"
    assert sleeper.event("resumed").numbers["suspended_s"] > 1000.0
    assert (
        dict(sim.services.registry.served.counter_registry.items())["m"].counts.resumes == 1
    )  # the three woke it together
    sim.advance(50.0)
    assert sleeper.state() == "ready"  # activity before the suspension does not count
    sleeper.fall_asleep()


def test_a_resuming_or_busy_model_is_not_suspended(sleeper: Sleeper) -> None:
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    sim.plans = ["hangs"]
    batch = sleeper.batch()
    sim.advance(40.0)
    assert not batch.done()
    assert sleeper.state() == "resuming"
    sim.alive("m")[0].loaded()
    sim.advance(1.0)
    worker = sim.alive("m")[0]
    assert worker_of(batch) == worker.name
    worker.begin()
    sim.advance(500.0)
    assert worker.alive
    worker.answer()
    sim.advance(30.0)
    assert worker.alive


def test_a_model_is_scaled_to_one_instance_before_its_suspension(sleeper: Sleeper) -> None:
    sim = sleeper.sim
    sleeper.register(instances=3, autoscale=None)
    rules = msgspec.structs.replace(SLEEPY, down_after_s=1000.0)
    sim.served(sim.client.ask(messages.Scale("m", 0, rules)))
    sleeper.fall_asleep()
    assert len(sim.server.models["m"].proxies) == 1
    sleeper.batch()
    sim.advance(1.0)
    assert len(sim.alive("m")) == 1


def test_waiting_for_a_resume_is_limited_in_time(start: Start) -> None:
    sleeper = start(resume_timeout_s=20.0)
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    sim.usual_plan = "hangs"
    first = sleeper.batch()
    sim.advance(15.0)
    second = sleeper.batch()
    assert not first.done()
    sim.advance(6.0)
    words = "was suspended, and its worker has been loading for 20 s"
    assert words in failure_of(first)
    assert words in failure_of(second)
    assert "loading for 21 s" in failure_of(sleeper.batch())  # at once
    assert sim.is_served("m")  # the resume continues
    assert sleeper.state() == "resuming"
    sim.alive("m")[0].loaded()
    sim.advance(1.0)
    assert worker_of(sleeper.batch()) == sim.alive("m")[0].name


def test_the_number_of_waiting_batches_is_limited(start: Start) -> None:
    """A refused batch frees a place in tritonserver's queue; the others keep waiting."""
    sleeper = start(resume_queue_size=10)
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    sim.usual_plan = "hangs"
    batches = [sleeper.batch() for _ in range(4)]
    sleeper.queue["m"] = 12
    sim.advance(0.6)
    sleeper.queue["m"] = 10
    assert sorted(one.done() for one in batches) == [False, False, True, True]
    refused = [failure_of(one) for one in batches if one.done()]
    assert "12 requests wait for its worker" in refused[0]
    sim.advance(5.0)
    assert sum(one.done() for one in batches) == 2


def test_a_stop_does_not_unload_suspended_models(sleeper: Sleeper) -> None:
    """Loading a placeholder for each of hundreds of models takes longer than a stop may."""
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    key = sim.server.models["m"].registration
    began = sim.loop.time()
    sim.stop()
    assert sim.loop.time() - began < 1.0
    assert sim.server.history == ["load m"]
    late = messages.Attach(key, "m asks late", SERVER_PID, batch=True)
    with pytest.raises(RemoteFailure, match="model m is being stopped"):
        sim.loop.run(sim.handle(late))


def test_a_failed_resume_is_reported_and_retried(sleeper: Sleeper) -> None:
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    sim.usual_plan = "fails"
    batch = sleeper.batch()
    sim.advance(10.0)
    assert "is in a crash loop" in failure_of(batch)
    assert "no file" in failure_of(batch)
    assert sleeper.state() == "not_ready"
    sim.usual_plan = "serves"
    sim.advance(60.0)
    assert sleeper.state() == "ready"
    assert worker_of(sleeper.batch()) == sim.alive("m")[0].name


def test_a_failed_start_during_a_resume_only_costs_time(sleeper: Sleeper) -> None:
    sleeper.register()
    sleeper.fall_asleep()
    sleeper.sim.plans = ["crashes", "fails"]
    batch = sleeper.batch()
    sleeper.sim.advance(10.0)
    assert worker_of(batch) == sleeper.sim.alive("m")[0].name


@pytest.mark.parametrize("when", ["suspended", "resuming"])
@pytest.mark.parametrize("what", ["scale", "unregister", "replace", "restart of tritonserver"])
def test_operations_on_a_suspended_model(sleeper: Sleeper, when: str, what: str) -> None:
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    batch = None
    if when == "resuming":
        sim.plans = ["hangs"]
        batch = sleeper.batch()
    if what == "scale":
        request = sim.client.ask(messages.Scale("m", 2))
        sim.advance(1.0)
        if when == "resuming":
            sim.workers[1].loaded()
        sim.served(request)
        assert len(sim.alive("m")) == 2
        assert sleeper.state() == "ready"
    elif what == "unregister":
        sim.answered(sim.client.ask(messages.Unregister("m")))
        assert sim.is_clean("m")
        if batch is not None:
            assert "is being stopped" in failure_of(batch)
    elif what == "replace":
        message = messages.Register(model_spec("m", autoscale=SLEEPY), replace=True)
        sim.served(sim.client.ask(message, [b"callable"]))
        assert len(sim.alive("m")) == 1
        assert sleeper.state() == "ready"
        sleeper.fall_asleep()
    else:
        sim.server.end()
        sim.advance(10.0)
        assert sim.is_served("m")
        assert sleeper.state() == when
        if when == "suspended":
            assert sim.alive("m") == []


def test_after_a_restart_it_is_suspended_until_a_request_arrives(start: Start) -> None:
    sleeper = start()
    sleeper.register()
    sleeper.register("other", autoscale=messages.Autoscale(1, 4))
    sleeper = start()
    sim = sleeper.sim
    sim.advance(5.0)
    assert (sleeper.state(), sleeper.state("other")) == ("suspended", "ready")
    assert sim.alive("m") == []
    assert sim.server.history == ["load other"]  # m came with the start
    assert (sim.rundir.models / "m" / "config.pbtxt").exists()  # for clients that load it again
    assert sleeper.event("restored")
    batch = sleeper.batch()
    sim.advance(1.0)
    assert worker_of(batch) == sim.alive("m")[0].name


def test_a_suspended_model_refused_at_tritonservers_start_is_reported(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = start()
    sleeper.register("bad")
    sleeper.register("good")
    start_server = FakeServer.start

    async def refusing(server: FakeServer, preload: Any = None) -> set[str]:
        server.obstacles["bad"] = Obstacle("refuse")
        return await start_server(server, preload)

    monkeypatch.setattr(FakeServer, "start", refusing)
    sleeper = start()
    sleeper.sim.advance(5.0)
    assert (sleeper.state("bad"), sleeper.state("good")) == ("failed", "suspended")
    assert "tritonserver did not load bad: no" in str(sleeper.info("bad").error)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("asked_at_s", [0.5, 2.0])
def test_suspended_models_can_be_unregistered_during_tritonservers_start(
    start: Start, refused: bool, asked_at_s: float
) -> None:
    sleeper = start()
    for name in ("a", "b", "c"):
        sleeper.register(name)
    sleeper = start(grace_period_s=0.5)  # it is over before tritonserver is up
    sim = sleeper.sim
    sim.server.unseen_s = 3.0
    if refused:
        sim.server.obstacles["b"] = Obstacle("refuse", 2)
    sim.advance(asked_at_s)
    requests = [sim.client.ask(messages.Unregister(name)) for name in ("a", "b")]
    sim.advance(60.0)
    assert all(one.answer is not None for one in requests)
    assert not sim.main.done()
    assert set(sim.server.models) == {"c"}
    assert [one.name for one in sim.loop.ask(sim.services.status.model_infos)] == ["c"]


def test_a_failed_scale_of_a_suspended_model_keeps_all_instances(
    sleeper: Sleeper,
) -> None:
    sim = sleeper.sim
    sleeper.register(instances=3, autoscale=None, lazy=True)
    assert sleeper.state() == "suspended"
    sim.server.obstacles["m"] = Obstacle("refuse")
    request = sim.client.ask(messages.Scale("m", 1))
    sim.advance(5.0)
    assert request.failure
    assert len(sim.alive("m")) == 3


def test_a_lazy_model_is_not_loaded_before_a_request(sleeper: Sleeper) -> None:
    """It is not suspended again either, unless that was requested."""
    sim = sleeper.sim
    sleeper.register(autoscale=None, lazy=True, instances=2)
    assert sim.alive("m") == []
    assert sleeper.state() == "suspended"
    assert sim.is_served("m")
    sim.advance(100.0)
    assert "suspended since" in sleeper.info().scaling
    batch = sleeper.batch()
    sim.advance(1.0)
    assert len(sim.alive("m")) == 2
    assert worker_of(batch) in {one.name for one in sim.alive("m")}
    sim.advance(1000.0)
    assert len(sim.alive("m")) == 2


def test_a_standby_worker_stays_and_serves_at_once(sleeper: Sleeper) -> None:
    sim = sleeper.sim
    sleeper.register(standby_workers=1)
    sleeper.fall_asleep()
    (standby,) = sim.alive("m")
    assert [one.standby for one in sleeper.info().instances] == [True]
    sim.plans = ["hangs"]
    assert worker_of(sleeper.batch()) == standby.name  # though the other one loads
    assert sleeper.state() == "ready"
    assert sleeper.event("resumed").numbers["took_s"] == 0.0
    sim.advance(1.0)
    assert len(sim.alive("m")) == 2


def test_work_of_a_standby_worker_resumes_the_model(sleeper: Sleeper) -> None:
    sim = sleeper.sim
    sleeper.register(standby_workers=1)
    sleeper.fall_asleep()
    (standby,) = sim.alive("m")
    standby.begin()  # the dispatcher was not asked
    standby.answer()
    sim.advance(2.0)
    assert sleeper.state() == "ready"
    assert len(sim.alive("m")) == 2


def test_a_prestarted_worker_resumes_the_model(start: Start) -> None:
    """The most recently suspended models have one; it is not an instance, and ends with the model."""
    sleeper = start(prestarted_workers=2)
    sim = sleeper.sim
    for name in "abc":
        sleeper.register(name)
        sim.advance(5.0)
    sim.plans = ["silent"] * 3
    sim.advance(70.0)
    assert [len(sim.alive(name)) for name in "abc"] == [0, 1, 1]
    (parked,) = sim.alive("b")
    assert parked.parked
    assert sleeper.info("b").instances == []
    batch = sleeper.batch("b")
    assert not parked.parked
    parked.greet()
    parked.loaded()
    sim.advance(1.0)
    assert worker_of(batch) == parked.name
    assert sim.alive("b") == [parked]
    sim.answered(sim.client.ask(messages.Unregister("c")))
    assert sim.is_clean("c")


def test_an_exited_prestarted_worker_is_not_needed(start: Start) -> None:
    sleeper = start(prestarted_workers=1)
    sim = sleeper.sim
    sleeper.register()
    sleeper.fall_asleep()
    sim.alive("m")[0].end()
    batch = sleeper.batch()
    sim.advance(1.0)
    assert worker_of(batch) == sim.alive("m")[0].name


def test_threads_cannot_be_lazy() -> None:
    spec = msgspec.structs.replace(model_spec("m", lazy=True), isolation="thread")
    with pytest.raises(RemoteFailure, match="has already loaded it"):
        check(spec, [b"callable"])
