"""The outcomes of the last minutes: counters that only grow, looked at now and then."""

from __future__ import annotations

from pytriton.dispatcher.telemetry.requests.collector import RecentOutcomes
from pytriton.dispatcher.workers.model_counters import ModelCounters


class Counted(ModelCounters):
    """A tally whose counters the test sets."""

    requests = lost = 0

    def outcomes(self) -> tuple[int, dict[str, int]]:
        return self.requests, {"callable": 0, "lost": self.lost}


def test_they_are_those_since_a_point_of_the_last_minutes() -> None:
    counters = Counted()
    counters.requests, counters.lost = 1000, 900  # a former life's
    recent = RecentOutcomes(counters, 50.0)
    for second in range(1, 1001):
        counters.requests += 1
        counters.lost += second <= 600
        recent.look(50.0 + second)
    seconds, requests, failed = recent.since(1050.0)
    assert 290 <= seconds <= 310
    assert requests == seconds
    assert failed == {"callable": 0, "lost": 0}
    assert len(recent._points) <= 32


def test_the_beginning_is_remembered_while_it_is_young() -> None:
    counters = Counted()
    recent = RecentOutcomes(counters, 50.0)
    counters.requests, counters.lost = 7, 3
    recent.look(51.0)
    assert recent.since(52.0) == (2.0, 7, {"callable": 0, "lost": 3})


def test_old_outcomes_are_dropped_after_a_quiet_period() -> None:
    counters = Counted()
    recent = RecentOutcomes(counters, 50.0)
    counters.requests = 7
    for second in range(60, 1000, 10):
        recent.look(float(second))
    assert recent.since(1000.0)[1] == 0
