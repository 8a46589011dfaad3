"""The outcomes of a model's requests in the last minutes, as differences of cumulative counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pytriton.dispatcher.workers.model_counters import ModelCounters

#: Length of the period, and interval between points.
_SPAN_S, _EVERY_S = 300.0, 10.0


class _Point(NamedTuple):
    at: float
    requests: int
    failed: Mapping[str, int]


class RecentOutcomes:
    """Records the counters of one model. Times are those of a monotonic clock.

    Args:
        counters: the counters
        begun: start of the counters, to include everything counted so far; None to include only what follows
    """

    def __init__(self, counters: ModelCounters, now: float, *, begun: float | None = None) -> None:
        self._counters = counters
        first = _Point(now, *counters.outcomes()) if begun is None else _Point(begun, 0, {})
        self._points = deque([first])

    def look(self, now: float) -> None:
        """Record a point if the interval has passed."""
        if now < self._points[-1].at + _EVERY_S:
            return
        self._points.append(_Point(now, *self._counters.outcomes()))
        while len(self._points) > 1 and self._points[0].at < now - _SPAN_S:
            self._points.popleft()

    def since(self, now: float) -> tuple[float, int, dict[str, int]]:
        """Return the length of the recorded period in seconds, and the requests started and failed in it."""
        first = self._points[0]
        requests, failed = self._counters.outcomes()
        lost = {kind: max(0, count - first.failed.get(kind, 0)) for kind, count in failed.items()}
        return now - first.at, max(0, requests - first.requests), lost
