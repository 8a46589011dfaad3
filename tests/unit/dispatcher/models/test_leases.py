"""Registrations on trial: they stay when their client says so in time, and else leave nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fakes.brain import Brain
from support.fakes.fake_clients import Request

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure

Restart = Callable[[list[str], bool], Brain]
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


def renew(brain: Brain) -> Request:
    request = brain.client.ask(messages.RenewTrial("m", "one"))
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
    assert ("was not confirmed or renewed" in event.who) is (how == "forgotten")
    # Who wants the other one after all gets it for good.
    brain.served(brain.client.ask(messages.Rollback("m")))
    brain.advance(100.0)
    assert payload(brain) == b"new"


def test_time_begins_anew_when_it_is_renewed(brain: Brain) -> None:
    begin(brain, replaces=True)
    for _ in range(10):
        brain.advance(6.0)
        assert renew(brain).answer == messages.Done()
    assert payload(brain) == b"new"
    brain.advance(13.0)
    assert payload(brain) == b"old"
    assert "not on this trial" in renew(brain).failure


def test_time_begins_when_the_client_knows(brain: Brain) -> None:
    """It has been served for long by then: a request of the former one has lasted."""
    brain.served(brain.client.register("m", b"old"))
    brain.server.hold_proxies = True
    request = brain.client.register("m", b"new", replace=True, trial=TRIAL)
    brain.advance(25.0)
    assert request.answer is None
    assert payload(brain) == b"new"
    brain.served(request)
    brain.advance(7.0)
    assert renew(brain).answer == messages.Done()
    assert payload(brain) == b"new"
    brain.let_batches_end()
    brain.advance(13.0)
    assert payload(brain) == b"old"


def test_what_is_being_taken_back_is_neither_kept_nor_prolonged(brain: Brain) -> None:
    """It waits until tritonserver is up again."""
    begin(brain, replaces=True)
    brain.server.starts_fail = 100
    brain.server.end()
    brain.advance(12.0)
    assert not brain.server.ready
    assert "not on this trial" in end(brain, keep=True).failure
    assert "not on this trial" in renew(brain).failure
    asked = brain.client.ask(messages.EndTrial("m", "one", False))
    brain.settle()
    assert asked.answer is None
    brain.server.starts_fail = 0
    assert brain.answered(asked) == messages.Done()
    assert payload(brain) == b"old"
    told = brain.answered(brain.client.ask(messages.GetEvents("m", ["rolled_back"])))
    assert isinstance(told, messages.EventList)
    assert len(told.events) == 1


@pytest.mark.parametrize("replaces", [False, True])
def test_what_is_not_wanted_any_more_in_the_last_moment_is_not_done(
    brain: Brain, replaces: bool
) -> None:
    begin(brain, replaces=replaces)
    asked: list[int] = []

    def still() -> None:
        asked.append(len(asked))
        if len(asked) > 1:
            raise RemoteFailure(ErrorKind.NOT_FOUND, "somebody has kept it")

    with pytest.raises(RemoteFailure, match="has kept it"):
        brain.loop.run(brain.daemon.registry.take_back("m", still))
    assert payload(brain) == b"new"


def test_what_is_kept_is_what_was_asked_for(brain: Brain) -> None:
    """Not what the load of the moment takes."""
    rules = messages.Autoscale(1, 4)
    brain.served(brain.client.register("m", b"new", trial=TRIAL, autoscale=rules))
    registration = brain.daemon.registry.by_name("m")
    brain.loop.run(brain.daemon.registry.adaptations.follow_load(registration, 3))
    assert end(brain, keep=True).answer == messages.Done()
    assert registration.spec.instances == 3
    kept = brain.kept()["m"].spec
    assert (kept.instances, kept.trial) == (1, None)
    assert kept.autoscale == rules


def test_what_it_has_replaced_is_damaged(brain: Brain) -> None:
    """The model serves on, however often it is to be taken back."""
    begin(brain, replaces=True)
    (brain.state / "models" / "m.previous").write_bytes(b"damaged")
    assert "m.previous cannot be used" in end(brain, keep=False).failure
    assert "is missing" in end(brain, keep=False).failure
    brain.advance(100.0)
    assert payload(brain) == b"new"
    assert end(brain, keep=True).answer == messages.Done()


def test_explain_says_so_until_it_is_there_to_stay(brain: Brain) -> None:
    def verdict() -> str:
        answer = brain.answered(brain.client.ask(messages.Explain("m")))
        assert isinstance(answer, messages.Explanation)
        return answer.verdict

    begin(brain, replaces=True)
    assert verdict().startswith(
        "m is ready; it is provisional: part of a change across several nodes"
    )
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


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restart]:
    """Starts a daemon again that has had a model on trial; the next workers meet these fates."""
    running: list[Brain] = []

    def restart(plans: list[str], replaces: bool) -> Brain:
        first = Brain(tmp_path)
        first.advance(2.0)
        begin(first, replaces=replaces)
        first.close()
        running.append(Brain(tmp_path))
        running[0].plans = plans
        running[0].advance(2.0)
        return running[0]

    yield restart
    for brain in running:
        brain.close()


def test_one_that_a_start_cannot_restore_is_taken_back(restarted: Restart) -> None:
    brain = restarted(["fails"], True)
    brain.advance(3.0)
    assert payload(brain) == b"old"
    assert brain.kept()["m"].spec.trial is None
    events = brain.answered(brain.client.ask(messages.GetEvents("m", ["rolled_back"])))
    assert isinstance(events, messages.EventList)
    assert [one.who for one in events.events] == ["a trial that could not be restored"]


def test_what_cannot_be_put_back_after_a_start_is_tried_again(restarted: Restart) -> None:
    brain = restarted(["fails", "fails"], True)
    brain.advance(3.0)
    assert brain.state_of("m") == "failed"
    assert brain.kept()["m"].payloads == [b"new"]
    brain.advance(10.0)
    assert payload(brain) == b"old"


def test_a_first_one_that_a_start_cannot_restore_leaves_nothing(restarted: Restart) -> None:
    brain = restarted(["fails"], False)
    brain.advance(3.0)
    assert brain.is_clean("m")


@pytest.mark.parametrize("replaces", [False, True])
def test_one_that_is_being_restored_can_be_taken_back(restarted: Restart, replaces: bool) -> None:
    brain = restarted(["hangs"], replaces)
    assert brain.state_of("m") == "restoring"
    assert "is being restored" in renew(brain).failure
    assert "is being restored" in end(brain, keep=True).failure
    asked = brain.client.ask(messages.EndTrial("m", "one", False))
    brain.advance(1.0)
    if replaces:  # it waits for what comes of the load
        assert asked.answer is None
        brain.workers[0].loaded()
    assert brain.answered(asked) == messages.Done()
    assert payload(brain) == b"old" if replaces else brain.is_clean("m")


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
        (messages.Trial("", 10.0), False, "its id must be"),
        (messages.Trial("a b", 10.0), False, "its id must be"),
        (messages.Trial("x", 0.0), False, "its lease_s is 0"),
        (messages.Trial("x", float("nan")), False, "its lease_s is nan"),
        (messages.Trial("x", 1e9), False, "its lease_s is"),
        (messages.Trial("x", 10.0, 2.0), False, "its share is 2"),
        (messages.Trial("x", 10.0), True, "could not be rolled back"),
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
    assert "could not be rolled back" in request.failure
    assert brain.is_served("m")


def test_a_look_that_fails_is_not_the_last(brain: Brain, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(brain, replaces=False)
    look, failures = brain.daemon.trials._look, [ValueError("a fault")]

    def faulty() -> None:
        if failures:
            raise failures.pop()
        look()

    monkeypatch.setattr(brain.daemon.trials, "_look", faulty)
    brain.advance(14.0)
    assert not failures
    assert brain.is_clean("m")
