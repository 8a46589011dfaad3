"""Samples of a model's requests: the slowest of the last hour, and the last failed ones."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from pytriton._protocol.lanes.request_records import NEVER
from pytriton._protocol.messages.requests import RequestEntry

#: Number of samples of each sort.
KEPT = 20
#: Length of "the last hour", and of the pieces whose slowest requests are recorded.
_HOUR_S, _PIECE_S = 3600.0, 600.0


@dataclass
class _SamplePiece:
    begun: float
    #: A heap of the slowest: time, unique number as a tie-breaker, time seen, entry.
    slowest: list[tuple[int, int, float, RequestEntry]] = field(default_factory=list)


class Samples:
    """The samples of one model. `now` is the time of a monotonic clock."""

    def __init__(self) -> None:
        #: Exception type and time (seconds since the epoch) of the last failed request.
        self.last_error = ""
        self.last_failed_at: float | None = None
        self._pieces: deque[_SamplePiece] = deque()
        self._failed: deque[RequestEntry] = deque(maxlen=KEPT)
        self._count = 0

    def see(self, entry: RequestEntry, now: float) -> None:
        """Record a request if it belongs to the samples."""
        if entry.status != "ok":
            self._failed.appendleft(entry)
            self.last_failed_at, self.last_error = entry.time, entry.error
        piece = self._piece(now)
        self._count += 1
        one = (entry.compute_ns, self._count, now, entry)
        if len(piece.slowest) < KEPT:
            heapq.heappush(piece.slowest, one)
        elif one > piece.slowest[0]:
            heapq.heapreplace(piece.slowest, one)

    def threshold_ns(self, now: float) -> int:
        """Return the minimum duration of a request to count among the slowest."""
        piece = self._piece(now)
        if len(piece.slowest) < KEPT:
            return 0
        return min(piece.slowest[0][0] + 1, NEVER - 1)

    def slowest(self, now: float) -> list[RequestEntry]:
        """Return the slowest of the last hour, slowest first."""
        self._piece(now)
        found = [one for piece in self._pieces for one in piece.slowest]
        recent = [one for one in found if one[2] > now - _HOUR_S]
        return [entry for *_, entry in sorted(recent, reverse=True)[:KEPT]]

    def failed(self) -> list[RequestEntry]:
        """Return the last failed requests, newest first."""
        return list(self._failed)

    def _piece(self, now: float) -> _SamplePiece:
        while self._pieces and self._pieces[0].begun <= now - _HOUR_S - _PIECE_S:
            self._pieces.popleft()
        if not self._pieces or self._pieces[-1].begun <= now - _PIECE_S:
            self._pieces.append(_SamplePiece(now))
        return self._pieces[-1]
