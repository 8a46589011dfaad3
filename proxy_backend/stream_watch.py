"""Periodic checks of streams: which clients have disconnected, and which batches take too long.

A disconnected client is detected by asking its sender, which costs a message to tritonserver. So the check runs every
`TICK_S`, and only while a batch is in flight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import Cancel
from pytriton.proxy_backend.attachment import Attachment
from pytriton.proxy_backend.flights import Flight

#: Seconds between two checks.
TICK_S = 0.25


class StreamWatch:
    """Checks the batches in flight of one proxy.

    Args:
        attachment: asks the dispatcher about batches that take too long
        lock: guards the attachment, and sending on the lane
        until_returned: a batch is not final before `BatchReturned`
    """

    def __init__(
        self, attachment: Attachment, lock: threading.Condition, *, until_returned: bool
    ) -> None:
        self.attachment = attachment
        self._lock = lock
        self._until_returned = until_returned
        self._checked_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next check is due."""
        return time.monotonic() - self._checked_at > TICK_S

    def look(self, lane: Lane, flights: Mapping[int, Flight]) -> None:
        """Notify the worker of disconnected clients, and check for batches that have taken too long."""
        self._checked_at = now = time.monotonic()
        for number, flight in list(flights.items()):
            for index, sender in enumerate(flight.senders):
                if sender is None or index in flight.cancelled:
                    continue
                if flight.gone(index):
                    flight.cancelled.add(index)
                    with self._lock:
                        lane.send(Cancel(number, index))
            if flight.overdue_at is not None and now > flight.overdue_at:
                self._judge_overdue(flight, now)

    def _judge_overdue(self, flight: Flight, now: float) -> None:
        with self._lock:
            final = flight.is_final(self._until_returned)
            verdict = self.attachment.judge_overdue(
                taken=True, since=flight.overdue_since, final=final, **flight.facts()
            )
        flight.overdue_since = flight.overdue_since or now
        if verdict.action == "wait":
            flight.overdue_at = now + verdict.wait_s
            return
        flight.overdue_at = None  # the worker is about to be ended, and the lane with it
        if verdict.action == "fail" and not final:
            flight.failure, flight.whole = verdict.text, verdict.whole
