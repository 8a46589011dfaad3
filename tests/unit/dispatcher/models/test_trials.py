"""Registrations on trial: they stay when their client says so in time, and else leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes.brain import Brain
from support.fakes.fake_clients import Request

from pytriton.ipc import messages

TRIAL = messages.Trial("one", 10.0, 0.1)


def begin(brain: Brain, *, replaces: bool) -> None:
    """Have a model on trial, in the place of another one or as the first of its name."""
    if replaces:
        brain.served(brain.client.register("m", b"old"))
    info = brain.served(brain.client.register("m", b"new", replace=replaces, trial=TRIAL))
    assert info.trial == TRIAL


def end(brain: Brain, *, keep: bool, trial: str = "one") -> Request:
    request = brain.client.ask(messages.EndTrial("m", trial, keep))
    brain.answered(request)
    return request


def payload(brain: Brain) -> bytes:
    assert brain.is_served("m")
    return brain.kept()["m"].payloads[0]


@pytest.mark.parametrize("replaces", [False, True])
def test_what_is_kept_stays(brain: Brain, replaces: bool) -> None:
    begin(brain, replaces=replaces)
    assert end(brain, keep=True).answer == messages.Done()
    brain.advance(100.0)
    assert payload(brain) == b"new"
    assert brain.kept()["m"].spec.trial is None
    assert "not on this trial" in end(brain, keep=False).failure


@pytest.mark.parametrize("how", ["taken back", "forgotten"])
def test_a_first_one_leaves_nothing(brain: Brain, how: str) -> None:
    begin(brain, replaces=False)
    if how == "taken back":
        assert end(brain, keep=False).answer == messages.Done()
    brain.advance(12.0)
    assert brain.is_clean("m")


@pytest.mark.parametrize("how", ["taken back", "forgotten"])
def test_what_was_replaced_serves_again(brain: Brain, how: str) -> None:
    begin(brain, replaces=True)
    if how == "taken back":
        assert end(brain, keep=False).answer == messages.Done()
    brain.advance(12.0)
    assert payload(brain) == b"old"
    events = brain.answered(brain.client.ask(messages.GetEvents("m", ["rolled_back"])))
    assert isinstance(events, messages.EventList)
    (event,) = events.events
    assert ("nobody has confirmed" in event.who) is (how == "forgotten")
    # Who wants the other one after all gets it for good.
    brain.served(brain.client.ask(messages.Rollback("m")))
    brain.advance(100.0)
    assert payload(brain) == b"new"


def test_time_begins_anew_when_it_is_renewed(brain: Brain) -> None:
    begin(brain, replaces=True)
    for _ in range(10):
        brain.advance(6.0)
        assert brain.answered(brain.client.ask(messages.RenewTrial("m", "one"))) == messages.Done()
    assert payload(brain) == b"new"
    brain.advance(13.0)
    assert payload(brain) == b"old"
    renewed = brain.client.ask(messages.RenewTrial("m", "one"))
    brain.answered(renewed)
    assert "not on this trial" in renewed.failure


def test_explain_says_so_until_it_is_there_to_stay(brain: Brain) -> None:
    def verdict() -> str:
        answer = brain.answered(brain.client.ask(messages.Explain("m")))
        assert isinstance(answer, messages.Explanation)
        return answer.verdict

    begin(brain, replaces=True)
    assert verdict().startswith("m is ready; it is on trial: somebody is changing several nodes")
    end(brain, keep=True)
    assert verdict() == "m is ready: nothing is wrong"


def test_its_share_can_be_changed(brain: Brain) -> None:
    begin(brain, replaces=True)
    brain.answered(brain.client.ask(messages.RenewTrial("m", "one", 0.0)))
    (info,) = brain.loop.ask(brain.daemon.model_infos)
    assert info.trial == messages.Trial("one", 10.0)
    wrong = brain.client.ask(messages.RenewTrial("m", "one", 7.0))
    brain.answered(wrong)
    assert "its share is 7" in wrong.failure


def test_nobody_else_changes_or_ends_it(brain: Brain) -> None:
    begin(brain, replaces=True)
    other = brain.client.register("m", b"third", replace=True)
    brain.answered(other)
    assert "is on trial" in other.failure
    for keep in (True, False):
        assert "not on this trial" in end(brain, keep=keep, trial="two").failure
    assert payload(brain) == b"new"
    brain.served(brain.client.ask(messages.Rollback("m")))  # that is a way out for people
    assert payload(brain) == b"old"
    assert "not on this trial" in end(brain, keep=True).failure


def test_a_start_of_the_daemon_does_not_make_it_stay(tmp_path: Path) -> None:
    first = Brain(tmp_path)
    first.advance(2.0)
    begin(first, replaces=True)
    first.close()
    again = Brain(tmp_path)
    try:
        again.advance(4.0)
        assert payload(again) == b"new"
        again.advance(14.0)
        assert payload(again) == b"old"
    finally:
        again.close()


def test_it_is_taken_back_later_when_that_fails_at_first(brain: Brain) -> None:
    begin(brain, replaces=True)
    brain.plans = ["fails"]
    brain.advance(12.0)
    assert payload(brain) == b"new"
    brain.advance(12.0)
    assert payload(brain) == b"old"


@pytest.mark.parametrize(
    ("trial", "temporary", "text"),
    [
        (messages.Trial("", 10.0), False, "its id takes"),
        (messages.Trial("a b", 10.0), False, "its id takes"),
        (messages.Trial("x", 0.0), False, "its lease_s is 0"),
        (messages.Trial("x", float("nan")), False, "its lease_s is nan"),
        (messages.Trial("x", 1e9), False, "its lease_s is"),
        (messages.Trial("x", 10.0, 2.0), False, "its share is 2"),
        (messages.Trial("x", 10.0), True, "could not be taken back"),
    ],
)
def test_a_trial_that_is_none_is_refused(
    brain: Brain, trial: messages.Trial, temporary: bool, text: str
) -> None:
    request = brain.client.register("m", trial=trial, temporary=temporary)
    brain.answered(request)
    assert text in request.failure
    assert brain.is_clean("m")


def test_what_could_not_be_put_back_is_not_replaced(brain: Brain) -> None:
    brain.served(brain.client.register("m", temporary=True))
    request = brain.client.register("m", replace=True, trial=TRIAL)
    brain.answered(request)
    assert "could not be taken back" in request.failure
    assert brain.is_served("m")
