"""The statistics page: the worker writes it, and the dispatcher reads it."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton._protocol.lanes import stats_page
from pytriton._protocol.lanes.histograms import (
    BOUNDS_NS,
    BOUNDS_S,
    DURATION_BUCKETS,
    SIZE_BOUNDS,
    SIZE_BUCKETS,
    coarse,
    quantile,
)
from pytriton._protocol.lanes.stats_page import FAILURES, Counts, WorkerStatsPage

MS = 1_000_000
#: The worker's end and the dispatcher's.
Ends = tuple[WorkerStatsPage, WorkerStatsPage]


class Clock:
    now = 5_000 * MS

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stats_page, "_now", made)
    return made


@pytest.fixture
def ends() -> Iterator[Ends]:
    near, descriptor = WorkerStatsPage.create()
    far = WorkerStatsPage(descriptor)
    yield far, near
    near.close()
    far.close()


def bucket_of(buckets: tuple[int, ...]) -> int:
    """Return the only non-empty bucket."""
    assert sum(buckets) == 1
    return buckets.index(1)


def test_batch_durations_and_waits_are_counted(ends: Ends, clock: Clock) -> None:
    worker, dispatcher = ends
    begun_ns = worker.begin(3, 10, clock.now - 7 * MS)
    clock.now += 100 * MS
    assert worker.end(begun_ns) == 1
    counts = dispatcher.counts()
    assert counts[:6] == (1, 3, 10, 0, 0, 100 * MS)
    assert (counts.call_ns, counts.wait_ns) == (100 * MS, 7 * MS)
    for taken_ns, buckets in ((100 * MS, counts.call_buckets), (7 * MS, counts.wait_buckets)):
        bucket = bucket_of(buckets)
        assert BOUNDS_NS[bucket - 1] < taken_ns <= BOUNDS_NS[bucket]
    assert SIZE_BOUNDS[bucket_of(counts.size_buckets)] == 16


@pytest.mark.parametrize(
    ("rows", "bound"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1024, 1024), (1025, 2048), (1 << 16, 1 << 16)],
)
def test_sizes_are_counted_in_the_bucket_of_their_bound(ends: Ends, rows: int, bound: int) -> None:
    ends[0].begin(1, rows)
    assert SIZE_BOUNDS[bucket_of(ends[1].counts().size_buckets)] == bound


@pytest.mark.parametrize("rows", [(1 << 16) + 1, 1 << 31])
def test_sizes_beyond_all_bounds_are_in_the_last_bucket(ends: Ends, rows: int) -> None:
    ends[0].begin(1, rows)
    assert bucket_of(ends[1].counts().size_buckets) == SIZE_BUCKETS - 1


@pytest.mark.parametrize(
    ("rows", "taken_ns"), [(-1, -1), (-(1 << 63), 1 << 62), ((1 << 63) - 1, (1 << 64) - 1), (0, 0)]
)
def test_implausible_proxy_values_are_ignored(ends: Ends, rows: int, taken_ns: int) -> None:
    worker, dispatcher = ends
    worker.begin(2, rows, taken_ns)
    worker.merged(taken_ns)
    counts = dispatcher.counts()
    assert (counts.rows, counts.wait_ns, sum(counts.wait_buckets)) == (2, 0, 0)


def test_durations_beyond_the_bounds_are_in_the_first_and_the_last_bucket(
    ends: Ends, clock: Clock
) -> None:
    worker, dispatcher = ends
    for took_ns in (1, 3_000_000 * MS):
        begun_ns = worker.begin(1)
        clock.now += took_ns
        worker.end(begun_ns)
    buckets = dispatcher.counts().call_buckets
    assert (buckets[0], buckets[-1]) == (1, 1)
    assert len(buckets) == DURATION_BUCKETS == len(BOUNDS_NS) + 1


def test_a_current_batch_counts_as_busy(ends: Ends, clock: Clock) -> None:
    worker, dispatcher = ends
    worker.begin(1)
    clock.now += 50 * MS
    assert dispatcher.counts().busy_ns == 50 * MS
    assert dispatcher.read().busy_s == pytest.approx(0.05)


#: A step: the pause before it, and which of the calls under way ends; a number beyond these begins one.
STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=60)


@given(steps=STEPS)
def test_busy_time_is_the_time_with_a_current_call(steps: list[tuple[int, int]]) -> None:
    """Whether calls overlap or follow each other, and whether the page is read during or between them."""
    clock, (dispatcher, descriptor) = Clock(), WorkerStatsPage.create()
    worker = WorkerStatsPage(descriptor)
    under_way: list[int] = []
    busy = took = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats_page, "_now", clock)
        for pause, which in steps:
            clock.now += pause * MS
            busy += pause * MS if under_way else 0
            if which < len(under_way):
                begun_ns = under_way.pop(which)
                took += clock.now - begun_ns
                worker.end(begun_ns)
            else:
                under_way.append(worker.begin(1))
            counts = dispatcher.counts()
            assert (counts.busy_ns, counts.call_ns) == (busy, took)
            page = dispatcher.read()
            assert page.idle == (not under_way)
            assert page.busy_s is None or under_way
    worker.close()
    dispatcher.close()


def test_busy_time_never_decreases(ends: Ends, clock: Clock) -> None:
    """Between two stores of the worker, a batch may be marked done before its time is added."""
    worker, dispatcher = ends
    worker.begin(1)
    clock.now += 10 * MS
    before = dispatcher.counts().busy_ns
    worker._words[1] = 1  # answered: what `end` stores last
    assert dispatcher.counts().busy_ns == before == 10 * MS


def test_merged_batches_have_separate_waits(ends: Ends, clock: Clock) -> None:
    worker, dispatcher = ends
    worker.begin(4, 4, clock.now - MS)
    worker.merged(clock.now - 3 * MS)
    counts = dispatcher.counts()
    assert (counts.calls, counts.merged, counts.wait_ns, sum(counts.wait_buckets)) == (
        1,
        1,
        4 * MS,
        2,
    )


def test_responses_of_streams(ends: Ends, clock: Clock) -> None:
    worker, dispatcher = ends
    begun_ns = worker.begin(1)
    clock.now += 20 * MS
    last_ns = worker.responded(begun_ns, first=True)
    clock.now += 2 * MS
    worker.responded(last_ns, first=False)
    counts = dispatcher.counts()
    assert (counts.parts, counts.first_ns, counts.between_ns) == (2, 20 * MS, 2 * MS)
    assert sum(counts.first_buckets) == sum(counts.between_buckets) == 1


def test_failures_by_kind(ends: Ends) -> None:
    for requests, kind in enumerate(FAILURES, start=1):
        ends[0].failed(kind, requests)
    assert ends[1].counts().failed == tuple(range(1, len(FAILURES) + 1))
    with pytest.raises(KeyError):
        ends[0].failed("other", 1)


def test_loading_and_memory(ends: Ends) -> None:
    worker, dispatcher = ends
    worker.loaded(1500 * MS, 250 * MS)
    worker.holds(1 << 40)
    assert (dispatcher.load_s, dispatcher.warmup_s, dispatcher.arena_bytes) == (1.5, 0.25, 1 << 40)


def test_a_page_of_random_bytes_can_be_read(ends: Ends) -> None:
    """The page belongs to a user's process: reading it must be harmless whatever it contains."""
    worker, dispatcher = ends
    worker._map[:] = os.urandom(len(worker._map))
    counts = dispatcher.counts()
    assert counts.plus(counts).calls == 2 * counts.calls
    dispatcher.read()


