"""One end of a call connection: sends and receives messages, and passes shared memory with the tensors."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence

import msgspec

from pytriton._protocol.calls.call_messages import CallMessage, Forget, Memory, decode, encode
from pytriton._protocol.lanes.arena import KEPT_S, Arena, ArenaError, MappedMemory
from pytriton._protocol.lanes.lane import LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import TensorRef

#: Maximum message size. Only thousands of tensors or very large parameters exceed it.
_MAX_BYTES = 1 << 16
#: Maximum number of memory segments that a worker may have announced and not released: each takes a descriptor in the
#: proxy's process. Also limits the calls in flight on one connection, since each call has a slot.
MAX_MEMORIES = 1024
_ANCILLARY = socket.CMSG_SPACE(array.array("i").itemsize)


def socket_path(lane_path: str) -> str:
    """Return the path of a worker's call socket, given the path of its lane socket."""
    return f"{os.path.splitext(lane_path)[0]}.call"  # not longer than `lane_path`: socket paths are limited


class CallConnection:
    """One end of a call connection. Any thread may call `send`; only one thread may call `receive`.

    With `peer_trusted=False`, only memory that the peer cannot shrink is accepted.
    """

    def __init__(self, connection: socket.socket, *, peer_trusted: bool) -> None:
        self._socket = connection
        self._peer_trusted = peer_trusted
        self._sending = threading.Lock()
        self._mapping = threading.Lock()
        self._memories: dict[int, MappedMemory] = {}
        self._announced = 0
        self._closed = False

    def set_receive_timeout(self, seconds: float | None) -> None:
        """Set the timeout of `receive`; None waits forever. The kernel enforces it (SO_RCVTIMEO)."""
        timeval = struct.pack("@ll", *divmod(round((seconds or 0) * 1e6), 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def send(self, message: CallMessage) -> None:
        """Send one message. Blocks while the peer's receive buffer is full.

        Raises:
            LaneClosed: the peer has exited or closed the connection.
            LaneError: the message is too large.
        """
        self._send(encode(message))

    def announce(self, fd: int) -> int:
        """Send the peer a read-only descriptor of a memory segment, close it here, and return the segment's number."""
        try:
            with self._sending:
                self._announced += 1
                number = self._announced
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                self._send_locked(encode(Memory(number)), rights)
        finally:
            os.close(fd)
        return number

    def receive(self) -> CallMessage:
        """Wait for the next message and return it. Messages about memory are handled here and not returned.

        Raises:
            LaneClosed: the peer has exited or closed the connection.
            LaneSilent: nothing arrived within the timeout set with `set_receive_timeout`.
            LaneError: the peer violated the protocol.
        """
        while True:
            message, fds = self._packet()
            if isinstance(message, Memory):
                self._map(message.number, fds)
            elif fds:
                _close_all(fds)
                raise LaneError(f"{type(message).__name__} must not be sent with a descriptor")
            elif isinstance(message, Forget):
                self._unmap(message.number)
            else:
                return message

    def memory(self, number: int, end: int) -> mmap.mmap:
        """Return a mapping of the peer's memory segment `number` that covers at least the bytes [0, end).

        Raises:
            LaneError: the peer has announced no segment with this number.
            ArenaError: the segment is smaller than `end`, or cannot be mapped.
        """
        with self._mapping:
            memory = self._memories.get(number)
            if memory is None:
                raise LaneError(
                    f"the peer refers to memory segment {number}, which it never announced"
                )
            return memory.covering(end)

    def stop_receiving(self) -> None:
        """Refuse new messages from the peer. Messages that it has already sent can still be received."""
        with self._sending:
            if not self._closed:
                self._socket.shutdown(socket.SHUT_RD)

    def hang_up(self) -> None:
        """Shut down the connection: the receiving thread and the peer get end-of-file."""
        with self._sending:
            if not self._closed:
                self._socket.shutdown(socket.SHUT_RDWR)

    def close_after_fork(self) -> None:
        """Close the descriptor in a forked child. Acquires no locks, because other threads may have held them at the
        time of the fork.
        """
        self._socket.close()

    def close(self) -> None:
        """Close the connection and release the peer's memory. Must be called by the receiving thread."""
        with self._sending:
            self._closed = True
            self._socket.close()
        with self._mapping:
            for memory in self._memories.values():
                memory.close()
            self._memories.clear()

    def _send(self, data: bytes) -> None:
        if len(data) > _MAX_BYTES:
            raise LaneError(
                f"a call is too large: {len(data)} bytes without its tensors, but the limit is {_MAX_BYTES}; "
                "send large values as tensors, not as parameters"
            )
        with self._sending:
            self._send_locked(data, [])

    def _send_locked(
        self, data: bytes, ancillary: Sequence[tuple[int, int, array.array[int]]]
    ) -> None:
        if self._closed:
            raise LaneClosed("the connection is closed")
        try:
            self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError) as error:
            raise LaneClosed(str(error)) from error

    def _packet(self) -> tuple[CallMessage, list[int]]:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _MAX_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            raise LaneSilent from None
        except OSError as error:
            raise LaneClosed(str(error)) from error
        fds = array.array("i")
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
        try:
            if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
                raise LaneError("a call message is longer than the protocol allows")
            if not data:
                raise LaneClosed("end of file")
            return decode(data), list(fds)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _close_all(fds)
            raise LaneError(f"malformed call message: {error}") from error
        except (LaneError, LaneClosed):
            _close_all(fds)
            raise

    def _map(self, number: int, fds: Sequence[int]) -> None:
        if len(fds) != 1 or number in self._memories:
            _close_all(fds)
            raise LaneError(
                f"memory segment {number} was announced twice, or with the wrong number of descriptors ({len(fds)})"
            )
        if not self._peer_trusted and len(self._memories) >= MAX_MEMORIES:
            _close_all(fds)
            raise LaneError(f"more than {MAX_MEMORIES} memory segments are announced at once")
        try:
            memory = MappedMemory(fds[0], writer_trusted=self._peer_trusted)
        except ArenaError as error:
            raise LaneError(str(error)) from error
        with self._mapping:
            self._memories[number] = memory

    def _unmap(self, number: int) -> None:
        with self._mapping:
            memory = self._memories.pop(number, None)
        if memory is None:
            raise LaneError(f"memory segment {number} was released, but never announced")
        memory.close()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


#: Bytes kept for later calls. A slot that has grown larger is released after its call.
_MAX_KEPT = 64 << 20


class Slot:
    """Memory for the tensors of one call at a time. The peer knows the memory segment by its `number`."""

    def __init__(self, number: int, arena: Arena) -> None:
        self.number = number
        self.arena = arena
        self.free_since = 0.0

    def reference(self, ref: TensorRef) -> TensorRef:
        """Return a reference with which the peer can find a tensor in this slot's arena."""
        return msgspec.structs.replace(ref, memory=self.number)


class Slots:
    """The memory that this end of a connection writes to: a slot for each call in flight, and a few free slots."""

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
            LaneClosed: the peer has exited or closed the connection.
            ArenaError: the maximum number of slots is in use, or this process has no free descriptors.
        """
        with self._lock:
            if self._free:
                slot = self._free.pop()
                self._kept -= slot.arena.backed
                return slot
            if self._made == MAX_MEMORIES:
                raise ArenaError(
                    f"{MAX_MEMORIES} calls are in flight on one connection, which is the maximum"
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
            raise ArenaError(f"cannot allocate shared memory: {error}") from error
        try:
            return Slot(self._connection.announce(arena.open_readonly()), arena)
        except BaseException:
            arena.close()
            raise

    def give_back(self, slot: Slot) -> None:
        """Put back a slot whose call has ended and whose tensors have been read."""
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
            self.release_idle()

    @property
    def large(self) -> bool:
        """Return True if the free slots hold more memory than is kept for later calls."""
        return self._kept > _MAX_KEPT

    def release_idle(self) -> None:
        """Release slots that have been free for `KEPT_S` seconds, as long as too much memory is kept."""
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
