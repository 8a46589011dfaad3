"""The cost of a worker's counting: what its gauge takes around a batch, and for a response of a stream.

Nothing else runs, so the figure is that of the code alone. The machine may have other work: many short rounds are
measured, and the 5th percentile of them is as good as undisturbed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pytriton._protocol.lanes.stats_page import Gauge

_ROUNDS, _CALLS = 1000, 500
#: So long a batch has waited for its worker.
_WAITED_NS = 50_000


def lines(rounds: int = _ROUNDS, calls: int = _CALLS) -> list[str]:
    """Return what each costs, in words.

    Args:
        rounds: so many are measured
        calls: of a round
    """
    near, descriptor = Gauge.create()
    gauge = Gauge(descriptor)
    try:
        found = []
        for title, work in (("a batch", _batches), ("a response of a stream", _responses)):
            took = sorted(_per_call(work, gauge, calls) for _ in range(rounds))
            least = took[len(took) // 20]
            found.append(f"{title}: {least:.0f} ns (median {statistics.median(took):.0f})")
        return found
    finally:
        gauge.close()
        near.close()


def _per_call(work: Callable[[Gauge, int], None], gauge: Gauge, calls: int) -> float:
    begun = time.perf_counter_ns()
    work(gauge, calls)
    return (time.perf_counter_ns() - begun) / calls


def _batches(gauge: Gauge, calls: int) -> None:
    begin, end = gauge.begin, gauge.end
    taken_ns = time.monotonic_ns() - _WAITED_NS
    for _ in range(calls):
        end(begin(1, 1, taken_ns))


def _responses(gauge: Gauge, calls: int) -> None:
    responded = gauge.responded
    since_ns = time.monotonic_ns()
    for _ in range(calls):
        since_ns = responded(since_ns, first=False)
