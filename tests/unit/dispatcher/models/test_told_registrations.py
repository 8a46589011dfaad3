"""What another daemon needs to serve the same: told with a digest that knows what was registered, not how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.fakes.brain import Brain

from pytriton._protocol import messages
from pytriton._protocol.registration_digest import payload_hashes


def told(brain: Brain, *names: str, payloads: bool = False) -> list[messages.KeptRegistration]:
    answer = brain.answered(brain.client.ask(messages.GetRegistrations(list(names), payloads)))
    assert isinstance(answer, messages.Registrations), answer
    return answer.registrations


def test_digest_knows_what_was_registered_and_not_how_often(brain: Brain) -> None:
    digests: dict[str, str] = {}
    cases: dict[str, Callable[[], Any]] = {
        "first": lambda: brain.client.register("m", b"one"),
        "more instances": lambda: brain.client.ask(messages.Scale("m", 3)),
        "another payload": lambda: brain.client.register("m", b"two", replace=True),
        "the first again": lambda: brain.client.register("m", b"one", replace=True, instances=2),
        "another option": lambda: brain.client.register("m", b"one", replace=True, spares=1),
    }
    for case, act in cases.items():
        brain.served(act())
        (digests[case],) = [one.digest for one in told(brain)]
    same = {digests[case] for case in ("first", "more instances", "the first again")}
    assert len(same) == 1
    assert len(set(digests.values())) == 3


def test_payloads_come_when_they_are_wanted(brain: Brain) -> None:
    brain.served(brain.client.register("m", b"one"))
    brain.served(brain.client.register("n", b"two"))
    assert [(one.spec.name, one.payloads) for one in told(brain)] == [("m", []), ("n", [])]
    assert [one.payloads for one in told(brain, "n", payloads=True)] == [[b"two"]]


def test_what_is_not_kept_is_left_out(brain: Brain) -> None:
    brain.served(brain.client.register("m", isolation="thread"))
    assert told(brain) == []
    answer = brain.answered(brain.client.ask(messages.GetRegistrations(["x"])))
    assert isinstance(answer, messages.Failure)
    assert "no model 'x' is registered" in answer.text


def test_they_are_told_only_when_they_have_changed(brain: Brain) -> None:
    def ask(known: str) -> messages.Registrations:
        answer = brain.answered(brain.client.ask(messages.GetRegistrations(known=known)))
        assert isinstance(answer, messages.Registrations), answer
        return answer

    known = ask("").state
    changes: dict[str, Callable[[], Any]] = {
        "registered": lambda: brain.client.register("m", b"one"),
        "scaled": lambda: brain.client.ask(messages.Scale("m", 3)),
        "replaced": lambda: brain.client.register("m", b"two", replace=True, instances=3),
        "rolled back": lambda: brain.client.ask(messages.Rollback("m")),
        "unregistered": lambda: brain.client.ask(messages.Unregister("m")),
    }
    for change, act in changes.items():
        brain.answered(act())
        told = ask(known)
        assert told.state != known, change
        assert bool(told.registrations) is (change != "unregistered")
        assert ask(told.state) == messages.Registrations([], told.state), change
        known = told.state


def test_payloads_are_hashed_once(brain: Brain, monkeypatch: pytest.MonkeyPatch) -> None:
    brain.served(brain.client.register("m", b"one"))
    hashed: list[Any] = []

    def counted(payloads: Any) -> Any:
        hashed.append(payloads)
        return payload_hashes(payloads)

    monkeypatch.setattr("pytriton.dispatcher.models.declared.payload_hashes", counted)
    first = told(brain)
    brain.served(brain.client.ask(messages.Scale("m", 2)))
    assert [one.digest for one in told(brain)] == [one.digest for one in first]
    assert hashed == [[b"one"]]
