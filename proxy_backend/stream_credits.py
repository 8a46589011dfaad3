"""What a worker of a decoupled model is given back, and when: a message is spared where it does not wait for it."""

from __future__ import annotations

from pytriton.ipc.lanes.lane_messages import ARENA, ResponseRef

#: Parts, and bytes of them, that are given back at once; and how full the worker's arena is where it waits: it sends
#: nothing more, and empties the arena, only when all has been given back.
_PARTS = 8
_BYTES = 1 << 19
_FULL = (8 << 20) - (1 << 16)


class Credits:
    """The parts of one lane that have been passed on, and for which no credit has been sent."""

    def __init__(self) -> None:
        #: How many they are.
        self.parts = 0
        self._bytes = 0
        #: Where the last of them ends in the worker's arena, which is filled in a row.
        self._reached = 0

    def read(self, response: ResponseRef) -> None:
        """Note that a response has been passed on."""
        for output in response.outputs:
            if output.memory == ARENA:
                self._reached = output.offset + output.nbytes
                self._bytes += output.nbytes

    @property
    def due(self) -> bool:
        """Whether to give them back now."""
        return self.parts >= _PARTS or self._bytes >= _BYTES or self._reached >= _FULL

    def given(self) -> None:
        """Note that a credit has been sent for all of them."""
        self.parts = self._bytes = 0
