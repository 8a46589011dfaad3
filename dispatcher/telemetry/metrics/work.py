"""Converts raw counters of workers' stats pages to the values that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytriton._protocol.lanes.stats_page import FAILURES, Counts
from pytriton._protocol.messages.metrics import Histogram, Work

#: Upper limit of counters: a page may contain anything, and messages have no larger integers.
_MAX_INT64 = (1 << 63) - 1
#: Upper limit of a bucket, so that the total of a histogram stays within the limit, too.
_MAX_IN_BUCKET = _MAX_INT64 >> 7


def work_of(counts: Counts, failed: Mapping[str, int] | None = None) -> Work:
    """Return the reported counters; `failed` has the failures that only the daemon sees."""
    failures = dict(zip(FAILURES, counts.failed))
    failures.update(failed or {})
    return Work(
        calls=_bounded(counts.calls),
        requests=_bounded(counts.requests),
        rows=_bounded(counts.rows),
        merged=_bounded(counts.merged),
        responses=_bounded(counts.parts),
        busy_s=counts.busy_ns / 1e9,
        failed={kind: _bounded(count) for kind, count in failures.items() if count},
        call_s=histogram(counts.call_ns / 1e9, counts.call_buckets),
        wait_s=histogram(counts.wait_ns / 1e9, counts.wait_buckets),
        rows_per_call=histogram(counts.rows, counts.size_buckets),
        first_s=histogram(counts.first_ns / 1e9, counts.first_buckets),
        between_s=histogram(counts.between_ns / 1e9, counts.between_buckets),
    )


def histogram(total: float, buckets: Sequence[int]) -> Histogram:
    """Return a histogram without trailing empty buckets."""
    size = len(buckets)
    while size and not buckets[size - 1]:
        size -= 1
    filled = list(buckets[:size])
    if filled and max(filled) > _MAX_IN_BUCKET:
        filled = [min(count, _MAX_IN_BUCKET) for count in filled]
    return Histogram(float(total), filled)


def _bounded(count: int) -> int:
    return min(count, _MAX_INT64)
