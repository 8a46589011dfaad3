"""Histories of models that are served: workers, proxies and tritonserver end, clients scale and unload them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from support.fakes.brain import Brain
from support.fakes.triton.fake_server import Obstacle

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.telemetry.metrics.families import FAMILIES


@pytest.mark.parametrize(
    ("plans", "states"),
    [
        (["serves"], {"ready"}),
        (["crashes", "serves"], {"ready"}),
        (["crashes", "crashes", "crashes", "serves"], {"ready", "unready"}),
        (["fails"] * 9 + ["serves"], {"ready", "unready"}),
    ],
    ids=["once", "twice", "crashes in load three times", "fails for long"],
)
def test_a_worker_that_ends_is_replaced_until_one_serves(
    brain: Brain, plans: list[str], states: set[str]
) -> None:
    """Without any for a while, the model is out of tritonserver."""
    brain.served(brain.client.register("m"))
    brain.plans = list(plans)
    brain.alive("m")[0].end()
    seen = set()
    for _ in range(2000):
        brain.advance(0.1)
        state = brain.state_of("m")
        assert ("m" in brain.server.models) == (state in ("ready", "degraded"))
        seen.add(state)
        if state == "ready" and not brain.plans and brain.alive("m"):
            break
    assert seen == states
    assert brain.is_served("m")
    assert len(brain.alive("m")) == 1


def test_a_model_in_a_crash_loop_can_be_healed_at_once(brain: Brain) -> None:
    brain.served(brain.client.register("m"))
    brain.usual_plan = "crashes"
    brain.alive("m")[0].end()
    brain.advance(30.0)
    assert brain.state_of("m") == "unready"
    status = brain.answered(brain.client.ask(messages.GetStatus()))
    assert isinstance(status, messages.Status)
    assert any("crash loop" in problem for problem in status.problems)
    request = brain.client.ask(messages.Scale("m", 1))
    brain.answered(request)
    assert "model m now has 1 instances, but instance 0 of model m has no worker" in request.failure
    brain.usual_plan = "serves"
    brain.served(brain.client.ask(messages.Scale("m", 1)))
    assert brain.is_served("m")


def test_a_model_that_serves_with_an_instance_in_a_crash_loop_is_degraded(brain: Brain) -> None:
    """The one word, with its reason, in status, metrics and explain; clients are served all the while."""

    def asked(message: messages.AnyMessage) -> Any:
        return brain.answered(brain.client.ask(message))

    brain.served(brain.client.register("m", instances=2))
    brain.usual_plan = "fails"
    brain.alive("m")[0].end()
    brain.advance(60.0)
    (model,) = asked(messages.GetStatus()).models
    assert model.state == "degraded"
    assert model.error.startswith("instance 0 is in a crash loop: ")
    assert brain.is_served("m")
    figures = asked(messages.GetFigures())
    assert (figures.models[0].state, figures.models[0].error) == ("degraded", model.error)
    (family,) = (one for one in FAMILIES if one.name == "model_state")
    states = {labels[-1]: value for labels, value in family.read(figures)}
    assert [state for state, value in states.items() if value] == ["degraded"]
    assert asked(messages.Explain("m")).verdict.startswith(
        "m is degraded: instance 0 is in a crash loop"
    )
    brain.usual_plan = "serves"
    brain.served(brain.client.ask(messages.Scale("m", 2)))
    (model,) = asked(messages.GetStatus()).models
    assert (model.state, model.error) == ("ready", None)


@pytest.mark.parametrize("instances", [1, 3, 4])
@pytest.mark.parametrize("plan", ["serves", "fails", "crashes", "refuse", "end"])
def test_scaling_is_all_or_nothing(brain: Brain, plan: str, instances: int) -> None:
    brain.served(brain.client.register("m", instances=2))
    before = brain.alive("m")
    if plan in ("refuse", "end"):
        brain.server.obstacles["m"] = Obstacle(plan)
    else:
        brain.usual_plan = plan
    request = brain.client.ask(messages.Scale("m", instances))
    answer = brain.answered(request)
    well = plan == "serves" or (instances < 2 and plan in ("fails", "crashes"))
    assert isinstance(answer, messages.Registered if well else messages.Failure)
    brain.usual_plan = "serves"
    brain.advance(100.0)
    assert len(brain.alive("m")) == (instances if well else 2)
    assert brain.alive("m")[0] is before[0]
    assert brain.kept()["m"].spec.instances == (instances if well else 2)
    assert brain.is_served("m")
    assert len(brain.server.models["m"].proxies) == (instances if well else 2)


@pytest.mark.parametrize(
    ("native", "decoupled", "kept"),
    [(False, True, True), (True, True, False), (False, False, False)],
)
def test_python_proxies_of_streams_stay_when_workers_go(
    brain: Brain, native: bool, decoupled: bool, kept: bool
) -> None:
    """tritonserver would hear nothing more from those that it ends."""
    brain.server.proxy_is_native = native
    policy = {"model_transaction_policy": {"decoupled": decoupled}}
    spec = messages.ModelSpec("m", 1, policy, messages.World("python"), instances=3)
    brain.served(brain.client.ask(messages.Register(spec), [b"callable"]))
    for instances in (1, 4, 2):
        brain.served(brain.client.ask(messages.Scale("m", instances)))
        assert len(brain.alive("m")) == instances
        proxies = len(brain.server.models["m"].proxies)
        assert proxies == ({1: 3, 4: 4, 2: 4}[instances] if kept else instances)
    assert brain.is_served("m")


def test_what_cannot_be_scaled_is_told(brain: Brain) -> None:
    brain.served(brain.client.register("m"))
    message = messages.Register(
        messages.ModelSpec("list", 1, {}, messages.World("python"), instances=2)
    )
    brain.served(brain.client.ask(message, [b"one", b"two"]))
    for name, instances, words in [
        ("m", 0, "it must be at least 1"),
        ("m", 5000, "at most 1024"),
        ("list", 3, "a list of 2 callables"),
        ("none", 1, "no model 'none' is registered; registered models: list, m"),
    ]:
        request = brain.client.ask(messages.Scale(name, instances))
        brain.settle()
        assert words in request.failure
    assert len(brain.alive()) == 3


@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_what_cannot_be_kept_is_not_scaled(
    brain: Brain, monkeypatch: pytest.MonkeyPatch, fails: str, instances: int
) -> None:
    """A full disk refuses at the beginning, other faults of it at the very end."""
    brain.served(brain.client.register("m", instances=2))
    started = len(brain.workers)

    def refuse(*what: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, refuse)
        failed = brain.client.ask(messages.Scale("m", instances))
        brain.answered(failed)
    assert "No space left on device" in failed.failure
    if fails == "fsync":
        assert len(brain.workers) == started
    brain.advance(30.0)
    assert len(brain.alive("m")) == len(brain.server.models["m"].proxies) == 2
    assert brain.is_served("m")
    assert brain.kept()["m"].spec.instances == 2
    assert [*(brain.state / "models").glob("*.unfinished")] == []
    brain.served(brain.client.ask(messages.Scale("m", 3)))
    assert (len(brain.alive("m")), brain.kept()["m"].spec.instances) == (3, 3)


def test_a_client_of_tritonserver_unloads_a_model(brain: Brain) -> None:
    """The daemon sees it, keeps the workers, and does not load it, whatever happens, until a client does."""
    brain.served(brain.client.register("m"))
    brain.loop.run(brain.server.unload("m"))
    brain.advance(10.0)
    assert brain.state_of("m") == "unloaded"
    brain.server.end()
    brain.alive("m")[0].end()
    brain.advance(100.0)
    assert "m" not in brain.server.models
    brain.served(brain.client.ask(messages.Scale("m", 2)))
    config = (brain.rundir.models / "m" / "config.pbtxt").read_text()
    assert "count: 2" in config  # as a client that loads it by its name gets it
    registration = brain.loop.ask(lambda: brain.daemon.registry.by_name("m"))
    brain.loop.run(brain.server.load("m", registration.in_triton.config))
    brain.advance(10.0)
    assert brain.state_of("m") == "ready"
    assert brain.is_served("m")


def test_unregistering_waits_for_batches_as_long_as_the_grace_period(brain: Brain) -> None:
    for name, let_go in itertools.product(("m", "n"), (True, False)):
        brain.served(brain.client.register(name))
        brain.server.hold_proxies = True
        request = brain.client.ask(messages.Unregister(name))
        brain.advance(20.0)
        assert request.answer is None
        assert len(brain.alive(name)) == 1
        if let_go:
            brain.let_batches_end()
        else:
            brain.advance(11.0)
        assert request.answer == messages.Done()
        brain.let_batches_end()
        assert brain.is_clean(name)


def test_the_owner_of_threads_ends_while_a_batch_runs(brain: Brain) -> None:
    """The model goes at once; its proxies are told that nobody comes any more."""
    client = brain.connect()
    brain.served(client.register("m", isolation="thread"))
    (proxy,) = brain.server.models["m"].proxies
    key = brain.server.models["m"].registration
    client.end_process()

    async def attach() -> None:
        await brain.handle(messages.Attach(key, proxy, 4000, lost="w1"))

    with pytest.raises(RemoteFailure, match=r"which ran it in its threads .* has ended|is gone"):
        brain.loop.run(attach())
    brain.advance(10.0)
    assert brain.is_clean("m")


def test_several_models_of_one_process_end_with_it(brain: Brain) -> None:
    client, other = brain.connect(), brain.connect()
    for name in ("a", "b"):
        brain.served(client.register(name, temporary=True))
    brain.served(client.register("kept"))
    brain.served(other.register("c", temporary=True))
    client.end_process()
    brain.advance(10.0)
    assert brain.is_clean("a")
    assert brain.is_clean("b")
    assert brain.is_served("kept")
    assert brain.is_served("c")


def test_a_replaced_models_batches_are_answered_by_its_own_workers(brain: Brain) -> None:
    """They end when its proxies have, and no later than the grace period."""
    brain.served(brain.client.register("m", b"old"))
    (old,) = brain.alive("m")
    former = brain.server.models["m"]
    brain.server.hold_proxies = True
    request = brain.client.register("m", b"new", replace=True)
    brain.settle()
    assert brain.is_served("m")  # by the new one
    assert old.alive
    attached = brain.loop.run(
        brain.handle(messages.Attach(former.registration, former.proxies[0], 4000))
    )
    assert isinstance(attached, messages.Attached)
    assert attached.worker == old.name
    brain.let_batches_end()
    brain.served(request)
    assert not old.alive


@pytest.mark.parametrize("temporary", [True, False])
def test_given_up_at_any_moment_the_state_directory_knows_what_serves(
    brain: Brain, monkeypatch: pytest.MonkeyPatch, temporary: bool
) -> None:
    """Its disk is slow: what has been done there is known only later."""

    async def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        done = function(*arguments)
        await asyncio.sleep(0.2)
        return done

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    serving = []
    for twentieths in range(14):
        name = f"m{twentieths}"
        for payload in (b"first", b"old"):
            brain.served(brain.client.register(name, payload, replace=True))
        request = brain.client.register(name, b"new", replace=True, temporary=temporary)
        brain.advance(twentieths / 20)
        brain.client.give_up(request)
        brain.advance(5.0)
        serving.append(brain.daemon.registry.by_name(name).payloads(0)[0])
        kept = brain.kept().get(name)
        if serving[-1] == b"new" and temporary:
            assert kept is None
            assert not (brain.state / "models" / f"{name}.previous").exists()
        else:
            assert kept is not None
            assert kept.payloads == [serving[-1]]
    assert serving[-1] == b"new"
    assert [*(brain.state / "models").glob("*.unfinished")] == []


@pytest.mark.parametrize("suffix", ["registration", "previous"])
def test_what_cannot_be_forgotten_serves_on(
    brain: Brain, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    for payload in (b"first", b"old"):
        brain.served(brain.client.register("m", payload, replace=True))
    replace, unlink = os.replace, os.unlink

    def refused(source: Any, *target: Any, **options: Any) -> None:
        if str(source).endswith(suffix):
            raise PermissionError(errno.EACCES, "Permission denied")
        (replace if target else unlink)(source, *target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        patch.setattr(os, "unlink", refused)
        failed = brain.client.register("m", b"new", replace=True, temporary=True)
        brain.answered(failed)
    assert f"m.{suffix} cannot be removed: Permission denied" in failed.failure
    assert brain.daemon.registry.by_name("m").payloads(0) == [b"old"]
    assert brain.kept()["m"].payloads == [b"old"]
    brain.served(brain.client.ask(messages.Rollback("m")))
    assert brain.kept()["m"].payloads == [b"first"]
