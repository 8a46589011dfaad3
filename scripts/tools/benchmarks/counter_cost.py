"""Measures what the counters on a worker's statistics page cost for each batch, and for each response of a stream.

Other programs may use the machine, so the result is the 5th percentile of many short rounds.
"""

from __future__ import annotations

import statistics
import time
import timeit

from pytriton._protocol.lanes.stats_page import WorkerStatsPage

#: How long a batch has waited for its worker.
_WAITED_NS = 50_000
_STATEMENTS = {
    "a batch": "stats.end(stats.begin(1, 1, taken_ns))",
    "a response of a stream": "stats.responded(taken_ns, first=False)",
}


def lines(rounds: int = 1000, calls: int = 500) -> list[str]:
    """Return a sentence on the cost for a batch, and one for a response.

    Args:
        rounds: number of measurements
        calls: number of calls in each
    """
    near, descriptor = WorkerStatsPage.create()
    stats = WorkerStatsPage(descriptor)
    names = {"stats": stats, "taken_ns": time.monotonic_ns() - _WAITED_NS}
    found = []
    for title, statement in _STATEMENTS.items():
        took_s = sorted(timeit.repeat(statement, globals=names, repeat=rounds, number=calls))
        least, middle = (
            one / calls * 1e9 for one in (took_s[len(took_s) // 20], statistics.median(took_s))
        )
        found.append(f"{title}: {least:.0f} ns (median {middle:.0f})")
    stats.close()
    near.close()
    return found
