"""When a new version counts as worse than the old one: a table of observations of both."""

from __future__ import annotations

import bisect

import pytest

from pytriton._protocol import messages
from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.canary import (
    Canary,
    CanaryCounters,
    CanaryWatch,
    canary_of,
    counters_of,
    duration_fault,
    failure_fault,
    increase_since,
    plan_waves,
    total_of,
)


def counters(
    requests: int, failed: int = 0, call_s: float = 0.001, slow: int = 0
) -> CanaryCounters:
    """Return the counters of this many requests with a call each; `slow` of them take two seconds."""
    calls = [0] * (len(BOUNDS_S) + 1)
    calls[bisect.bisect_left(BOUNDS_S, call_s)] += requests - slow
    calls[bisect.bisect_left(BOUNDS_S, 2.0)] += slow
    return CanaryCounters(requests, failed, (requests - slow) * call_s + slow * 2.0, tuple(calls))


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        (counters(0), counters(0), ""),
        (counters(3, 3), counters(0), "3 of its 3 requests failed"),
        (counters(2, 2), counters(1000), ""),  # they may be requests that no version could answer
        (counters(1000, 3), counters(1000), ""),
        (counters(1000, 10), counters(1000, 10), ""),
        (counters(1000, 27), counters(1000, 10), ""),  # explained by chance plus one percent
        (
            counters(1000, 40),
            counters(1000, 10),
            "40 of its 1000 requests failed; of the old version's requests, 10",
        ),
        (counters(100, 60), counters(1000, 500), ""),  # the old one is hardly better
        (counters(10, 9), counters(1000, 100), "9 of its 10"),
        (counters(100, 0, 0.002), counters(100, 0, 0.001), "its calls take 2 ms"),
        (counters(100, 0, 0.0012), counters(100, 0, 0.001), ""),
        (counters(100, 0, 0.0005), counters(100, 0, 0.0001), ""),  # that is the machine's fault
        (counters(19, 0, 0.1), counters(100, 0, 0.001), ""),  # too few
        (counters(100, 0, 0.1), counters(19, 0, 0.001), ""),
        (counters(100, slow=1), counters(100), ""),  # a first call that loads something
        (counters(100, slow=10), counters(100), "95th percentile"),
        (counters(100, 0, 0.001), counters(100, 0, 0.01), ""),
    ],
)
def test_when_a_canary_is_worse(new: CanaryCounters, old: CanaryCounters, why: str) -> None:
    found = failure_fault(new, old, Canary()) or duration_fault(new, old, Canary(calls=20))
    assert why in found
    assert bool(found) == bool(why)


def test_users_set_the_bounds() -> None:
    assert failure_fault(counters(1000, 40), counters(1000), Canary(failures=0.05)) == ""
    assert duration_fault(counters(100, 0, 0.002), counters(100), Canary(slower=3)) == ""
    assert duration_fault(counters(10, 0, 0.002), counters(10), Canary(calls=10)) != ""


def test_a_new_worker_may_be_slow_at_first() -> None:
    canary = Canary(watch_s=60)
    for slow_first, fault in ((True, ""), (False, "its calls take 5 ms")):
        times = (0.005, 0.001) if slow_first else (0.001, 0.005)
        watch = CanaryWatch(canary, 1000.0, {"a": CanaryCounters(), "b": CanaryCounters()})
        half = {"a": counters(100, 0, times[0]), "b": counters(100)}
        assert watch.judge(1030.0, half, ["a"])[::2] == ("", False)
        end = {"a": total_of([half["a"], counters(100, 0, times[1])]), "b": counters(200)}
        found = watch.judge(1060.0, end, ["a"])
        assert found.over
        assert found.fault.startswith(fault)
        assert bool(found.fault) == bool(fault)


def test_failures_count_immediately_and_silent_nodes_do_not_count() -> None:
    watch = CanaryWatch(Canary(), 0.0, {"a": counters(50, 50), "b": counters(50)})
    assert watch.judge(1.0, {"a": counters(52, 52), "b": counters(60)}, ["a"]).fault == ""
    assert "3 of its 3" in watch.judge(2.0, {"a": counters(53, 53), "b": counters(60)}, ["a"]).fault
    # Counters of a node that was silent at the start cover years.
    found = watch.judge(3.0, {"a": counters(52, 52), "b": counters(60), "c": counters(9000)}, ["a"])
    assert "old: 10 requests" in found.summary


