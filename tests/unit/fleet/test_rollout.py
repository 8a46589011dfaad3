"""A rollout step by step, with nodes whose counters follow simulated traffic to each version."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton._protocol import messages
from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton.daemon import DaemonClient
from pytriton.exceptions import (
    CanaryError,
    DaemonNotRunningError,
    FleetError,
    ModelNotFoundError,
    RegistrationError,
)
from pytriton.fleet.canary import Canary
from pytriton.fleet.rollout import Rollout

MESSAGE = messages.Register(
    messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("py")), replace=True
)
DAEMON = messages.DaemonMetrics("0", "ready", 1, 0.0, "ready")


class Node:
    """A daemon that serves one model, with earlier counts."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name = name
        self.version = "old"
        self.refuses = self.is_down = self.forgets = False
        self.lease: messages.Lease | None = None
        self.work = messages.Work(requests=500, failed={"callable": 400})
        self._log = log

    def register_prepared(self, message: messages.Register, payloads: Any, report: Any) -> Any:
        if self.refuses:
            raise RegistrationError("no room")
        self._log.append(("register", self.name))
        self.version, self.lease = "new", message.spec.lease
        return SimpleNamespace(info=lambda: messages.ModelInfo("m", 1, "ready", []))

    def renew_lease(self, name: str, lease: str, share: float | None) -> None:
        if self.lease is None or self.forgets:
            raise ModelNotFoundError("model m has no such lease")
        assert share is not None
        self.lease = messages.Lease(lease, share=share)

    def end_lease(self, name: str, lease: str, *, keep: bool) -> None:
        self._log.append(("keep" if keep else "take back", self.name))
        if self.lease is None or self.lease.id != lease:
            raise ModelNotFoundError("model m has no such lease")
        self.lease, self.version = None, self.version if keep else "old"

    def metrics(self) -> messages.MetricsSnapshot:
        if self.is_down:
            raise DaemonNotRunningError("silence")
        model = messages.ModelMetrics("m", 1, "ready", work=self.work)
        return messages.MetricsSnapshot(0.0, DAEMON, [model])

    def serve(self, requests: int, failed: int, call_s: float) -> None:
        now = self.work
        buckets = [*now.call_s.buckets] or [0] * (len(BOUNDS_S) + 1)
        buckets[bisect.bisect_left(BOUNDS_S, call_s)] += requests
        self.work = messages.Work(
            requests=now.requests + requests,
            failed={"callable": now.failed["callable"] + failed},
            call_s=messages.Histogram(now.call_s.sum + requests * call_s, buckets),
        )


