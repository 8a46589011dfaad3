"""Users' metrics: read consistently from a worker's memory, whatever it contains, and counted across exits."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.lanes.user_metrics import (
    MAX_BYTES,
    MAX_VALUES,
    SIZE,
    UserFamily,
    UserMetrics,
    UserMetricsPages,
    UserSample,
    encoded,
    encoded_sample,
)
from pytriton._protocol.lanes.user_series import Families, checked, with_ended, with_living

Buckets = Mapping[str, float]


def family(name: str, kind: str, *samples: tuple[str, dict[str, str], float]) -> UserFamily:
    return UserFamily(name, kind, "Help.", [encoded_sample(UserSample(*one)) for one in samples])


def message(*families: UserFamily, left_out: int = 0) -> bytes:
    return encoded(UserMetrics(list(families), left_out))


def counter(value: float, name: str = "seen", **labels: str) -> UserFamily:
    return family(name, "counter", ("_total", labels, value))


def gauge(value: float) -> UserFamily:
    return family("depth", "gauge", ("", {}, value))


def histogram(buckets: Buckets, total: float) -> UserFamily:
    reported = [("_bucket", {"le": le}, count) for le, count in buckets.items()]
    return family(
        "size", "histogram", *reported, ("_count", {}, buckets["+Inf"]), ("_sum", {}, total)
    )


def values(families: Families, name: str) -> dict[tuple[str, str], float]:
    """Return the values of the only series of a metric."""
    (series,) = families[name].series.values()
    return dict(series)


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_message_is_read() -> None:
    memory = bytearray(SIZE)
    worker, dispatcher = (UserMetricsPages(memoryview(memory)) for _ in range(2))
    assert dispatcher.read() == b""
    for number in range(5):
        assert worker.write(b"%d" % number * 100)
        assert dispatcher.read() == dispatcher.read() == b"%d" % number * 100
    assert worker.write(bytes(MAX_BYTES))
    assert dispatcher.read() == bytes(MAX_BYTES)
    assert not worker.write(bytes(MAX_BYTES + 1))


def test_a_partially_written_message_does_not_count() -> None:
    memory = bytearray(SIZE)
    worker, dispatcher = (UserMetricsPages(memoryview(memory)) for _ in range(2))
    worker.write(b"first")
    whole = bytes(memory)
    worker.write(b"second")
    half_written = bytearray(memory)
    half_written[:8] = whole[:8]  # as if the serial were not written yet
    memory[:] = half_written
    assert dispatcher.read() == b"first"


def test_damaged_pages_show_what_was_last_known() -> None:
    memory = bytearray(SIZE)
    worker, dispatcher = (UserMetricsPages(memoryview(memory)) for _ in range(2))
    worker.write(b"good")
    assert dispatcher.read() == b"good"
    seed = random.Random(3)
    for _ in range(50):
        memory[:] = seed.randbytes(SIZE // 64) * 64 + bytes(SIZE % 64)
        assert dispatcher.read() == b"good"


def test_the_stats_page_of_a_process_has_metric_pages_and_a_threads_has_none(
    tmp_path: Path,
) -> None:
    near, descriptor = WorkerStatsPage.create()
    far = WorkerStatsPage(descriptor)
    assert near.user_metrics is not None
    assert far.user_metrics is not None
    far.user_metrics.write(b"x")
    assert near.user_metrics.read() == b"x"
    far.end(far.begin(1))
    assert near.counts().calls == 1
    near.close()
    far.close()
    hosted = WorkerStatsPage.create_file(tmp_path / "gauge")
    assert hosted.user_metrics is None
    hosted.close()


# ── what a worker says, checked ──────────────────────────────────────────────────────────────────


def test_metrics_of_every_kind_are_accepted() -> None:
    said = checked(
        message(
            counter(3, colour="red"),
            gauge(0.5),
            histogram({"1.0": 2, "+Inf": 3}, 7.0),
            family(
                "took",
                "summary",
                ("_count", {}, 2),
                ("_sum", {}, 9.0),
                ("", {"quantile": "0.5"}, 4),
            ),
        )
    )
    assert (said.left_out, said.faults) == (0, {})
    assert dict(said.families["seen"].series) == {(("colour", "red"),): {("_total", ""): 3.0}}
    assert values(said.families, "size")["_bucket", "1.0"] == 2
    assert values(said.families, "took") == {
        ("_count", ""): 2, ("_sum", ""): 9.0, ("", "0.5"): 4
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (counter(1, name="pytriton_calls"), "reserved for the daemon"),
        (counter(1, name="nv_x"), "reserved for the daemon"),
        (counter(1, name="a b"), "name"),
        (counter(1, name='x{a="b"} 1\ny'), "name"),
        (counter(1, name=""), "name"),
        (counter(1, name="n" * 201), "name"),
        (family("x", "gaugehistogram", ("_bucket", {"le": "1"}, 1)), "gaugehistogram"),
        (counter(1, name="x", **{"a-b": "c"}), "label"),
        (counter(1, name="x", __name__="c"), "label"),
        (counter(1, name="x", a="v" * 501), "label"),
        (counter(1, name="x", **{f"l{i}": "" for i in range(31)}), "label"),
        (family("x", "counter", ("", {}, 1)), "label or value"),
        (family("x", "counter", ("_bucket", {}, 1)), "label or value"),
        (family("x", "histogram", ("_bucket", {"le": "1"}, 1)), "lacks"),
        (family("x", "histogram", ("_bucket", {"le": "nan"}, 1)), "label"),
        (family("x", "histogram", ("_bucket", {}, 1), ("_bucket", {"le": "+Inf"}, 1)), "label"),
        (family("x", "summary", ("", {}, 1)), "label"),
        (family("x", "summary", ("_count", {}, float("nan")), ("_sum", {}, 1)), "count"),
        (histogram({"1": -1, "+Inf": 2}, 1), "count"),
        (histogram({"1": float("nan"), "+Inf": 2}, 1), "count"),
        (histogram({"1": 1, "+Inf": float("inf")}, 1), "count"),
        (histogram({"1": 1, "+Inf": 1e300}, 1), "count"),
        (histogram({"1": 1, "+Inf": 2.0**63}, 1), "count"),
        (histogram({"10": 1, "9": 2, "+Inf": 2}, 1), "cumulative"),
    ],
)  # fmt: skip
def test_unreadable_metrics_are_dropped_and_reported(bad: UserFamily, why: str) -> None:
    said = checked(message(bad, counter(1)))
    assert set(said.families) == {"seen"}
    assert said.left_out >= 1
    assert why in said.faults[bad.name[:200]]


def test_every_valid_count_is_reported() -> None:
    odd = [float("nan"), -1.0, 1e300]
    series = [("_total", {"n": str(number)}, value) for number, value in enumerate(odd)]
    large = histogram({"1": 2.0**62, "+Inf": 2.0**62}, float("nan"))
    said = checked(message(family("seen", "counter", *series), large))
    assert (said.left_out, set(said.families)) == (0, {"seen", "size"})


def test_equal_bounds_in_different_notations_are_one() -> None:
    reported = [("1", 1), ("1.0", 2), ("inf", 4), ("+Inf", 5)]
    buckets = [("_bucket", {"le": le}, count) for le, count in reported]
    said = checked(
        message(family("size", "histogram", *buckets, ("_count", {}, 5), ("_sum", {}, 1)))
    )
    assert values(said.families, "size") == {
        ("_bucket", "1"): 2, ("_bucket", "+Inf"): 5, ("_count", ""): 5, ("_sum", ""): 1
    }  # fmt: skip


def test_a_name_that_comes_twice_is_reported_once() -> None:
    said = checked(message(counter(1), counter(2)))
    assert values(said.families, "seen") == {("_total", ""): 1}
    assert said.faults == {"seen": "its name occurs twice"}


def test_excess_values_are_dropped() -> None:
    many = [("_total", {"user": str(number)}, 1.0) for number in range(MAX_VALUES + 7)]
    said = checked(message(family("seen", "counter", *many), left_out=5))
    assert len(said.families["seen"].series) == MAX_VALUES
    assert said.left_out == 7 + 5


@pytest.mark.parametrize("seed", range(20))
def test_anything_a_worker_writes_is_validated_without_errors(seed: int) -> None:
    chance = random.Random(seed)
    good = bytearray(message(counter(1, a="b"), gauge(2), histogram({"1": 1, "+Inf": 2}, 3)))
    for _ in range(200):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        checked(bytes(damaged[: chance.randint(0, len(damaged))]))
    assert checked(b"\xc1").families == {}


# ── over ends of workers ─────────────────────────────────────────────────────────────────────────


def test_counters_and_histograms_continue_and_gauges_do_not() -> None:
    first = message(counter(3), gauge(8), histogram({"1.0": 2, "+Inf": 3}, 7.0))
    second = message(counter(2), gauge(1), histogram({"1.0": 1, "+Inf": 1}, 0.5))
    before = with_ended(with_ended({}, first), second)
    assert set(before) == {"seen", "size"}
    reported = with_living(before, [first]).families
    assert values(reported, "seen") == {("_total", ""): 3 + 2 + 3}
    assert values(reported, "depth") == {("", ""): 8}
    assert values(reported, "size") == {
        ("_bucket", "1.0"): 2 + 1 + 2,
        ("_bucket", "+Inf"): 3 + 1 + 3,
        ("_count", ""): 3 + 1 + 3,
        ("_sum", ""): 7.0 + 0.5 + 7.0,
    }


def test_counters_of_two_workers_are_added_and_the_newer_gauge_counts() -> None:
    reported = with_living(
        {}, [message(counter(3), gauge(8)), message(counter(4), gauge(9))]
    ).families
    assert values(reported, "seen") == {("_total", ""): 7}
    assert values(reported, "depth") == {("", ""): 9}


def test_metrics_unknown_to_a_new_worker_are_kept() -> None:
    before = with_ended({}, message(counter(3, a="x"), counter(1, name="old")))
    reported = with_living(before, [message(counter(4, a="y"))]).families
    assert dict(reported["seen"].series) == {
        (("a", "x"),): {("_total", ""): 3},
        (("a", "y"),): {("_total", ""): 4},
    }
    assert values(reported, "old") == {("_total", ""): 1}


@pytest.mark.parametrize(
    "changed", [histogram({"2.0": 5, "+Inf": 5}, 1.0), family("size", "gauge", ("", {}, 4))]
)
def test_other_buckets_or_another_kind_start_again(changed: UserFamily) -> None:
    before = with_ended({}, message(histogram({"1.0": 2, "+Inf": 3}, 7.0)))
    reported = with_living(before, [message(changed)]).families
    assert reported["size"] == checked(message(changed)).families["size"]


def test_a_count_that_overflows_starts_again() -> None:
    large = message(histogram({"1.0": 2.0**62, "+Inf": 2.0**62}, 7.0))
    reported = with_living(with_ended({}, large), [large]).families
    assert reported["size"] == checked(large).families["size"]


def test_unlimited_exits_keep_a_bounded_number_of_series() -> None:
    before: Families = {}
    for life in range(4):
        many = [("_total", {"id": f"{life}-{number}"}, 1.0) for number in range(MAX_VALUES // 2)]
        before = with_ended(before, message(family("seen", "counter", *many)))
    assert len(before["seen"].series) == MAX_VALUES
