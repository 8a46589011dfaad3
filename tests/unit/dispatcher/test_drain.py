"""A draining daemon: what it refuses, how long it keeps serving, and how it exits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher.shutdown import REFUSAL
from pytriton.dispatcher.telemetry.events import kinds

_FOR_SETTLING = messages.Drain(settle_s=20.0, timeout_s=3.0)


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimulatedDaemon]:
    sim = SimulatedDaemon(tmp_path)
    sim.served(sim.client.register("m"))
    yield sim
    sim.close()


def phase(sim: SimulatedDaemon) -> str:
    return sim.loop.ask(sim.services.status.status).state


def drain(sim: SimulatedDaemon, wish: messages.Drain) -> None:
    request = sim.client.ask(wish)
    sim.settle()
    assert request.answer == messages.Done()


def test_a_drained_daemon_keeps_serving_for_a_while_and_exits_with_0(sim: SimulatedDaemon) -> None:
    assert sim.server.gate_open
    drain(sim, _FOR_SETTLING)
    assert (phase(sim), sim.server.gate_open) == ("draining", False)
    sim.advance(19.5)
    assert sim.is_served("m")
    assert not sim.services.shutdown.requested.is_set()
    sim.advance(1.0)
    sim.loop.run(sim.main)
    assert sim.main.result() == ExitCode.OK
    assert sim.alive() == []
    assert list(sim.persisted()) == ["m"]  # the next start serves it


@pytest.mark.parametrize(
    "message",
    [
        messages.Scale("m", 2),
        messages.Rollback("m"),
        messages.LoadFromRepository("other"),
    ],
)
def test_changes_of_models_are_refused(sim: SimulatedDaemon, message: messages.AnyMessage) -> None:
    drain(sim, _FOR_SETTLING)
    answer = sim.answered(sim.client.ask(message))
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "unavailable"
    assert REFUSAL in answer.text


def test_registrations_are_refused_and_unregistering_is_allowed(sim: SimulatedDaemon) -> None:
    drain(sim, _FOR_SETTLING)
    for replace in (False, True):
        answer = sim.answered(sim.client.register("n", replace=replace))
        assert isinstance(answer, messages.Failure)
        assert "use another daemon" in answer.text
    gone = sim.client.ask(messages.Unregister("m"))
    assert sim.answered(gone) == messages.Done()


def test_a_restarted_tritonserver_is_not_ready_either(sim: SimulatedDaemon) -> None:
    drain(sim, _FOR_SETTLING)
    sim.server.end()
    sim.advance(5.0)
    assert sim.is_served("m")
    assert not sim.server.gate_open


def test_with_an_external_stop_it_waits_to_be_stopped(sim: SimulatedDaemon) -> None:
    request = sim.client.ask(messages.Drain(settle_s=5.0, stop=False))
    sim.advance(4.5)
    assert request.answer is None
    sim.advance(1.0)
    assert request.answer == messages.Done()
    sim.advance(100.0)
    assert phase(sim) == "draining"
    assert not sim.services.shutdown.requested.is_set()


def test_a_starting_daemon_drains_once_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedDaemon, "settle", lambda sim: None)
        sim = SimulatedDaemon(tmp_path)
    try:
        assert sim.services.status.phase == "starting"
        request = sim.client.ask(messages.Drain(settle_s=5.0, stop=False))
        sim.settle()
        assert request.answer == messages.Done()
        sim.advance(100.0)
        assert phase(sim) == "draining"
    finally:
        sim.close()


def test_a_repeated_drain_changes_its_times(sim: SimulatedDaemon) -> None:
    drain(sim, messages.Drain(settle_s=1000.0))
    drain(sim, messages.Drain(settle_s=2.0))
    sim.advance(1.5)
    assert not sim.services.shutdown.requested.is_set()
    sim.advance(1.0)
    assert sim.services.shutdown.requested.is_set()


@pytest.mark.parametrize("stop", [False, True])
def test_waiting_callers_use_the_new_time(sim: SimulatedDaemon, stop: bool) -> None:
    first = sim.client.ask(messages.Drain(settle_s=5.0, stop=False))
    sim.advance(1.0)
    second = sim.client.ask(messages.Drain(settle_s=10.0, stop=stop))
    sim.advance(9.5)
    assert first.answer is None
    assert not sim.services.shutdown.requested.is_set()
    sim.advance(1.0)
    answers: list[messages.AnyMessage | None] = [first.answer, second.answer]
    assert answers == [messages.Done()] * 2
    assert sim.services.shutdown.requested.is_set() is stop


def test_batches_in_flight_get_the_requested_time(sim: SimulatedDaemon) -> None:
    """Rather than the grace period of the settings, which is 30 s."""
    sim.server.hold_proxies = True
    drain(sim, messages.Drain(settle_s=0.0, timeout_s=100.0))
    sim.advance(90.0)
    assert len(sim.alive("m")) == 1
    sim.advance(15.0)
    assert sim.alive("m") == []


@pytest.mark.parametrize(
    "wish",
    [
        messages.Drain(settle_s=-1.0),
        messages.Drain(settle_s=float("nan")),
        messages.Drain(timeout_s=1e9),
    ],
)
def test_invalid_times_change_nothing(sim: SimulatedDaemon, wish: messages.Drain) -> None:
    answer = sim.answered(sim.client.ask(wish))
    assert isinstance(answer, messages.Failure)
    assert phase(sim) == "ready"


def test_a_drain_is_an_event_with_its_requester(sim: SimulatedDaemon) -> None:
    drain(sim, messages.Drain(settle_s=7.0))
    (event,) = [one for one in sim.services.event_log.all() if one.kind == kinds.DRAINING.name]
    assert event.numbers == {"settle_s": 7.0, "stop": 1}
    assert "process" in event.who


def test_the_drain_starts_once_tritonserver_is_not_ready(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a slow tritonserver reports that, load balancers keep sending requests: their time starts afterwards."""
    close_gate = sim.server.close_gate

    async def slowly() -> None:
        await asyncio.sleep(30.0)
        await close_gate()

    monkeypatch.setattr(sim.server, "close_gate", slowly)
    request = sim.client.ask(messages.Drain(settle_s=5.0, stop=False))
    sim.advance(33.0)
    assert (sim.server.gate_open, request.answer) == (False, None)
    answer = sim.answered(sim.client.register("n"))
    assert isinstance(answer, messages.Failure)
    sim.advance(3.0)
    assert request.answer == messages.Done()