def test_a_node_counts_from_its_first_report() -> None:
    watch = CanaryWatch(Canary(watch_s=60), 0.0, {"b": counters(50)})  # "a" has no figures yet
    assert watch.judge(1.0, {"a": counters(9000, 9000), "b": counters(60)}, ["a"]).fault == ""
    assert (
        "3 of its 3"
        in watch.judge(2.0, {"a": counters(9003, 9003), "b": counters(60)}, ["a"]).fault
    )

    slow = CanaryWatch(Canary(watch_s=60), 0.0, {"a": CanaryCounters(), "b": CanaryCounters()})
    slow.judge(30.0, {"b": counters(50)}, ["a"])  # silent halfway
    slow.judge(35.0, {"a": counters(50), "b": counters(60)}, ["a"])
    later = total_of([counters(50), counters(100, 0, 0.005)])
    assert "its calls take 5 ms" in slow.judge(60.0, {"a": later, "b": counters(150)}, ["a"]).fault


@pytest.mark.parametrize("requests", [0, 4])
def test_more_requests_may_fail_than_were_started(requests: int) -> None:
    """Batches or streams from before the analysis may fail during it."""
    watch = CanaryWatch(Canary(), 0.0, {"a": counters(40), "b": counters(40)})
    found = watch.judge(1.0, {"a": counters(40 + requests, 5), "b": counters(60)}, ["a"])
    assert "5 of its 5 requests failed" in found.fault
    found = watch.judge(1.0, {"a": counters(60), "b": counters(40 + requests, 5)}, ["a"])
    assert found.fault == ""


def test_reset_counters_belong_to_a_new_process() -> None:
    grown = increase_since(counters(10, 2), counters(4, 1))
    assert (grown.requests, grown.failed, grown.calls) == (6, 1, counters(6).calls)
    assert grown.mean_s == pytest.approx(0.001)
    assert increase_since(counters(3, 1), counters(10, 2)) == counters(3, 1)
    both = total_of([counters(3, 1), counters(4), CanaryCounters()])
    assert (both.requests, both.failed, both.calls) == (7, 1, counters(7).calls)
    assert both.mean_s == pytest.approx(0.001)


def test_all_kinds_of_failures_count() -> None:
    work = messages.Work(
        requests=1, failed={"callable": 2, "lost": 3}, call_s=messages.Histogram(1.5, [0, 2])
    )
    model = messages.ModelMetrics("m", 1, "ready", work=work)
    daemon = messages.DaemonMetrics("0", "ready", 1, 0.0, "ready")
    figures = messages.MetricsSnapshot(0.0, daemon, [model])
    assert counters_of(figures, "m") == CanaryCounters(5, 5, 1.5, (0, 2))
    assert counters_of(figures, "n") == CanaryCounters()


@pytest.mark.parametrize(
    ("count", "share", "sizes"),
    [
        (2, 0.1, [1, 1]),
        (3, 0.1, [1, 2]),
        (3, 0.99, [2, 1]),
        (10, 0.1, [1, 2, 4, 3]),
        (10, 0.3, [3, 6, 1]),
        (100, 0.05, [5, 10, 20, 40, 25]),
    ],
)
def test_the_share_gets_the_version_first_and_then_twice_as_many(
    count: int, share: float, sizes: list[int]
) -> None:
    nodes = [str(number) for number in range(count)]
    waves = plan_waves(nodes, share)
    assert [len(one) for one in waves] == sizes
    assert [node for one in waves for node in one] == nodes


def test_invalid_canary_settings_are_refused() -> None:
    with pytest.raises(PyTritonBadParameterError, match="two nodes"):
        plan_waves(["one"], 0.1)
    with pytest.raises(PyTritonBadParameterError, match="replace=True"):
        canary_of(0.1, replace=False)
    for wrong in (0, 1, -1, float("nan"), True, "0.1"):
        with pytest.raises(PyTritonBadParameterError, match="share="):
            canary_of(wrong, replace=True)  # type: ignore[arg-type]
    for name, value in (("watch_s", 0), ("failures", 1), ("slower", 0.5), ("calls", 0)):
        with pytest.raises(PyTritonBadParameterError, match=f"{name}="):
            Canary(**{name: value})  # type: ignore[arg-type]
    assert canary_of(None, replace=False) is None
    assert canary_of(Canary(0.2), replace=True) == canary_of(0.2, replace=True)
