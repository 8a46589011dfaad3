"""Measures what the counters on a worker's statistics page cost for each batch, and for each response of a stream.

Other programs may use the machine, so the result is the 5th percentile of many short rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pytriton._protocol.lanes.stats_page import WorkerStatsPage

_ROUNDS, _CALLS = 1000, 500
#: How long a batch has waited for its worker.
_WAITED_NS = 50_000


def lines(rounds: int = _ROUNDS, calls: int = _CALLS) -> list[str]:
    """Return a sentence on the cost for a batch, and one for a response.

    Args:
        rounds: number of measurements
        calls: number of calls in each
    """
    near, descriptor = WorkerStatsPage.create()
    stats = WorkerStatsPage(descriptor)
    try:
        found = []
        for title, work in (("a batch", _batches), ("a response of a stream", _responses)):
            took = sorted(_per_call(work, stats, calls) for _ in range(rounds))
            least = took[len(took) // 20]
            found.append(f"{title}: {least:.0f} ns (median {statistics.median(took):.0f})")
        return found
    finally:
        stats.close()
        near.close()


def _per_call(
    work: Callable[[WorkerStatsPage, int], None], stats: WorkerStatsPage, calls: int
) -> float:
    begun = time.perf_counter_ns()
    work(stats, calls)
    return (time.perf_counter_ns() - begun) / calls


def _batches(stats: WorkerStatsPage, calls: int) -> None:
    begin, end = stats.begin, stats.end
    taken_ns = time.monotonic_ns() - _WAITED_NS
    for _ in range(calls):
        end(begin(1, 1, taken_ns))


def _responses(stats: WorkerStatsPage, calls: int) -> None:
    responded = stats.responded
    since_ns = time.monotonic_ns()
    for _ in range(calls):
        since_ns = responded(since_ns, first=False)
