"""Rates between two metrics snapshots."""

from __future__ import annotations

import msgspec
import pytest
from support.models.figures import model, snapshot, work

from pytriton._protocol.messages.metrics import Histogram, InstanceMetrics, ModelMetrics, Work
from pytriton._protocol.rates import (
    duration,
    headline,
    milliseconds,
    rates,
    rows,
    size,
    sort_rows,
    total,
)


def test_rates_cover_only_the_interval() -> None:
    before, now = work(100, ms=50), work(150, ms=50)
    now = msgspec.structs.replace(now, call_s=_added(before.call_s, work(50, ms=2).call_s))
    found = rates(before, now, 10.0)
    assert found.requests_s == 5.0
    assert found.rows == 1.0
    assert found.p99 == pytest.approx(0.002, rel=0.2)
    assert found.busy == pytest.approx(0.25)


def test_restarted_counters_count_from_zero() -> None:
    assert rates(work(1000), work(20), 10.0).requests_s == 2.0


def test_without_calls_there_are_no_times() -> None:
    found = rates(work(7), work(7), 10.0)
    assert (found.requests_s, found.p50, found.p99, found.rows) == (0.0, None, None, None)


def test_no_rates_without_elapsed_time() -> None:
    assert rates(None, work(7), 0.0).requests_s == 0.0


def test_failures_are_counted_over_their_kinds() -> None:
    now = Work(calls=4, requests=4, failed={"error": 2, "lost": 1})
    assert rates(Work(), now, 2.0).failures_s == 1.5


def test_a_model_has_a_row_and_each_of_its_instances() -> None:
    found = rows(snapshot(1010, model("a", work(10))), snapshot(1020, model("a", work(30))))
    assert [(one.model, one.instance, one.state) for one in found] == [
        ("a", "", "ready"),
        ("a", "0", "ready"),
    ]
    assert found[0].instances == (1, 1)
    assert found[0].waiting == 3
    assert found[0].resident == 412_000_000
    assert [one.rates.requests_s for one in found] == [2.0, 2.0]


def test_without_a_previous_snapshot_rates_cover_the_daemons_lifetime() -> None:
    (row, _) = rows(None, snapshot(1020, model("a", work(30))))
    assert row.rates.requests_s == 1.5


def test_another_daemons_snapshot_is_not_a_previous_one() -> None:
    before = snapshot(900, model("a", work(29)), started_at=10.0)
    (row, _) = rows(before, snapshot(1020, model("a", work(30))))
    assert row.rates.requests_s == 1.5


def test_requested_exits_are_not_problems() -> None:
    ends = {"crash": 2, "hang": 1, "scale": 5, "replace": 1, "stop": 1, "recycle": 9}
    (row, _) = rows(None, snapshot(1020, model("a", work(1), exits=ends, last_exit="signal 11")))
    assert (row.exits, row.last_exit) == (3, "signal 11")


def test_a_model_without_workers_has_a_reason() -> None:
    broken = ModelMetrics("a", 1, "failed", desired=2, error="ImportError: torch")
    (row,) = rows(None, snapshot(1020, broken))
    assert (row.instances, row.last_exit, row.resident) == ((0, 2), "ImportError: torch", None)


def test_removed_instances_count_only_in_the_model() -> None:
    gone = InstanceMetrics(1, 1, exits={"crash": 4})
    alive = model("a", work(1))
    both = ModelMetrics("a", 1, "ready", desired=1, instances=[*alive.instances, gone])
    found = rows(None, snapshot(1020, both))
    assert [(one.instance, one.exits) for one in found] == [("", 4), ("0", 0)]


def test_concurrently_served_versions_are_distinguished() -> None:
    both = ModelMetrics(
        "a", 2, "ready",
        instances=[InstanceMetrics(1, 0, state="ready"), InstanceMetrics(2, 0, state="ready")],
    )  # fmt: skip
    assert [one.instance for one in rows(None, snapshot(1020, both))] == ["", "0 of v1", "0 of v2"]


def test_rows_are_sorted_and_filtered_by_model() -> None:
    now = snapshot(1010, model("beta", work(10)), model("Alpha", work(20)), model("gamma", work(5)))
    found = rows(None, now)
    assert [one.model for one in sort_rows(found) if not one.instance] == ["Alpha", "beta", "gamma"]
    by_load = [one.model for one in sort_rows(found, "requests")]
    assert by_load == ["Alpha", "Alpha", "beta", "beta", "gamma", "gamma"]
    assert [one.model for one in sort_rows(found, containing="BET")] == ["beta", "beta"]
    assert total(found) == (3.5, 0.0)
    with pytest.raises(KeyError):
        sort_rows(found, "colour")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "-"), (0.0000076, "0.008"), (0.00123, "1.23"), (0.0456, "45.6"), (1.5, "1500")],
)
def test_times_have_three_digits(seconds: float | None, said: str) -> None:
    assert milliseconds(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(None, "-"), (12, "12 B"), (1500, "1.5 KB"), (412_000_000, "412 MB"), (5e12, "5.0 TB")],
)
def test_sizes_have_a_unit(count: int | None, said: str) -> None:
    assert size(count) == said


def test_durations_have_two_units() -> None:
    assert [duration(one) for one in (5, 65, 3700, 90_000)] == [
        "5 s",
        "1 min 5 s",
        "1 h 1 min",
        "1 d 1 h",
    ]


@pytest.mark.parametrize(
    ("restarts", "said"),
    [({"exited": 2, "planned": 1}, ", restarted 2 times;"), ({"planned": 1, "replaced": 1}, "")],
)
def test_the_headline_counts_unexpected_restarts_of_the_server(
    restarts: dict[str, int], said: str
) -> None:
    daemon = msgspec.structs.replace(snapshot(1000).daemon, server_restarts=restarts)
    line = headline(daemon, 1000)
    assert said in line
    assert ("restarted" in line) == bool(said)


def _added(one: Histogram, other: Histogram) -> Histogram:
    buckets = [a + b for a, b in zip(one.buckets, other.buckets)]
    return Histogram(one.sum + other.sum, buckets)
