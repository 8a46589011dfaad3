"""What the dispatcher does with each control message from clients, workers and proxies, and its answers."""

from __future__ import annotations

import os
import typing
from typing import Any

import msgspec
import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import SERVER_PID

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.messages import client
from pytriton.dispatcher import handlers
from pytriton.dispatcher.handlers import newest

_OTHER = messages.PROTOCOL + 1


def ask(
    sim: SimulatedDaemon, message: messages.AnyMessage, *payloads: bytes
) -> messages.AnyMessage:
    return sim.answered(sim.client.ask(message, payloads))


def reported(sim: SimulatedDaemon, message: messages.AnyMessage) -> messages.AnyMessage | None:
    """Send a worker's or proxy's message; return the answer, if there is one."""
    return sim.loop.run(sim.handle(message))


def attach(sim: SimulatedDaemon, **more: Any) -> messages.Attach:
    key = sim.server.models["m"].registration
    return messages.Attach(key, "m_new", SERVER_PID, **more)


def test_every_message_for_the_dispatcher_has_a_handler(sim: SimulatedDaemon) -> None:
    """Everything that clients, workers and proxies send; the other messages are answers and orders."""
    sent = set(typing.get_args(client.FromClient))
    sockets_own = {messages.Offer, messages.Cancel}
    assert sockets_own.isdisjoint(sim.daemon._handlers)
    missing = sorted(kind.__name__ for kind in sent - set(sim.daemon._handlers) - sockets_own)
    assert missing == [], "give these a handler in dispatcher/handlers.py: handlers_of"


def test_ids_of_the_openai_api_are_unique(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement may keep its model's aliases."""
    monkeypatch.setattr(sim.services.openai, "open", lambda: None)

    def register(name: str, *aliases: str, replace: bool = False) -> messages.AnyMessage:
        card = messages.OpenAICard(["chat"], aliases=list(aliases))
        spec = msgspec.structs.replace(model_spec(name), openai=card)
        return ask(sim, messages.Register(spec, replace), b"callable")

    assert isinstance(register("a", "org/model"), messages.Registered)
    again = register("a", "org/model", "org/other", replace=True)
    assert isinstance(again, messages.Registered)
    for name, alias in (("b", "org/other"), ("b", "a"), ("org-b", "org/model")):
        refused = register(name, alias)
        assert isinstance(refused, messages.Failure)
        assert "choose other aliases" in refused.text
    assert isinstance(register("b", "org/b"), messages.Registered)


@pytest.mark.parametrize("former_is_served", [True, False])
def test_messages_of_a_previous_version_are_handled_if_possible(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch, former_is_served: bool
) -> None:
    former = messages.PROTOCOL - 1
    served = (messages.PROTOCOL, former) if former_is_served else (messages.PROTOCOL,)
    monkeypatch.setattr(handlers, "PROTOCOLS", served)
    sim.served(sim.client.register("m"))
    asked = attach(sim, protocol=former)
    if former_is_served:
        assert isinstance(reported(sim, asked), messages.Attached)
    else:
        with pytest.raises(RemoteFailure, match=f"speaks protocol {former}, but this daemon"):
            reported(sim, asked)
    assert len(sim.services.registry.served.by_name("m").pool.proxies) == 1 + former_is_served


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        (messages.Done(), "Done is not a message for the dispatcher"),
        (messages.Register(model_spec(), protocol=_OTHER), "the client speaks protocol"),
        (messages.WorkerHello("w1", 1, "3.11", _OTHER), "worker w1 speaks protocol"),
        (messages.Attach("m#1", "p", SERVER_PID, protocol=_OTHER), "the proxy speaks protocol"),
        (messages.Attach("m#9", "p", SERVER_PID), "registration m#9 is gone"),
        (messages.LaneLost("m#9", "w1", 1), "registration m#9 is gone"),
        (messages.BatchOverdue("m#9", "w1", was_read=True), "registration m#9 is gone"),
        (messages.Detach("m#9", "p"), "registration m#9 is gone"),
        (messages.WorkerReady("w9"), "this daemon has no worker w9"),
        (messages.WorkerFailed("w9", "", ""), "no worker w9"),
        (messages.WorkerRecycleDue("w9", messages.RecycleReason.MEMORY, ""), "no worker w9"),
        (messages.WorkerEnded("w9", ""), "no worker w9"),
        (messages.WorkerReadiness("w9", ready=True, why=""), "no worker w9"),
        (messages.WorkerUnrecoverable("w9", ""), "no worker w9"),
        (messages.MayCall("none", [], []), "no model 'none' is registered; registered models: m"),
        (messages.GetLogs("none"), "no model 'none' is registered"),
        (messages.Unregister("none"), "no model 'none' is registered"),
        (messages.Rollback("m"), "there is nothing to roll back to"),
        (messages.LoadFromRepository("none"), "no model repository has a model 'none'; available"),
        (
            messages.UnloadFromRepository("m"),
            "no model named 'm' has been loaded from a model repository",
        ),
        (messages.LoadOther("w1", "none", "", []), "no model repository has a model 'none'"),
        (messages.UnloadOther("w1", "m", dependents=False), "other models cannot unload it"),
        (messages.AskReadiness("m", "one"), "'one' is not a valid model version"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, msgspec.Struct) else None,
)
def test_errors_are_reported(
    sim: SimulatedDaemon, message: messages.AnyMessage, failure: str
) -> None:
    sim.served(sim.client.register("m"))
    answer = ask(sim, message)
    assert isinstance(answer, messages.Failure)
    assert failure in answer.text
    assert sim.is_served("m")


