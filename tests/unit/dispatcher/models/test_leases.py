"""Provisional registrations: they stay if their client confirms them in time, and leave nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.fake_clients import Request
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure

Restart = Callable[[list[str], bool], SimulatedDaemon]
LEASE = messages.Lease("one", 10.0, 0.1)


def begin(sim: SimulatedDaemon, *, replaces: bool) -> None:
    """Register a provisional model, as a replacement or as the first of its name."""
    if replaces:
        sim.served(sim.client.register("m", b"old"))
    info = sim.served(sim.client.register("m", b"new", replace=replaces, lease=LEASE))
    assert info.lease == LEASE


def end(sim: SimulatedDaemon, *, keep: bool, lease: str = "one") -> Request:
    request = sim.client.ask(messages.EndLease("m", lease, keep))
    sim.answered(request)
    return request


def renew(sim: SimulatedDaemon) -> Request:
    request = sim.client.ask(messages.RenewLease("m", "one"))
    sim.answered(request)
    return request


def rollbacks(sim: SimulatedDaemon) -> list[messages.Event]:
    answer = sim.answered(sim.client.ask(messages.GetEvents("m", ["rolled_back"])))
    assert isinstance(answer, messages.EventList)
    return answer.events


def payload(sim: SimulatedDaemon) -> bytes:
    assert sim.is_served("m")
    return sim.persisted()["m"].payloads[0]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_confirmed_registration_stays(sim: SimulatedDaemon, replaces: bool) -> None:
    begin(sim, replaces=replaces)
    assert end(sim, keep=True).answer == messages.Done()
    sim.advance(100.0)
    assert payload(sim) == b"new"
    assert sim.persisted()["m"].spec.lease is None
    assert "has no such lease" in end(sim, keep=False).failure


@pytest.mark.parametrize("how", ["taken back", "forgotten"])
def test_an_expired_first_registration_leaves_nothing(sim: SimulatedDaemon, how: str) -> None:
    begin(sim, replaces=False)
    if how == "taken back":
        assert end(sim, keep=False).answer == messages.Done()
    sim.advance(12.0)
    assert sim.is_clean("m")


@pytest.mark.parametrize("how", ["taken back", "forgotten"])
def test_the_replaced_registration_serves_again(sim: SimulatedDaemon, how: str) -> None:
    begin(sim, replaces=True)
    if how == "taken back":
        assert end(sim, keep=False).answer == messages.Done()
    sim.advance(12.0)
    assert payload(sim) == b"old"
    (event,) = rollbacks(sim)
    assert ("was not confirmed or renewed" in event.who) is (how == "forgotten")
    # Registering the other one again makes it permanent.
    sim.served(sim.client.ask(messages.Rollback("m")))
    sim.advance(100.0)
    assert payload(sim) == b"new"


def test_renewing_restarts_the_lease(sim: SimulatedDaemon) -> None:
    begin(sim, replaces=True)
    for _ in range(10):
        sim.advance(6.0)
        assert renew(sim).answer == messages.Done()
    assert payload(sim) == b"new"
    sim.advance(13.0)
    assert payload(sim) == b"old"
    assert "has no such lease" in renew(sim).failure


def test_the_lease_starts_when_the_client_is_notified(sim: SimulatedDaemon) -> None:
    """The model has served for long by then, because a request of the previous one took long."""
    sim.served(sim.client.register("m", b"old"))
    sim.server.hold_proxies = True
    request = sim.client.register("m", b"new", replace=True, lease=messages.Lease("one", 7.0))
    sim.advance(25.0)
    assert request.answer is None
    assert payload(sim) == b"new"
    sim.served(request)
    sim.advance(5.5)
    assert renew(sim).answer == messages.Done()
    assert payload(sim) == b"new"
    sim.let_batches_end()
    sim.advance(13.0)
    assert payload(sim) == b"old"


def test_an_expiring_lease_cannot_be_confirmed_or_renewed(sim: SimulatedDaemon) -> None:
    """The rollback waits until tritonserver is up again."""
    begin(sim, replaces=True)
    sim.server.starts_fail = 100
    sim.server.end()
    sim.advance(12.0)
    assert not sim.server.ready
    assert "has no such lease" in end(sim, keep=True).failure
    assert "has no such lease" in renew(sim).failure
    asked = sim.client.ask(messages.EndLease("m", "one", False))
    sim.settle()
    assert asked.answer is None
    sim.server.starts_fail = 0
    assert sim.answered(asked) == messages.Done()
    assert payload(sim) == b"old"
    assert len(rollbacks(sim)) == 1


def begin_rollback_without_server(sim: SimulatedDaemon) -> Request:
    """Ask for a rollback, which waits until tritonserver is up again."""
    begin(sim, replaces=True)
    sim.server.starts_fail = 100
    sim.server.end()
    sim.settle()
    asked = sim.client.ask(messages.EndLease("m", "one", False))
    sim.settle()
    assert asked.answer is None
    return asked


def test_a_registration_confirmed_during_its_rollback_stays(sim: SimulatedDaemon) -> None:
    asked = begin_rollback_without_server(sim)
    registration = sim.services.registry.served.by_name("m")
    registration.spec = msgspec.structs.replace(registration.spec, lease=None)
    sim.server.starts_fail = 0
    sim.answered(asked)
    assert "has no such lease" in asked.failure
    assert payload(sim) == b"new"


def test_concurrent_rollbacks_wait_for_the_same_one(sim: SimulatedDaemon) -> None:
    both = begin_rollback_without_server(sim), sim.client.ask(messages.EndLease("m", "one", False))
    sim.server.starts_fail = 0
    assert [sim.answered(one) for one in both] == [messages.Done()] * 2
    assert payload(sim) == b"old"


def test_a_waiting_client_is_notified_when_the_daemon_stops(sim: SimulatedDaemon) -> None:
    asked = begin_rollback_without_server(sim)
    sim.stop()
    assert asked.failure == "model m was not rolled back: the daemon is stopping"


def test_a_rollback_can_be_repeated_after_an_internal_error(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: object) -> None:
        raise ValueError("a fault")

    begin(sim, replaces=True)
    with monkeypatch.context() as patch:
        patch.setattr(sim.services.registry, "undo", fault)
        assert "a fault" in end(sim, keep=False).failure
    assert end(sim, keep=False).answer == messages.Done()
    assert payload(sim) == b"old"


@pytest.mark.parametrize("replaces", [False, True])
def test_a_late_cancellation_stops_the_change(sim: SimulatedDaemon, replaces: bool) -> None:
    begin(sim, replaces=replaces)
    asked: list[int] = []

    def still() -> None:
        asked.append(len(asked))
        if len(asked) > 1:
            raise RemoteFailure(ErrorKind.NOT_FOUND, "somebody has kept it")

    with pytest.raises(RemoteFailure, match="has kept it"):
        sim.loop.run(sim.services.registry.undo("m", still))
    assert payload(sim) == b"new"


def test_the_confirmed_registration_is_the_requested_one(sim: SimulatedDaemon) -> None:
    """Not the current number of instances under autoscaling."""
    rules = messages.Autoscale(1, 4)
    sim.served(sim.client.register("m", b"new", lease=LEASE, autoscale=rules))
    registration = sim.services.registry.served.by_name("m")
    sim.loop.run(sim.services.registry.background_changes.follow_load(registration, 3))
    assert end(sim, keep=True).answer == messages.Done()
    assert registration.spec.instances == 3
    kept = sim.persisted()["m"].spec
    assert (kept.instances, kept.lease) == (1, None)
    assert kept.autoscale == rules


def test_the_replaced_registration_is_damaged(sim: SimulatedDaemon) -> None:
    """The model keeps serving, however often a rollback is requested."""
    begin(sim, replaces=True)
    (sim.state / "models" / "m.previous").write_bytes(b"damaged")
    assert "m.previous cannot be used" in end(sim, keep=False).failure
    assert "is missing" in end(sim, keep=False).failure
    sim.advance(100.0)
    assert payload(sim) == b"new"
    assert end(sim, keep=True).answer == messages.Done()


def test_explain_mentions_the_lease_until_it_is_confirmed(sim: SimulatedDaemon) -> None:
    def verdict() -> str:
        answer = sim.answered(sim.client.ask(messages.Explain("m")))
        assert isinstance(answer, messages.Explanation)
        return answer.verdict

    begin(sim, replaces=True)
    assert verdict().startswith(
        "m is ready; it is provisional: part of a change across several nodes"
    )
    end(sim, keep=True)
    assert verdict() == "m is ready: nothing is wrong"


def test_its_share_can_be_changed(sim: SimulatedDaemon) -> None:
    begin(sim, replaces=True)
    sim.answered(sim.client.ask(messages.RenewLease("m", "one", 0.0)))
    (info,) = sim.loop.ask(sim.services.status.model_infos)
    assert info.lease == messages.Lease("one", 10.0)
    sim.advance(8.0)
    wrong = sim.client.ask(messages.RenewLease("m", "one", 7.0))
    sim.answered(wrong)
    assert "its share is 7" in wrong.failure
    (info,) = sim.loop.ask(sim.services.status.model_infos)
    assert info.lease == messages.Lease("one", 10.0)
    sim.advance(5.0)
    assert payload(sim) == b"old"  # nor was it renewed


def test_nobody_else_changes_or_ends_a_provisional_model(sim: SimulatedDaemon) -> None:
    begin(sim, replaces=True)
    other = sim.client.register("m", b"third", replace=True)
    sim.answered(other)
    assert "is provisional" in other.failure
    for keep in (True, False):
        assert "has no such lease" in end(sim, keep=keep, lease="two").failure
    assert payload(sim) == b"new"
    sim.served(sim.client.ask(messages.Rollback("m")))  # a way out for operators
    assert payload(sim) == b"old"
    assert "has no such lease" in end(sim, keep=True).failure


def test_a_restart_of_the_daemon_does_not_confirm_it(tmp_path: Path) -> None:
    with successive_daemons(tmp_path, settles_s=4.0) as start:
        begin(start(), replaces=True)
        again = start()
        assert payload(again) == b"new"
        again.advance(14.0)
        assert payload(again) == b"old"


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restart]:
    """Restarts a daemon that had a provisional model; the next workers have these fates."""
    with successive_daemons(tmp_path, settles_s=0.0) as start:

        def restart(plans: list[str], replaces: bool) -> SimulatedDaemon:
            begin(start(), replaces=replaces)
            sim = start()
            sim.plans = plans
            sim.advance(2.0)
            return sim

        yield restart


def test_a_provisional_model_whose_restore_fails_is_rolled_back(restarted: Restart) -> None:
    sim = restarted(["fails"], True)
    sim.advance(3.0)
    assert payload(sim) == b"old"
    assert sim.persisted()["m"].spec.lease is None
    assert [one.who for one in rollbacks(sim)] == [
        "a provisional registration that could not be restored"
    ]


def test_a_failed_rollback_after_a_start_is_retried(restarted: Restart) -> None:
    sim = restarted(["fails", "fails"], True)
    sim.advance(3.0)
    assert sim.state_of("m") == "failed"
    assert sim.persisted()["m"].payloads == [b"new"]
    sim.advance(10.0)
    assert payload(sim) == b"old"


def test_a_first_registration_whose_restore_fails_leaves_nothing(restarted: Restart) -> None:
    sim = restarted(["fails"], False)
    sim.advance(3.0)
    assert sim.is_clean("m")


@pytest.mark.parametrize("replaces", [False, True])
def test_a_provisional_model_can_be_rolled_back_during_its_restore(
    restarted: Restart, replaces: bool
) -> None:
    sim = restarted(["hangs"], replaces)
    assert sim.state_of("m") == "restoring"
    assert "is being restored" in renew(sim).failure
    assert "is being restored" in end(sim, keep=True).failure
    asked = sim.client.ask(messages.EndLease("m", "one", False))
    sim.advance(1.0)
    if replaces:  # it waits for the result of the load
        assert asked.answer is None
        sim.workers[0].loaded()
    assert sim.answered(asked) == messages.Done()
    assert payload(sim) == b"old" if replaces else sim.is_clean("m")


def test_a_failed_rollback_is_repeated_later(sim: SimulatedDaemon) -> None:
    begin(sim, replaces=True)
    sim.plans = ["fails"]
    sim.advance(12.0)
    assert payload(sim) == b"new"
    sim.advance(12.0)
    assert payload(sim) == b"old"


@pytest.mark.parametrize(
    ("lease", "ephemeral", "text"),
    [
        (messages.Lease("", 10.0), False, "its id must be"),
        (messages.Lease("a b", 10.0), False, "its id must be"),
        (messages.Lease("x", 0.0), False, "its duration_s is 0"),
        (messages.Lease("x", float("nan")), False, "its duration_s is nan"),
        (messages.Lease("x", 1e9), False, "its duration_s is"),
        (messages.Lease("x", 10.0, 2.0), False, "its share is 2"),
        (messages.Lease("x", 10.0), True, "could not be rolled back"),
    ],
)
def test_an_invalid_lease_is_refused(
    sim: SimulatedDaemon, lease: messages.Lease, ephemeral: bool, text: str
) -> None:
    request = sim.client.register("m", lease=lease, ephemeral=ephemeral)
    sim.answered(request)
    assert text in request.failure
    assert sim.is_clean("m")


def test_a_registration_that_failed_to_roll_back_is_not_replaced(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m", ephemeral=True))
    request = sim.client.register("m", replace=True, lease=LEASE)
    sim.answered(request)
    assert "could not be rolled back" in request.failure
    assert sim.is_served("m")


def test_checks_of_leases_continue_after_a_failure(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(sim, replaces=False)
    look, failures = sim.services.leases._end_expired, [ValueError("a fault")]

    def faulty() -> None:
        if failures:
            raise failures.pop()
        look()

    monkeypatch.setattr(sim.services.leases, "_end_expired", faulty)
    sim.advance(14.0)
    assert not failures
    assert sim.is_clean("m")
