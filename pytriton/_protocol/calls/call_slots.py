"""Memory for the tensors of calls: one end of a connection writes it, the other reads it."""

from __future__ import annotations

import threading
import time

import msgspec

from pytriton._protocol.calls.call_connection import MAX_MEMORIES, CallConnection
from pytriton._protocol.calls.call_messages import Forget
from pytriton._protocol.lanes.arena import KEPT_S, Arena, ArenaError
from pytriton._protocol.lanes.lane import LaneClosed
from pytriton._protocol.lanes.lane_messages import TensorRef

#: Bytes kept for later calls. A slot that has grown larger is released after its call.
_MAX_KEPT = 64 << 20


class Slot:
    """Memory for the tensors of one call at a time. The peer knows it as `number`."""

    def __init__(self, number: int, arena: Arena) -> None:
        self.number = number
        self.arena = arena
        self.free_since = 0.0

    def placed(self, ref: TensorRef) -> TensorRef:
        """Return a reference to a tensor in the arena in the peer's numbering."""
        return msgspec.structs.replace(ref, memory=self.number)


class Slots:
    """This end's memory on one connection: a slot per call in flight, and a few spare ones."""

    def __init__(self, connection: CallConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._free: list[Slot] = []  #: longest free first
        self._kept = 0  #: bytes in the free slots
        self._made = 0  #: slots created, including those in use
        self._closed = False

    def take(self) -> Slot:
        """Return an empty slot.

        Raises:
            LaneClosed: the peer is gone.
            ArenaError: the maximum number of slots is in use, or no descriptors are left.
        """
        with self._lock:
            if self._free:
                slot = self._free.pop()
                self._kept -= slot.arena.backed
                return slot
            if self._made == MAX_MEMORIES:
                raise ArenaError(
                    f"{MAX_MEMORIES} calls are under way on one connection, which is the maximum"
                )
            self._made += 1
        try:
            return self._new()
        except BaseException:
            with self._lock:
                self._made -= 1
            raise

    def _new(self) -> Slot:
        try:
            arena = Arena("pytriton-call")
        except OSError as error:
            raise ArenaError(f"cannot get shared memory: {error}") from error
        try:
            return Slot(self._connection.announce(arena.open_readonly()), arena)
        except BaseException:
            arena.close()
            raise

    def give_back(self, slot: Slot) -> None:
        """Return a slot whose call is over and whose tensors have been read."""
        slot.arena.reset()
        with self._lock:
            kept = not self._closed and slot.arena.size <= _MAX_KEPT
            if kept:
                slot.free_since = time.monotonic()
                self._free.append(slot)
                self._kept += slot.arena.backed
        if not kept:
            self._forget(slot)
        elif self.large:
            self.give_back_idle()

    @property
    def large(self) -> bool:
        """Return True if more free memory is held than is kept permanently."""
        return self._kept > _MAX_KEPT

    def give_back_idle(self) -> None:
        """Release slots that have been idle for a while, if they hold much memory."""
        idle = []
        with self._lock:
            until = time.monotonic() - KEPT_S
            while self.large and self._free[0].free_since < until:
                idle.append(self._free.pop(0))
                self._kept -= idle[-1].arena.backed
        for slot in idle:
            self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        slot.arena.close()
        try:
            self._connection.send(Forget(slot.number))
        except LaneClosed:
            return  # the peer has released everything already
        with self._lock:  # only now: the peer counts slots, too
            self._made -= 1

    def close(self) -> None:
        """Release all free slots. Slots in use are released when they are returned."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
            self._kept = 0
        for slot in free:
            slot.arena.close()
