"""The watch over streams: which clients have gone, and which batches take too long.

A client that has gone shows when its sender is asked, which costs a message to tritonserver. So the watch looks every
`TICK_S`, and only while a batch is under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import Cancel
from pytriton.proxy_backend.attachment import Attachment
from pytriton.proxy_backend.flights import Flight

#: Seconds between two looks.
TICK_S = 0.25


class StreamWatch:
    """Looks after the batches under way of one proxy.

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
        self._looked_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the last look was long enough ago."""
        return time.monotonic() - self._looked_at > TICK_S

    def look(self, lane: Lane, flights: Mapping[int, Flight]) -> None:
        """Tell the worker which clients have gone, and look for batches that have taken too long."""
        self._looked_at = now = time.monotonic()
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
