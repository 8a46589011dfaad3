"""The histograms that workers record: their buckets, quantiles, and exemplars.

Durations are counted in buckets whose bounds grow by the fourth root of two, from 7.6 µs to 1,024 s: those of a native
Prometheus histogram with schema 2. So classic and native histograms use the same counts, and a quantile is off
by at most a tenth. Sizes are counted in powers of two. The last bucket counts the values above all bounds.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

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
    """Return the `q`-quantile of the observations, with `q` from 0 to 1; None if there are no observations.

    Values are interpolated linearly within a bucket. Observations above all bounds count as the last bound.
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
    """Return the cumulative count of observations for each of the `chosen` bounds, a subset of `bounds`."""
    wanted = set(chosen)
    counts, below = [], 0
    for bound, count in zip(bounds, buckets):
        below += count
        if bound in wanted:
            counts.append(below)
    return counts


# ── exemplars: the last traced call in each bucket of a histogram, written by a worker to its stats page ──

_WORDS = 4
_AT, _TOOK, _HIGH, _LOW = range(_WORDS)
#: Size in bytes.
SIZE = DURATION_BUCKETS * _WORDS * 8
#: Length of a trace id, in hexadecimal digits.
_DIGITS = 32
_HALF = (1 << 64) - 1
#: Later than any valid date.
_MAX_NS = 1 << 62


class Exemplar(NamedTuple):
    """A traced call: its duration, its trace id (32 hexadecimal digits), and when it ended, in seconds since the epoch."""

    seconds: float
    trace: str
    at: float


class Exemplars:
    """The exemplars on a worker's stats page. The worker calls `note`, the dispatcher calls `read`."""

    def __init__(self, memory: memoryview) -> None:
        """Take ownership of a view of `SIZE` bytes."""
        self._memory = memory
        self._words = memory.cast("Q")

    def note(self, trace: str, took_ns: int) -> None:
        """Record the duration of a call with its trace id. Ignore invalid trace ids."""
        try:
            number = int(trace, 16)
        except ValueError:
            return
        if len(trace) != _DIGITS or number <= 0 or took_ns < 0:
            return
        words, at = self._words, _WORDS * bisect_left(BOUNDS_NS, took_ns)
        words[at + _AT] = 0
        words[at + _TOOK] = took_ns
        words[at + _HIGH] = number >> 64
        words[at + _LOW] = number & _HALF
        words[at + _AT] = time.time_ns()

    def read(self) -> list[Exemplar]:
        """Return the recorded exemplars, shortest call first."""
        words = self._words.tolist()
        found = []
        for at in range(0, len(words), _WORDS):
            when_ns, took_ns, high, low = words[at : at + _WORDS]
            # The worker may have overwritten it in the meantime, or written invalid data.
            whole = 0 < when_ns < _MAX_NS and self._words[at + _AT] == when_ns
            if whole and took_ns < _MAX_NS and bisect_left(BOUNDS_NS, took_ns) * _WORDS == at:
                trace = f"{high << 64 | low:032x}"
                found.append(Exemplar(took_ns / 1e9, trace, when_ns / 1e9))
        return found

    def close(self) -> None:
        """Release the memory."""
        self._words.release()
        self._memory.release()