class Fleet:
    """Ten nodes with a request a second each, and a clock that advances only in a rollout's pauses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log: list[tuple[str, str]] = []
        self.nodes = {str(number): Node(str(number), self.log) for number in range(10)}
        self.reported: list[messages.Progress] = []
        self.failing = {"old": False, "new": False}
        self.call_s = {"old": 0.001, "new": 0.001}
        self.at: dict[float, Callable[[], None]] = {}

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for node in self.nodes.values():
            node.serve(1, int(self.failing[node.version]), self.call_s[node.version])
        self.at.pop(self.now, lambda: None)()

    def roll_out(self, **canary: Any) -> dict[str, messages.ModelInfo]:
        clients = cast("dict[str, DaemonClient]", self.nodes)
        how = Canary(0.1, **{"watch_s": 30.0, **canary})
        rollout = Rollout(
            clients, MESSAGE, [b"p"], how, self.reported.append,
            pause=self.pause, clock=lambda: self.now,
        )  # fmt: skip
        return rollout.run()

    def versions(self) -> list[str]:
        return [one.version for one in self.nodes.values()]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_good_version_goes_to_the_share_and_then_to_all(fleet: Fleet) -> None:
    seen: list[tuple[list[str], float]] = []
    fleet.at[115.0] = lambda: seen.append(
        (fleet.versions(), cast(messages.Lease, fleet.nodes["0"].lease).share)
    )
    found = fleet.roll_out()
    assert seen == [(["new"] + ["old"] * 9, 0.1)]
    assert fleet.now == 130.0
    assert fleet.versions() == ["new"] * 10
    registered = [node for what, node in fleet.log if what == "register"]
    waves = [set(registered[:1]), set(registered[1:3]), set(registered[3:7]), set(registered[7:])]
    assert waves == [{"0"}, {"1", "2"}, {"3", "4", "5", "6"}, {"7", "8", "9"}]
    assert {one for one in fleet.log if one[0] != "register"} == {("keep", n) for n in fleet.nodes}
    assert all(one.lease is None for one in found.values())
    (last,) = [one for one in fleet.reported if "30 of 30 s" in one.text]
    assert last.text.startswith("canary: new: 60 requests, 0 failed")
    assert (last.done, last.total) == (1, 10)


def test_a_bad_version_is_rolled_back_after_its_first_failures(fleet: Fleet) -> None:
    fleet.failing["new"] = True
    with pytest.raises(CanaryError, match=r"rolled back: 3 of its 3 requests failed") as caught:
        fleet.roll_out()
    assert "0: it was withdrawn" in str(caught.value)
    assert fleet.now == 101.5
    assert fleet.versions() == ["old"] * 10
    assert fleet.log == [("register", "0"), ("take back", "0")]


def test_a_slow_version_is_rolled_back_at_the_end_of_the_analysis(fleet: Fleet) -> None:
    fleet.call_s["new"] = 0.002
    with pytest.raises(CanaryError, match="its calls take 2 ms"):
        fleet.roll_out(watch_s=60.0)
    assert fleet.now == 160.0
    assert fleet.versions() == ["old"] * 10


def test_the_share_ends_with_the_analysis(fleet: Fleet) -> None:
    """Otherwise the last nodes with the old version would get nearly all requests."""
    nodes = fleet.nodes
    shares: list[float] = []
    register = nodes["1"].register_prepared

    def look(message: messages.Register, payloads: Any, report: Any) -> Any:
        leases = (nodes["0"].lease, message.spec.lease)
        shares.extend(cast(messages.Lease, one).share for one in leases)
        return register(message, payloads, report)

    nodes["1"].register_prepared = look  # type: ignore[method-assign]
    fleet.roll_out()
    assert shares == [0.0, 0.0]


@pytest.mark.parametrize("when", [100.5, 110.0])
def test_an_unobservable_node_ends_the_rollout(fleet: Fleet, when: float) -> None:
    fleet.at[when] = lambda: setattr(fleet.nodes["0"], "is_down", True)
    with pytest.raises(CanaryError, match="0 cannot be watched: silence"):
        fleet.roll_out()
    assert fleet.now == when
    assert fleet.versions() == ["old"] * 10


def test_an_unobservable_old_node_does_not_end_the_rollout(fleet: Fleet) -> None:
    fleet.at[110.0] = lambda: setattr(fleet.nodes["5"], "is_down", True)
    fleet.roll_out()
    assert fleet.versions() == ["new"] * 10


def test_a_later_refusal_causes_a_rollback_everywhere(fleet: Fleet) -> None:
    fleet.nodes["8"].refuses = True
    with pytest.raises(FleetError, match="8: no room") as caught:
        fleet.roll_out()
    assert list(caught.value.failures) == ["8"]
    assert fleet.versions() == ["old"] * 10


def test_a_node_that_loses_the_new_version_rolls_back_all(fleet: Fleet) -> None:
    fleet.at[129.5] = lambda: setattr(fleet.nodes["0"], "forgets", True)
    with pytest.raises(CanaryError, match="0 cannot be watched: model m has no such lease"):
        fleet.roll_out()
    assert fleet.versions() == ["old"] * 10


def test_an_interruption_rolls_back(fleet: Fleet) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    fleet.at[110.0] = interrupt
    with pytest.raises(KeyboardInterrupt):
        fleet.roll_out()
    assert fleet.versions() == ["old"] * 10
    assert fleet.log[-1] == ("take back", "0")
