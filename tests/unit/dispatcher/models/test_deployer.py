"""Histories of served models: workers, proxies and tritonserver exit, clients scale and unload them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES


@pytest.mark.parametrize(
    ("plans", "states"),
    [
        (["serves"], {"ready"}),
        (["crashes", "serves"], {"ready"}),
        (["crashes", "crashes", "crashes", "serves"], {"ready", "not_ready"}),
        (["fails"] * 9 + ["serves"], {"ready", "not_ready"}),
    ],
    ids=["once", "twice", "crashes in load three times", "fails for long"],
)
def test_exited_workers_are_replaced_until_one_serves(
    sim: SimulatedDaemon, plans: list[str], states: set[str]
) -> None:
    """Without a worker for a while, the model is unloaded from tritonserver."""
    sim.served(sim.client.register("m"))
    sim.plans = list(plans)
    sim.alive("m")[0].end()
    seen = set()
    for _ in range(2000):
        sim.advance(0.1)
        state = sim.state_of("m")
        assert ("m" in sim.server.models) == (state in ("ready", "degraded"))
        seen.add(state)
        if state == "ready" and not sim.plans and sim.alive("m"):
            break
    assert seen == states
    assert sim.is_served("m")
    assert len(sim.alive("m")) == 1


def test_a_crash_looping_model_can_be_retried_immediately(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    sim.usual_plan = "crashes"
    sim.alive("m")[0].end()
    sim.advance(30.0)
    assert sim.state_of("m") == "not_ready"
    status = sim.answered(sim.client.ask(messages.GetStatus()))
    assert isinstance(status, messages.Status)
    assert any("crash loop" in problem for problem in status.problems)
    request = sim.client.ask(messages.Scale("m", 1))
    sim.answered(request)
    assert "model m now has 1 instances, but instance 0 of model m has no worker" in request.failure
    sim.usual_plan = "serves"
    sim.served(sim.client.ask(messages.Scale("m", 1)))
    assert sim.is_served("m")


def test_a_serving_model_with_a_crash_looping_instance_is_degraded(
    sim: SimulatedDaemon,
) -> None:
    """Status, metrics and explain agree on the state and its reason; clients are still served."""

    def asked(message: messages.AnyMessage) -> Any:
        return sim.answered(sim.client.ask(message))

    sim.served(sim.client.register("m", instances=2))
    sim.usual_plan = "fails"
    sim.alive("m")[0].end()
    sim.advance(60.0)
    (model,) = asked(messages.GetStatus()).models
    assert model.state == "degraded"
    assert model.error.startswith("instance 0 is in a crash loop: ")
    assert sim.is_served("m")
    figures = asked(messages.GetMetrics())
    assert (figures.models[0].state, figures.models[0].error) == ("degraded", model.error)
    (family,) = (one for one in FAMILIES if one.name == "model_state")
    scrape = sim.loop.run(sim.services.metrics.scrape())
    states = {labels[-1]: value for labels, value in family.read(scrape)}
    assert [state for state, value in states.items() if value] == ["degraded"]
    assert asked(messages.Explain("m")).verdict.startswith(
        "m is degraded: instance 0 is in a crash loop"
    )
    sim.usual_plan = "serves"
    sim.served(sim.client.ask(messages.Scale("m", 2)))
    (model,) = asked(messages.GetStatus()).models
    assert (model.state, model.error) == ("ready", None)


@pytest.mark.parametrize("instances", [1, 3, 4])
@pytest.mark.parametrize("plan", ["serves", "fails", "crashes", "refuse", "end"])
def test_scaling_is_all_or_nothing(sim: SimulatedDaemon, plan: str, instances: int) -> None:
    sim.served(sim.client.register("m", instances=2))
    before = sim.alive("m")
    if plan in ("refuse", "end"):
        sim.server.obstacles["m"] = Obstacle(plan)
    else:
        sim.usual_plan = plan
    request = sim.client.ask(messages.Scale("m", instances))
    answer = sim.answered(request)
    well = plan == "serves" or (instances < 2 and plan in ("fails", "crashes"))
    assert isinstance(answer, messages.Registered if well else messages.Failure)
    sim.usual_plan = "serves"
    sim.advance(100.0)
    assert len(sim.alive("m")) == (instances if well else 2)
    assert sim.alive("m")[0] is before[0]
    assert sim.persisted()["m"].spec.instances == (instances if well else 2)
    assert sim.is_served("m")
    assert len(sim.server.models["m"].proxies) == (instances if well else 2)


@pytest.mark.parametrize(
    ("native", "decoupled", "kept"),
    [(False, True, True), (True, True, False), (False, False, False)],
)
def test_python_proxies_of_streams_stay_when_workers_exit(
    sim: SimulatedDaemon, native: bool, decoupled: bool, kept: bool
) -> None:
    """tritonserver would not notice the exit of proxies that it stops itself."""
    sim.server.proxy_is_native = native
    policy = {"model_transaction_policy": {"decoupled": decoupled}}
    spec = messages.ModelSpec("m", 1, policy, messages.WorkerEnvironment("python"), instances=3)
    sim.served(sim.client.ask(messages.Register(spec), [b"callable"]))
    for instances in (1, 4, 2):
        sim.served(sim.client.ask(messages.Scale("m", instances)))
        assert len(sim.alive("m")) == instances
        proxies = len(sim.server.models["m"].proxies)
        assert proxies == ({1: 3, 4: 4, 2: 4}[instances] if kept else instances)
    assert sim.is_served("m")


def test_unscalable_models_are_reported(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    message = messages.Register(
        messages.ModelSpec("list", 1, {}, messages.WorkerEnvironment("python"), instances=2)
    )
    sim.served(sim.client.ask(message, [b"one", b"two"]))
    for name, instances, words in [
        ("m", 0, "it must be at least 1"),
        ("m", 5000, "at most 1024"),
        ("list", 3, "a list of 2 callables"),
        ("none", 1, "no model 'none' is registered; registered models: list, m"),
    ]:
        request = sim.client.ask(messages.Scale(name, instances))
        sim.settle()
        assert words in request.failure
    assert len(sim.alive()) == 3


@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_scale_that_cannot_be_persisted_is_refused(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch, fails: str, instances: int
) -> None:
    """A full disk refuses at the start, other disk errors at the very end."""
    sim.served(sim.client.register("m", instances=2))
    started = len(sim.workers)

    def refuse(*what: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, refuse)
        failed = sim.client.ask(messages.Scale("m", instances))
        sim.answered(failed)
    assert "No space left on device" in failed.failure
    if fails == "fsync":
        assert len(sim.workers) == started
    sim.advance(30.0)
    assert len(sim.alive("m")) == len(sim.server.models["m"].proxies) == 2
    assert sim.is_served("m")
    assert sim.persisted()["m"].spec.instances == 2
    assert [*(sim.state / "models").glob("*.unfinished")] == []
    sim.served(sim.client.ask(messages.Scale("m", 3)))
    assert (len(sim.alive("m")), sim.persisted()["m"].spec.instances) == (3, 3)


def test_a_client_of_tritonserver_unloads_a_model(sim: SimulatedDaemon) -> None:
    """The daemon notices, keeps the workers, and does not load it until a client does."""
    sim.served(sim.client.register("m"))
    sim.loop.run(sim.server.unload("m"))
    sim.advance(10.0)
    assert sim.state_of("m") == "unloaded"
    sim.server.end()
    sim.alive("m")[0].end()
    sim.advance(100.0)
    assert "m" not in sim.server.models
    sim.served(sim.client.ask(messages.Scale("m", 2)))
    config = (sim.rundir.models / "m" / "config.pbtxt").read_text()
    assert "count: 2" in config  # as when a client loads it by name
    registration = sim.loop.ask(lambda: sim.services.registry.served.by_name("m"))
    sim.loop.run(sim.server.load("m", registration.in_triton.config))
    sim.advance(10.0)
    assert sim.state_of("m") == "ready"
    assert sim.is_served("m")


def test_unregistering_waits_for_batches_as_long_as_the_grace_period(sim: SimulatedDaemon) -> None:
    for name, let_go in itertools.product(("m", "n"), (True, False)):
        sim.served(sim.client.register(name))
        sim.server.hold_proxies = True
        request = sim.client.ask(messages.Unregister(name))
        sim.advance(20.0)
        assert request.answer is None
        assert len(sim.alive(name)) == 1
        if let_go:
            sim.let_batches_end()
        else:
            sim.advance(11.0)
        assert request.answer == messages.Done()
        sim.let_batches_end()
        assert sim.is_clean(name)


def test_the_owner_of_threads_exits_during_a_batch(sim: SimulatedDaemon) -> None:
    """The model is removed at once; its proxies learn that no worker will come."""
    client = sim.connect()
    sim.served(client.register("m", isolation="thread"))
    (proxy,) = sim.server.models["m"].proxies
    key = sim.server.models["m"].registration
    client.end_process()

    async def attach() -> None:
        await sim.handle(messages.Attach(key, proxy, 4000, lost="w1"))

    with pytest.raises(
        RemoteFailure, match=r"which ran the model in its threads .* has exited|is gone"
    ):
        sim.loop.run(attach())
    sim.advance(10.0)
    assert sim.is_clean("m")


def test_several_models_of_one_process_end_with_it(sim: SimulatedDaemon) -> None:
    client, other = sim.connect(), sim.connect()
    for name in ("a", "b"):
        sim.served(client.register(name, ephemeral=True))
    sim.served(client.register("kept"))
    sim.served(other.register("c", ephemeral=True))
    client.end_process()
    sim.advance(10.0)
    assert sim.is_clean("a")
    assert sim.is_clean("b")
    assert sim.is_served("kept")
    assert sim.is_served("c")


def test_a_replaced_models_batches_are_answered_by_its_own_workers(sim: SimulatedDaemon) -> None:
    """Those stop after its proxies, and at the latest after the grace period."""
    sim.served(sim.client.register("m", b"old"))
    (old,) = sim.alive("m")
    former = sim.server.models["m"]
    sim.server.hold_proxies = True
    request = sim.client.register("m", b"new", replace=True)
    sim.settle()
    assert sim.is_served("m")  # by the new one
    assert old.alive
    attached = sim.loop.run(
        sim.handle(messages.Attach(former.registration, former.proxies[0], 4000))
    )
    assert isinstance(attached, messages.Attached)
    assert attached.worker == old.name
    sim.let_batches_end()
    sim.served(request)
    assert not old.alive


@pytest.mark.parametrize("ephemeral", [True, False])
def test_after_a_cancellation_at_any_moment_the_state_directory_matches(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch, ephemeral: bool
) -> None:
    """With a slow disk, whose results are known late."""

    async def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        done = function(*arguments)
        await asyncio.sleep(0.2)
        return done

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    serving = []
    for twentieths in range(14):
        name = f"m{twentieths}"
        for payload in (b"first", b"old"):
            sim.served(sim.client.register(name, payload, replace=True))
        request = sim.client.register(name, b"new", replace=True, ephemeral=ephemeral)
        sim.advance(twentieths / 20)
        sim.client.give_up(request)
        sim.advance(5.0)
        serving.append(sim.services.registry.served.by_name(name).payloads(0)[0])
        kept = sim.persisted().get(name)
        if serving[-1] == b"new" and ephemeral:
            assert kept is None
            assert not (sim.state / "models" / f"{name}.previous").exists()
        else:
            assert kept is not None
            assert kept.payloads == [serving[-1]]
    assert serving[-1] == b"new"
    assert [*(sim.state / "models").glob("*.unfinished")] == []


@pytest.mark.parametrize("suffix", ["registration", "previous"])
def test_a_model_that_cannot_be_removed_from_the_store_keeps_serving(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    for payload in (b"first", b"old"):
        sim.served(sim.client.register("m", payload, replace=True))
    replace, unlink = os.replace, os.unlink

    def refused(source: Any, *target: Any, **options: Any) -> None:
        if str(source).endswith(suffix):
            raise PermissionError(errno.EACCES, "Permission denied")
        (replace if target else unlink)(source, *target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        patch.setattr(os, "unlink", refused)
        failed = sim.client.register("m", b"new", replace=True, ephemeral=True)
        sim.answered(failed)
    assert f"m.{suffix} cannot be removed: Permission denied" in failed.failure
    assert sim.services.registry.served.by_name("m").payloads(0) == [b"old"]
    assert sim.persisted()["m"].payloads == [b"old"]
    sim.served(sim.client.ask(messages.Rollback("m")))
    assert sim.persisted()["m"].payloads == [b"first"]
