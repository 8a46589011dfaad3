"""The buckets of the histograms that workers count, and the statistics derived from them.

Durations are counted in buckets whose bounds grow by the fourth root of two, from 7.6 µs to 1,024 s: those of a native
Prometheus histogram with schema 2. So both kinds of histogram use the same counts, and a quantile is off
by at most a tenth. Sizes are counted in powers of two. The last bucket counts values above all bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Bound number i is 2^(i / 4) seconds.
SCHEMA = 2
_PER_DOUBLING = 1 << SCHEMA
FIRST_INDEX = -17 * _PER_DOUBLING
_LAST_INDEX = 10 * _PER_DOUBLING
#: In seconds, inclusive upper bounds.
BOUNDS_S = tuple(2.0 ** (i / _PER_DOUBLING) for i in range(FIRST_INDEX, _LAST_INDEX + 1))
BOUNDS_NS = tuple(int(bound * 1e9) for bound in BOUNDS_S)
DURATION_BUCKETS = len(BOUNDS_S) + 1
#: Bounds for sizes in rows.
SIZE_BOUNDS = tuple(1 << i for i in range(17))
SIZE_BUCKETS = len(SIZE_BOUNDS) + 1


def quantile(q: float, buckets: Sequence[int], bounds: Sequence[float] = BOUNDS_S) -> float | None:
    """Return the value below which the share `q` of the observations lies; None without observations.

    Interpolates linearly within a bucket. Observations above all bounds count as the last bound.
    """
    total = sum(buckets)
    if total <= 0:
        return None
    rank = q * total
    before = 0
    for number, count in enumerate(buckets):
        if count and before + count >= rank:
            if number >= len(bounds):
                break
            low = bounds[number - 1] if number else 0.0
            return low + (bounds[number] - low) * max(0.0, rank - before) / count
        before += count
    return float(bounds[-1])


def coarse(buckets: Sequence[int], bounds: Sequence[float], chosen: Sequence[float]) -> list[int]:
    """Return the number of observations at or below each of the `chosen` bounds, a subset of `bounds`."""
    wanted = set(chosen)
    counts, below = [], 0
    for bound, count in zip(bounds, buckets):
        below += count
        if bound in wanted:
            counts.append(below)
    return counts
