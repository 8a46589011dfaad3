"""A daemon that drains: what it refuses, for how long it serves, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes.brain import Brain

from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher.drain import REFUSAL
from pytriton.dispatcher.telemetry.events import kinds

_FOR_SETTLING = messages.Drain(settle_s=20.0, timeout_s=3.0)


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    brain = Brain(tmp_path)
    brain.served(brain.client.register("m"))
    yield brain
    brain.close()


def phase(brain: Brain) -> str:
    return brain.loop.ask(brain.daemon.status).state


def drain(brain: Brain, wish: messages.Drain) -> None:
    request = brain.client.ask(wish)
    brain.settle()
    assert request.answer == messages.Done()


def test_it_serves_on_for_a_while_and_ends_with_0(brain: Brain) -> None:
    assert brain.server.gate_open
    drain(brain, _FOR_SETTLING)
    assert (phase(brain), brain.server.gate_open) == ("draining", False)
    brain.advance(19.5)
    assert brain.is_served("m")
    assert not brain.daemon.ending.asked.is_set()
    brain.advance(1.0)
    brain.loop.run(brain.main)
    assert brain.main.result() == ExitCode.OK
    assert brain.alive() == []
    assert list(brain.kept()) == ["m"]  # the next start serves it


@pytest.mark.parametrize(
    "message",
    [
        messages.Scale("m", 2),
        messages.Rollback("m"),
        messages.LoadFromRepository("other"),
    ],
)
def test_no_model_is_changed_any_more(brain: Brain, message: messages.AnyMessage) -> None:
    drain(brain, _FOR_SETTLING)
    answer = brain.answered(brain.client.ask(message))
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "unavailable"
    assert REFUSAL in answer.text


def test_no_model_is_registered_but_one_may_go(brain: Brain) -> None:
    drain(brain, _FOR_SETTLING)
    for replace in (False, True):
        answer = brain.answered(brain.client.register("n", replace=replace))
        assert isinstance(answer, messages.Failure)
        assert "use another daemon" in answer.text
    gone = brain.client.ask(messages.Unregister("m"))
    assert brain.answered(gone) == messages.Done()


def test_another_tritonserver_is_not_ready_either(brain: Brain) -> None:
    drain(brain, _FOR_SETTLING)
    brain.server.end()
    brain.advance(5.0)
    assert brain.is_served("m")
    assert not brain.server.gate_open


def test_it_waits_to_be_stopped_where_others_stop_it(brain: Brain) -> None:
    request = brain.client.ask(messages.Drain(settle_s=5.0, stop=False))
    brain.advance(4.5)
    assert request.answer is None
    brain.advance(1.0)
    assert request.answer == messages.Done()
    brain.advance(100.0)
    assert phase(brain) == "draining"
    assert not brain.daemon.ending.asked.is_set()


def test_one_that_starts_drains_once_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Brain, "settle", lambda brain: None)
        brain = Brain(tmp_path)
    try:
        assert brain.daemon._status.phase == "starting"
        request = brain.client.ask(messages.Drain(settle_s=5.0, stop=False))
        brain.settle()
        assert request.answer == messages.Done()
        brain.advance(100.0)
        assert phase(brain) == "draining"
    finally:
        brain.close()


def test_who_says_it_again_changes_its_times(brain: Brain) -> None:
    drain(brain, messages.Drain(settle_s=1000.0))
    drain(brain, messages.Drain(settle_s=2.0))
    brain.advance(1.5)
    assert not brain.daemon.ending.asked.is_set()
    brain.advance(1.0)
    assert brain.daemon.ending.asked.is_set()


@pytest.mark.parametrize("stop", [False, True])
def test_who_waits_is_answered_after_the_new_time(brain: Brain, stop: bool) -> None:
    first = brain.client.ask(messages.Drain(settle_s=5.0, stop=False))
    brain.advance(1.0)
    second = brain.client.ask(messages.Drain(settle_s=10.0, stop=stop))
    brain.advance(9.5)
    assert first.answer is None
    assert not brain.daemon.ending.asked.is_set()
    brain.advance(1.0)
    answers: list[messages.AnyMessage | None] = [first.answer, second.answer]
    assert answers == [messages.Done()] * 2
    assert brain.daemon.ending.asked.is_set() is stop


def test_batches_under_way_get_the_time_that_was_asked_for(brain: Brain) -> None:
    """Not the grace period of the settings, which is 30 s."""
    brain.server.hold_proxies = True
    drain(brain, messages.Drain(settle_s=0.0, timeout_s=100.0))
    brain.advance(90.0)
    assert len(brain.alive("m")) == 1
    brain.advance(15.0)
    assert brain.alive("m") == []


@pytest.mark.parametrize(
    "wish",
    [
        messages.Drain(settle_s=-1.0),
        messages.Drain(settle_s=float("nan")),
        messages.Drain(timeout_s=1e9),
    ],
)
def test_times_that_are_none_change_nothing(brain: Brain, wish: messages.Drain) -> None:
    answer = brain.answered(brain.client.ask(wish))
    assert isinstance(answer, messages.Failure)
    assert phase(brain) == "ready"


def test_it_is_an_event_that_says_who(brain: Brain) -> None:
    drain(brain, messages.Drain(settle_s=7.0))
    (event,) = [one for one in brain.daemon.event_log.all() if one.kind == kinds.DRAINING.name]
    assert event.numbers == {"settle_s": 7.0, "stop": 1}
    assert "process" in event.who


def test_it_drains_once_it_is_not_ready_any_more(
    brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tritonserver that is slow to hear it is asked by balancers until then: their time begins afterwards."""
    show_unready = brain.server.show_unready

    async def slowly() -> None:
        await asyncio.sleep(30.0)
        await show_unready()

    monkeypatch.setattr(brain.server, "show_unready", slowly)
    request = brain.client.ask(messages.Drain(settle_s=5.0, stop=False))
    brain.advance(33.0)
    assert (brain.server.gate_open, request.answer) == (False, None)
    answer = brain.answered(brain.client.register("n"))
    assert isinstance(answer, messages.Failure)
    brain.advance(3.0)
    assert request.answer == messages.Done()
