"""Start times of exported counters: after a reset, when they disappear, and across an upgrade."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    NumberDataPoint,
    Sum,
)

from pytriton.dispatcher.telemetry.http import otlp_points
from pytriton.dispatcher.telemetry.http.otlp_points import StartTimes
from pytriton.dispatcher.upgrade.snapshot import SentSeries


def _starts(start_times: StartTimes, at: int, *counts: tuple[str, float]) -> dict[str, int]:
    """Export some models' counters at a moment; return their reported start times."""
    points = [NumberDataPoint({"model": name}, 1000, at, count) for name, count in counts]
    data = Sum(points, AggregationTemporality.CUMULATIVE, True)
    (metric,) = start_times.with_start_times([Metric("calls", "", "", data)], at)
    found: Any = metric.data.data_points
    return {one.attributes["model"]: one.start_time_unix_nano for one in found}


def test_a_reset_counter_gets_a_new_start_time() -> None:
    start_times = StartTimes()
    assert _starts(start_times, 1010, ("a", 50), ("b", 5)) == {"a": 1000, "b": 1000}
    assert _starts(start_times, 1020, ("a", 3), ("b", 6)) == {"a": 1010, "b": 1000}
    assert _starts(start_times, 1030, ("b", 6)) == {"b": 1000}
    assert _starts(start_times, 1040, ("a", 9), ("b", 0)) == {"a": 1010, "b": 1030}
    assert _starts(start_times, 1050, ("a", 2)) == {"a": 1040}


def test_start_times_survive_an_upgrade() -> None:
    before = StartTimes()
    _starts(before, 1010, ("a", 50), ("b", 5))
    _starts(before, 1020, ("a", 3), ("b", 6))
    handed = msgspec.msgpack.decode(msgspec.msgpack.encode(before.hand_over()), type=SentSeries)
    after = StartTimes(handed)
    assert _starts(after, 1030, ("a", 4), ("b", 1)) == {"a": 1010, "b": 1020}


def test_disappeared_series_are_forgotten_eventually(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_points, "_MAX_GONE", 2)
    start_times = StartTimes()
    for number in range(100):
        _starts(start_times, 1010 + number, (f"m{number}", 1), ("a", number))
    assert len(start_times._sent) == 4
    assert _starts(start_times, 2000, ("a", 100), ("m98", 0)) == {"a": 1000, "m98": 1109}
