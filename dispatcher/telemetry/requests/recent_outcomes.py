"""The outcomes of a model's requests in the last minutes: differences of counters that only grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pytriton.dispatcher.workers.model_counters import Tally

#: How far back it goes, and how often it looks.
_SPAN_S, _EVERY_S = 300.0, 10.0


class _Point(NamedTuple):
    at: float
    requests: int
    failed: Mapping[str, int]


class RecentOutcomes:
    """Remembers the counters of one model. Times are those of a clock that nobody sets.

    Args:
        tally: the counters
        begun: when they began, if all that they have counted is to be told; None: what comes from now on is
    """

    def __init__(self, tally: Tally, now: float, *, begun: float | None = None) -> None:
        self._tally = tally
        first = _Point(now, *tally.outcomes()) if begun is None else _Point(begun, 0, {})
        self._points = deque([first])

    def look(self, now: float) -> None:
        """Note where the counters are, if it is time for that."""
        if now < self._points[-1].at + _EVERY_S:
            return
        self._points.append(_Point(now, *self._tally.outcomes()))
        while len(self._points) > 1 and self._points[0].at < now - _SPAN_S:
            self._points.popleft()

    def since(self, now: float) -> tuple[float, int, dict[str, int]]:
        """Return how many seconds are remembered, the requests that were begun in them, and those that failed."""
        first = self._points[0]
        requests, failed = self._tally.outcomes()
        lost = {kind: max(0, count - first.failed.get(kind, 0)) for kind, count in failed.items()}
        return now - first.at, max(0, requests - first.requests), lost