@pytest.mark.parametrize(
    ("spec", "payloads", "failure"),
    [
        (model_spec("../up"), [b""], "is not a valid model name"),
        (model_spec(instances=0), [b""], "instances=0: it must be at least 1"),
        (model_spec(instances=3), [b"", b""], "2 callables were sent for 3 instances"),
        (model_spec(max_inflight_batches=17), [b""], "it must be between 1 and 16"),
        (model_spec(devices=["9999"]), [b""], "devices= contains GPU"),
        (
            messages.ModelSpec(
                "m", 1, {"response_cache": {"enable": True}}, messages.WorkerEnvironment("python")
            ),
            [b""],
            "this daemon has no response cache",
        ),
    ],
    ids=["name", "instances", "payloads", "lanes", "GPU", "cache"],
)
def test_an_invalid_registration_is_refused_before_anything_is_started(
    sim: SimulatedDaemon, spec: messages.ModelSpec, payloads: list[bytes], failure: str
) -> None:
    answer = ask(sim, messages.Register(spec), *payloads)
    assert isinstance(answer, messages.Failure)
    assert (answer.kind, failure in answer.text) == ("invalid", True)
    assert sim.workers == []


def test_clients_can_read_models_and_status(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m", instances=2))
    models = ask(sim, messages.ListModels())
    status = ask(sim, messages.GetStatus())
    assert isinstance(models, messages.Models)
    assert isinstance(status, messages.Status)
    assert [(one.name, one.state, len(one.instances)) for one in models.models] == [
        ("m", "ready", 2)
    ]
    assert [one.name for one in status.models] == ["m"]
    assert (status.state, status.pid, status.problems) == ("ready", os.getpid(), [])
    assert (status.server.state, status.server.pid) == ("ready", SERVER_PID)
    assert status.state_dir == str(sim.state)


def test_logs_are_sent_as_far_as_they_fit(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    sim.rundir.log_file("m").write_text("".join(f'{{"event":"{i}"}}\n' for i in range(100)))
    answer = ask(sim, messages.GetLogs("m", 3))
    assert isinstance(answer, messages.LogLines)
    assert [line[-4:-2] for line in answer.lines] == ["97", "98", "99"]
    assert ask(sim, messages.GetLogs("m", -1)) == messages.LogLines([])
    assert newest(["aaaa", "bbb", "cc"], 5) == ["bbb", "cc"]
    assert newest(["äää"], 5) == []  # bytes count


def test_a_worker_is_given_its_model(sim: SimulatedDaemon) -> None:
    """LoadModel answers its hello, once; then the worker reports its state."""
    sim.usual_plan = "silent"
    request = sim.client.register("m")
    sim.settle()
    assert reported(sim, messages.WorkerHello("w1", 1, "3.11")) is None
    with pytest.raises(RemoteFailure, match="worker w1 has already sent Hello"):
        reported(sim, messages.WorkerHello("w1", 1, "3.11"))
    assert reported(sim, messages.WorkerReady("w1")) is None
    sim.served(request)
    assert reported(sim, messages.WorkerFailed("w1", "too late", "")) is None
    assert sim.is_served("m")


def test_a_failed_worker_is_reported_with_its_traceback(sim: SimulatedDaemon) -> None:
    sim.usual_plan = "hangs"
    request = sim.client.register("m")
    sim.settle()
    reported(sim, messages.WorkerFailed("w1", "no file", "Traceback …"))
    answer = sim.answered(request)
    assert answer == messages.Failure(
        ErrorKind.LOAD_FAILED.value, "model m could not be loaded: no file", "Traceback …"
    )


def test_a_worker_due_for_recycling_is_replaced(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    (old,) = sim.alive("m")
    reported(sim, messages.WorkerRecycleDue(old.name, messages.RecycleReason.MAX_BATCHES, "first"))
    reported(sim, messages.WorkerRecycleDue(old.name, messages.RecycleReason.MAX_BATCHES, "again"))
    sim.settle()
    (new,) = sim.alive("m")
    assert new is not old
    assert sim.is_served("m")


def test_a_process_cannot_declare_its_own_exit_reason(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    reported(sim, messages.WorkerEnded("w1", "says that it has ended"))
    assert len(sim.alive("m")) == 1


def test_a_worker_that_is_not_accepting_gets_no_batches_if_others_can(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m", instances=2))
    first, second = sim.alive("m")
    reported(sim, messages.WorkerReadiness(first.name, ready=False, why="no weights"))
    attached = reported(sim, attach(sim))
    assert isinstance(attached, messages.Attached)
    assert attached.worker == second.name
    assert first.lanes_withdrawn == 1
    reported(
        sim, messages.WorkerReadiness(first.name, ready=False, why="no weights")
    )  # reported again
    assert first.lanes_withdrawn == 1
    reported(sim, messages.WorkerReadiness(second.name, ready=False, why="neither"))
    sim.advance(10.0)
    assert sim.state_of("m") == "not_ready"
    reported(sim, messages.WorkerReadiness(first.name, ready=True, why=""))
    sim.advance(10.0)
    assert sim.state_of("m") == "degraded"
    reported(sim, messages.WorkerReadiness(second.name, ready=True, why=""))
    sim.advance(10.0)
    assert sim.state_of("m") == "ready"


def test_an_unrecoverable_error_stops_the_daemon(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    reported(sim, messages.WorkerUnrecoverable("w1", "the GPU has fallen off the bus"))
    assert sim.loop.run(sim.main) == ExitCode.UNRECOVERABLE
    assert sim.persisted().keys() == {"m"}


def test_a_client_stops_the_daemon(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    assert ask(sim, messages.Shutdown()) == messages.Done()
    assert sim.loop.run(sim.main) == ExitCode.OK
    assert sim.alive() == []
    assert sim.persisted().keys() == {"m"}


def test_a_proxy_gets_a_worker_and_retry_decisions(sim: SimulatedDaemon) -> None:
    """It attaches, loses the worker during a batch, attaches again, and detaches."""
    sim.served(sim.client.register("m", instances=2, execution_timeout_s=2.0))
    key = sim.server.models["m"].registration
    attached = reported(sim, attach(sim))
    assert isinstance(attached, messages.Attached)
    assert attached.execution_timeout_s == 2.0
    worker = next(one for one in sim.alive() if one.name == attached.worker)
    waits = reported(sim, messages.BatchOverdue(key, worker.name, was_read=False))
    assert isinstance(waits, messages.Verdict)
    assert waits.action == "wait"
    worker.end(in_batch=True)
    verdict = reported(sim, messages.LaneLost(key, worker.name, 1))
    assert isinstance(verdict, messages.Verdict)
    assert verdict.action == "retry"
    failed = reported(sim, messages.LaneLost(key, worker.name, 2, consecutive_losses=1))
    assert isinstance(failed, messages.Verdict)
    assert failed.action == "fail"
    other = reported(sim, attach(sim, lost=worker.name))
    assert isinstance(other, messages.Attached)
    assert other.worker != worker.name
    registration = sim.services.registry.served.by_key(key)
    proxies = len(registration.pool.proxies)
    reported(sim, messages.Detach(key, "m_new"))
    assert len(registration.pool.proxies) == proxies - 1


def test_a_proxy_does_not_delay_tritonservers_start(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    message = attach(sim)
    sim.usual_plan = "hangs"
    sim.alive("m")[0].end()
    sim.server.end()
    with pytest.raises(RemoteFailure, match="model m has no worker at the moment"):
        reported(sim, message)


def test_circular_calls_are_reported(sim: SimulatedDaemon) -> None:
    """A call back to a model whose workers all wait, and two models that wait for each other."""
    for name in ("m", "n"):
        sim.served(sim.client.register(name))
    circle = reported(sim, messages.MayCall("m", ["m", "n"], ["w1", "w2"]))
    assert isinstance(circle, messages.Verdict)
    assert (circle.action, "m → n → m" in circle.text) == ("fail", True)
    assert reported(sim, messages.MayCall("m", ["n"], ["w2"])) == messages.Verdict("retry")
    alone = reported(sim, messages.CallsWait(os.getpid(), "w1", ["n"]))
    assert alone == messages.StuckCalls([], "")
    stuck = reported(sim, messages.CallsWait(os.getpid(), "w2", ["m"]))
    assert isinstance(stuck, messages.StuckCalls)
    assert stuck.models == ["m"]
    assert "a worker of n waits for m" in stuck.text


def test_readiness_is_reported_per_version(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m", versions=[1, 3]))
    answers = {
        version: reported(sim, messages.AskReadiness("m", version))
        for version in ("", "-1", "3", "2")
    }
    assert answers == {
        "": messages.Readiness(True),
        "-1": messages.Readiness(True),
        "3": messages.Readiness(True),
        "2": messages.Readiness(False),
    }
    assert reported(sim, messages.AskReadiness("none", "")) == messages.Readiness(False)


def test_settings_are_reloaded_when_the_daemon_is_ready(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = msgspec.structs.replace(sim.config, grace_period_s=1.0)
    answer = messages.Reloaded(["grace_period_s"], [])
    monkeypatch.setattr(
        "pytriton.dispatcher.settings_reload.reload_settings", lambda *_: (changed, answer)
    )
    assert ask(sim, messages.Reload()) == answer
    assert sim.services.config is changed
    sim.served(sim.client.register("m"))
    sim.server.hold_proxies = True
    request = sim.client.ask(messages.Unregister("m"))
    sim.advance(1.1)
    assert request.answer == messages.Done()