def test_counts_of_workers_add_up(ends: Ends, clock: Clock) -> None:
    worker, dispatcher = ends
    begun_ns = worker.begin(3, 10, clock.now - 7 * MS)
    worker.failed("result", 3)
    worker.end(begun_ns)
    one = dispatcher.counts()
    both = one.plus(one)
    assert one.plus(Counts()) == one
    assert (both.rows, both.wait_ns, both.failed[2]) == (20, 14 * MS, 6)
    assert both.wait_buckets == tuple(2 * count for count in one.wait_buckets)


def test_quantiles() -> None:
    assert quantile(0.5, []) is None
    assert quantile(0.5, [0, 0], [1.0]) is None
    assert quantile(0.5, [10, 10, 0], [1.0, 2.0]) == 1.0
    assert quantile(0.75, [10, 10, 0], [1.0, 2.0]) == 1.5
    assert quantile(0.99, [0, 0, 5], [1.0, 2.0]) == 2.0


def test_a_quantile_is_off_by_a_tenth_at_most(ends: Ends, clock: Clock) -> None:
    worker, dispatcher = ends
    for _ in range(100):
        begun_ns = worker.begin(1)
        clock.now += 37 * MS
        worker.end(begun_ns)
    found = quantile(0.5, dispatcher.counts().call_buckets)
    assert found is not None
    assert found == pytest.approx(0.037, rel=0.1)


def test_coarse_buckets_are_cumulative() -> None:
    assert coarse([1, 2, 3, 4], [1.0, 2.0, 4.0], [2.0, 4.0]) == [3, 6]
    assert coarse([1] * DURATION_BUCKETS, BOUNDS_S, [BOUNDS_S[-1]]) == [len(BOUNDS_S)]


@pytest.mark.parametrize("where", ["os.dup 1", "os.dup 2", "mmap.mmap 1"])
def test_a_failed_creation_leaks_no_descriptor(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    name, _, at = where.partition(" ")
    module = getattr(stats_page, name.split(".")[0])
    real, calls = getattr(module, name.split(".")[1]), []

    def fails(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == int(at):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*arguments)

    open_before = {*os.listdir("/proc/self/fd")}
    monkeypatch.setattr(module, name.split(".")[1], fails)
    with pytest.raises(OSError, match="Too many"):
        WorkerStatsPage.create()
    assert {*os.listdir("/proc/self/fd")} <= open_before


def test_a_full_disk_leaves_no_page(tmp_path: Path) -> None:
    """A nearly full disk accepts the first bytes."""
    before, limits = {*os.listdir("/proc/self/fd")}, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (mmap.PAGESIZE, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            WorkerStatsPage.create_file(tmp_path / "w1.stats")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert {*os.listdir("/proc/self/fd")} <= before
