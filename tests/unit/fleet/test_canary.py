"""When a new version is taken to be worse than the old one: a table of what was seen of both."""

from __future__ import annotations

import bisect

import pytest

from pytriton._protocol import messages
from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.canary import (
    Canary,
    CanaryWatch,
    Seen,
    canary_of,
    failing,
    seen_of,
    since,
    slower,
    together,
    waves_of,
)


def seen(requests: int, failed: int = 0, call_s: float = 0.001, slow: int = 0) -> Seen:
    """Return so many requests, a call each; `slow` of them take two seconds."""
    calls = [0] * (len(BOUNDS_S) + 1)
    calls[bisect.bisect_left(BOUNDS_S, call_s)] += requests - slow
    calls[bisect.bisect_left(BOUNDS_S, 2.0)] += slow
    return Seen(requests, failed, (requests - slow) * call_s + slow * 2.0, tuple(calls))


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        (seen(0), seen(0), ""),
        (seen(3, 3), seen(0), "3 of its 3 requests failed"),
        (seen(2, 2), seen(1000), ""),  # they may be requests that no version could answer
        (seen(1000, 3), seen(1000), ""),
        (seen(1000, 10), seen(1000, 10), ""),
        (seen(1000, 27), seen(1000, 10), ""),  # within what chance, and a hundredth more, explain
        (
            seen(1000, 40),
            seen(1000, 10),
            "40 of its 1000 requests failed; of the old version's, 10",
        ),
        (seen(100, 60), seen(1000, 500), ""),  # the old one is hardly better
        (seen(10, 9), seen(1000, 100), "9 of its 10"),
        (seen(100, 0, 0.002), seen(100, 0, 0.001), "its calls take 2 ms"),
        (seen(100, 0, 0.0012), seen(100, 0, 0.001), ""),
        (seen(100, 0, 0.0005), seen(100, 0, 0.0001), ""),  # that is the machine's
        (seen(19, 0, 0.1), seen(100, 0, 0.001), ""),  # too few
        (seen(100, 0, 0.1), seen(19, 0, 0.001), ""),
        (seen(100, slow=1), seen(100), ""),  # a first call that loads something
        (seen(100, slow=10), seen(100), "95 of 100 at most"),
        (seen(100, 0, 0.001), seen(100, 0, 0.01), ""),
    ],
)
def test_when_a_canary_is_worse(new: Seen, old: Seen, why: str) -> None:
    found = failing(new, old, Canary()) or slower(new, old, Canary(calls=20))
    assert why in found
    assert bool(found) == bool(why)


def test_the_bounds_are_the_users() -> None:
    assert failing(seen(1000, 40), seen(1000), Canary(failures=0.05)) == ""
    assert slower(seen(100, 0, 0.002), seen(100), Canary(slower=3)) == ""
    assert slower(seen(10, 0, 0.002), seen(10), Canary(calls=10)) != ""


def test_a_worker_that_has_just_begun_may_be_slow_at_first() -> None:
    canary = Canary(watch_s=60)
    for slow_first, fault in ((True, ""), (False, "its calls take 5 ms")):
        times = (0.005, 0.001) if slow_first else (0.001, 0.005)
        watch = CanaryWatch(canary, 1000.0, {"a": Seen(), "b": Seen()})
        half = {"a": seen(100, 0, times[0]), "b": seen(100)}
        assert watch.judge(1030.0, half, ["a"])[::2] == ("", False)
        end = {"a": together([half["a"], seen(100, 0, times[1])]), "b": seen(200)}
        found = watch.judge(1060.0, end, ["a"])
        assert found.over
        assert found.fault.startswith(fault)
        assert bool(found.fault) == bool(fault)


def test_failures_count_at_once_and_silent_nodes_do_not() -> None:
    watch = CanaryWatch(Canary(), 0.0, {"a": seen(50, 50), "b": seen(50)})
    assert watch.judge(1.0, {"a": seen(52, 52), "b": seen(60)}, ["a"]).fault == ""
    assert "3 of its 3" in watch.judge(2.0, {"a": seen(53, 53), "b": seen(60)}, ["a"]).fault
    # What was silent when the watch began tells of years.
    found = watch.judge(3.0, {"a": seen(52, 52), "b": seen(60), "c": seen(9000)}, ["a"])
    assert "old: 10 requests" in found.summary


def test_a_node_that_was_silent_at_first_is_judged_by_what_it_counts_from_then_on() -> None:
    watch = CanaryWatch(Canary(watch_s=60), 0.0, {"b": seen(50)})  # "a" has no figures yet
    assert watch.judge(1.0, {"a": seen(9000, 9000), "b": seen(60)}, ["a"]).fault == ""
    assert "3 of its 3" in watch.judge(2.0, {"a": seen(9003, 9003), "b": seen(60)}, ["a"]).fault

    slow = CanaryWatch(Canary(watch_s=60), 0.0, {"a": Seen(), "b": Seen()})
    slow.judge(30.0, {"b": seen(50)}, ["a"])  # silent halfway
    slow.judge(35.0, {"a": seen(50), "b": seen(60)}, ["a"])
    later = together([seen(50), seen(100, 0, 0.005)])
    assert "its calls take 5 ms" in slow.judge(60.0, {"a": later, "b": seen(150)}, ["a"]).fault


@pytest.mark.parametrize("requests", [0, 4])
def test_more_may_fail_than_was_begun(requests: int) -> None:
    """A batch, or streams, of before the watch may fail in it."""
    watch = CanaryWatch(Canary(), 0.0, {"a": seen(40), "b": seen(40)})
    found = watch.judge(1.0, {"a": seen(40 + requests, 5), "b": seen(60)}, ["a"])
    assert "5 of its 5 requests failed" in found.fault
    found = watch.judge(1.0, {"a": seen(60), "b": seen(40 + requests, 5)}, ["a"])
    assert found.fault == ""


def test_reset_counters_belong_to_a_new_process() -> None:
    grown = since(seen(10, 2), seen(4, 1))
    assert (grown.requests, grown.failed, grown.calls) == (6, 1, seen(6).calls)
    assert grown.mean_s == pytest.approx(0.001)
    assert since(seen(3, 1), seen(10, 2)) == seen(3, 1)
    both = together([seen(3, 1), seen(4), Seen()])
    assert (both.requests, both.failed, both.calls) == (7, 1, seen(7).calls)
    assert both.mean_s == pytest.approx(0.001)


def test_all_kinds_of_failures_count() -> None:
    work = messages.Work(
        requests=1, failed={"callable": 2, "lost": 3}, call_s=messages.Histogram(1.5, [0, 2])
    )
    model = messages.ModelMetrics("m", 1, "ready", work=work)
    daemon = messages.DaemonMetrics("0", "ready", 1, 0.0, "ready")
    figures = messages.MetricsSnapshot(0.0, daemon, [model])
    assert seen_of(figures, "m") == Seen(5, 5, 1.5, (0, 2))
    assert seen_of(figures, "n") == Seen()


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
def test_the_share_gets_it_first_and_then_twice_as_many(
    count: int, share: float, sizes: list[int]
) -> None:
    nodes = [str(number) for number in range(count)]
    waves = waves_of(nodes, share)
    assert [len(one) for one in waves] == sizes
    assert [node for one in waves for node in one] == nodes


def test_invalid_canary_settings_are_refused() -> None:
    with pytest.raises(PyTritonBadParameterError, match="two nodes"):
        waves_of(["one"], 0.1)
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
