"""Credits for a decoupled model's worker: the memory that it may use again. Sent only when the worker may wait for it."""

from __future__ import annotations

import threading

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import ARENA, Credit, ResponseRef

#: How many parts, and bytes of them, are credited at once; and the arena fill level at which the worker waits: it
#: sends nothing more, and empties the arena, only after everything was credited.
_PARTS = 8
_BYTES = 1 << 19
_FULL = (8 << 20) - (1 << 16)


class Credits:
    """The parts of one lane that have been passed on, and for which no credit has been sent.

    `lock` guards sending on the lane.
    """

    def __init__(self, lane: Lane, lock: threading.Condition) -> None:
        #: Whether the worker has left something unread; receiving does not report it again.
        self.was_reset = False
        self._lane = lane
        self._lock = lock
        self._parts = 0
        self._bytes = 0
        self._reached = (
            0  #: end of the last range read from the worker's arena, which is filled sequentially
        )

    def read(self, response: ResponseRef) -> None:
        """Record that a response has been passed on."""
        for output in response.outputs:
            if output.memory == ARENA:
                self._reached = output.offset + output.nbytes
                self._bytes += output.nbytes

    def take(self, parts: int) -> None:
        """Record that this many parts have been passed on; send the credit for several at once.

        Raises:
            LaneError: the worker does not read.
        """
        self._parts += parts
        if self._parts >= _PARTS or self._bytes >= _BYTES or self._reached >= _FULL:
            self.give()

    def give(self) -> None:
        """Send the credit for all parts that have been passed on, if there are any.

        Raises:
            LaneError: the worker does not read.
        """
        if not self._parts:
            return
        try:
            with self._lock:
                self._lane.send(Credit(self._parts))
        except LaneClosed as end:  # it may have answered before it ended: its answers count
            self.was_reset |= isinstance(end.__cause__, ConnectionResetError)
        self._parts = self._bytes = 0
