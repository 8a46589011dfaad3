"""The requests worth a look: the slowest of the last hour, the last that failed."""

from __future__ import annotations

from pytriton._protocol.messages.requests import RequestEntry
from pytriton.dispatcher.telemetry.requests.collector import KEPT, Samples


def entry(took: int, at: float = 0.0, status: str = "ok") -> RequestEntry:
    return RequestEntry(at, f"r{took}", "m", 1, 0, status, None, took, 1, 1, 0, None)


def times(found: list[RequestEntry]) -> list[int]:
    return [one.compute_ns for one in found]


def test_the_slowest_are_kept_and_no_more() -> None:
    samples = Samples()
    for took in range(100, 0, -1):
        samples.see(entry(took), 0.0)
        samples.see(entry(took), 0.0)  # equal ones are no trouble
    assert times(samples.slowest(0.0)) == [took for took in range(100, 90, -1) for _ in range(2)]
    assert samples.threshold_ns(0.0) == 92


def test_everything_is_wanted_until_there_are_enough() -> None:
    samples = Samples()
    for took in range(1, KEPT):
        samples.see(entry(took), 0.0)
    assert samples.threshold_ns(0.0) == 0
    samples.see(entry(KEPT), 0.0)
    assert samples.threshold_ns(0.0) == 2


def test_an_hour_later_they_are_forgotten_and_quicker_ones_show() -> None:
    samples = Samples()
    for took in range(1000, 1000 + KEPT):
        samples.see(entry(took, at=0.0), 0.0)
    assert samples.threshold_ns(500.0) == 1001
    assert samples.threshold_ns(700.0) == 0  # of the next piece of the hour nothing is known yet
    samples.see(entry(5, at=-1e9), 700.0)  # somebody has set the clock
    assert times(samples.slowest(3000.0))[-1] == 1000  # twenty are slower
    assert times(samples.slowest(3601.0)) == [5]
    assert times(samples.slowest(4301.0)) == []


def test_the_last_that_failed_are_kept() -> None:
    samples = Samples()
    for took in range(30):
        samples.see(entry(took, status="callable"), 0.0)
        samples.see(entry(took), 0.0)
    assert times(samples.failed()) == list(range(29, 29 - KEPT, -1))
