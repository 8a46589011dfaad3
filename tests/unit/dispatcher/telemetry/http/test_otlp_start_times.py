"""Since when a counter that is sent counts: it may begin again, be gone, and outlive an upgrade."""

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

from pytriton.dispatcher.runtime.upgrade_snapshot import SentSeries
from pytriton.dispatcher.telemetry.http import otlp
from pytriton.dispatcher.telemetry.http.otlp import Beginnings


def _start_times(beginnings: Beginnings, at: int, *counts: tuple[str, float]) -> dict[str, int]:
    """Tell counters of some models at a moment; return when each is said to have begun."""
    points = [NumberDataPoint({"model": name}, 1000, at, count) for name, count in counts]
    data = Sum(points, AggregationTemporality.CUMULATIVE, True)
    (metric,) = beginnings.with_start_times([Metric("calls", "", "", data)], at)
    found: Any = metric.data.data_points
    return {one.attributes["model"]: one.start_time_unix_nano for one in found}


def test_a_reset_counter_gets_a_new_start_time() -> None:
    beginnings = Beginnings()
    assert _start_times(beginnings, 1010, ("a", 50), ("b", 5)) == {"a": 1000, "b": 1000}
    assert _start_times(beginnings, 1020, ("a", 3), ("b", 6)) == {"a": 1010, "b": 1000}
    assert _start_times(beginnings, 1030, ("b", 6)) == {"b": 1000}
    assert _start_times(beginnings, 1040, ("a", 9), ("b", 0)) == {"a": 1010, "b": 1030}
    assert _start_times(beginnings, 1050, ("a", 2)) == {"a": 1040}


def test_beginnings_outlive_an_upgrade() -> None:
    before = Beginnings()
    _start_times(before, 1010, ("a", 50), ("b", 5))
    _start_times(before, 1020, ("a", 3), ("b", 6))
    handed = msgspec.msgpack.decode(msgspec.msgpack.encode(before.hand_over()), type=SentSeries)
    after = Beginnings(handed)
    assert _start_times(after, 1030, ("a", 4), ("b", 1)) == {"a": 1010, "b": 1020}


def test_series_that_are_gone_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_MAX_GONE", 2)
    beginnings = Beginnings()
    for number in range(100):
        _start_times(beginnings, 1010 + number, (f"m{number}", 1), ("a", number))
    assert len(beginnings._sent) == 4
    assert _start_times(beginnings, 2000, ("a", 100), ("m98", 0)) == {"a": 1000, "m98": 1109}
