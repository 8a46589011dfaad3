"""What another daemon needs to serve the same models, with a digest of the registration's content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import payload_hashes


def reported(
    sim: SimulatedDaemon, *names: str, payloads: bool = False
) -> list[messages.KeptRegistration]:
    answer = sim.answered(sim.client.ask(messages.GetRegistrations(list(names), payloads)))
    assert isinstance(answer, messages.Registrations), answer
    return answer.registrations


def test_the_digest_depends_on_the_content_and_not_on_repetition(sim: SimulatedDaemon) -> None:
    digests: dict[str, str] = {}
    cases: dict[str, Callable[[], Any]] = {
        "first": lambda: sim.client.register("m", b"one"),
        "more instances": lambda: sim.client.ask(messages.Scale("m", 3)),
        "another payload": lambda: sim.client.register("m", b"two", replace=True),
        "the first again": lambda: sim.client.register("m", b"one", replace=True, instances=2),
        "another option": lambda: sim.client.register("m", b"one", replace=True, standby_workers=1),
    }
    for case, act in cases.items():
        sim.served(act())
        (digests[case],) = [one.digest for one in reported(sim)]
    same = {digests[case] for case in ("first", "more instances", "the first again")}
    assert len(same) == 1
    assert len(set(digests.values())) == 3


def test_payloads_are_sent_on_request(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m", b"one"))
    sim.served(sim.client.register("n", b"two"))
    assert [(one.spec.name, one.payloads) for one in reported(sim)] == [("m", []), ("n", [])]
    assert [one.payloads for one in reported(sim, "n", payloads=True)] == [[b"two"]]


def test_ephemeral_registrations_are_omitted(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m", isolation="thread"))
    assert reported(sim) == []
    answer = sim.answered(sim.client.ask(messages.GetRegistrations(["x"])))
    assert isinstance(answer, messages.Failure)
    assert "no model 'x' is registered" in answer.text


def test_registrations_are_sent_only_when_they_changed(sim: SimulatedDaemon) -> None:
    def ask(known: str) -> messages.Registrations:
        answer = sim.answered(sim.client.ask(messages.GetRegistrations(known=known)))
        assert isinstance(answer, messages.Registrations), answer
        return answer

    known = ask("").state
    changes: dict[str, Callable[[], Any]] = {
        "registered": lambda: sim.client.register("m", b"one"),
        "scaled": lambda: sim.client.ask(messages.Scale("m", 3)),
        "replaced": lambda: sim.client.register("m", b"two", replace=True, instances=3),
        "rolled back": lambda: sim.client.ask(messages.Rollback("m")),
        "unregistered": lambda: sim.client.ask(messages.Unregister("m")),
    }
    for change, act in changes.items():
        sim.answered(act())
        reported = ask(known)
        assert reported.state != known, change
        assert bool(reported.registrations) is (change != "unregistered")
        assert ask(reported.state) == messages.Registrations([], reported.state), change
        known = reported.state


def test_payloads_are_hashed_once(sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    sim.served(sim.client.register("m", b"one"))
    hashed: list[Any] = []

    def counted(payloads: Any) -> Any:
        hashed.append(payloads)
        return payload_hashes(payloads)

    monkeypatch.setattr("pytriton.dispatcher.models.declaration.payload_hashes", counted)
    first = reported(sim)
    sim.served(sim.client.ask(messages.Scale("m", 2)))
    assert [one.digest for one in reported(sim)] == [one.digest for one in first]
    assert hashed == [[b"one"]]
