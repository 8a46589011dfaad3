"""Lanes: a lane is the connection between one proxy instance and one worker.

A lane is an AF_UNIX SOCK_SEQPACKET connection: it preserves message boundaries, passes memory descriptors
(SCM_RIGHTS), and reports the end of either process to the other at once, as end-of-file.
Tensor data is in shared memory; the lane carries only references to it (except `BatchTexts`)::

    proxy                                                    worker
      │  Announce(memory), then a read-only descriptor          │   once per memory
      │────────────────────────────────────────────────────────▶│
      │  Batch(id, requests → tensors → memory, offset, shape)  │
      │────────────────────────────────────────────────────────▶│
      │          Announce(memory), then a read-only descriptor  │   once per memory
      │◀────────────────────────────────────────────────────────│
      │        BatchDone(id, …) | BatchFailed(id, …)
      │◀────────────────────────────────────────────────────────│

A decoupled model answers a batch many times, and its worker may process several batches at once::

      │        Room(batches)                                    │   maximum in flight; sent first
      │◀────────────────────────────────────────────────────────│
      │  Batch(id, …)                                           │   the next one after BatchBegun
      │────────────────────────────────────────────────────────▶│
      │        BatchBegun(id)     the inputs have been copied   │
      │◀────────────────────────────────────────────────────────│
      │        BatchPart(id, responses) …, then BatchDone(id)   │
      │        BatchParts(parts)      of several at once        │
      │        BatchTexts(output, …)  the same for short texts  │
      │        Room(0)                it retires: no new batches│
      │◀────────────────────────────────────────────────────────│
      │  Credit(parts)        passed to tritonserver            │
      │  Cancel(id, request)  the client no longer waits        │
      │  Hold(id, request)    the client is not reading         │   the worker pauses this stream
      │  Go(id, request)      the client has read               │
      │────────────────────────────────────────────────────────▶│

Large outputs are not copied into shared memory if the proxy may read the worker's own memory
(process_vm_readv(2)): `Batch.reads` says so, and the answer refers to the worker's memory (`OWN`)::

      │  Batch(id, …, reads)                                    │
      │────────────────────────────────────────────────────────▶│
      │        BatchLent(id, responses → OWN, address …)        │
      │◀────────────────────────────────────────────────────────│
      │  Credit(1)                      they have been read     │   until then the worker waits
      │────────────────────────────────────────────────────────▶│

A worker may close a lane at any moment between batches. The kernel reports whether it had read the last
batch by then; if not, the batch was not started (`LaneClosed.unread`).

One batch is in flight at a time. The outputs of batch n stay valid until batch n+1
arrives: the proxy sends it only after Triton has copied the responses of batch n. A message too
large for a packet is put into the sender's arena and announced by `Spilled`. The messages themselves
are defined in lane_messages.py. The descriptor of an `Announce` follows in a packet of its own,
so that all other packets can be received with a plain recv(2).
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from pytriton._protocol.lanes.arena import Arena, ArenaError, MappedMemory
from pytriton._protocol.lanes.lane_messages import (
    ARENA,
    Announce,
    Batch,
    FromProxy,
    FromWorker,
    LaneMessage,
    Spilled,
)

#: Variable in tritonserver's environment: how many proxies may poll their lanes at a time instead of sleeping.
ACTIVE_WAITS_VARIABLE = "PYTRITON_ACTIVE_WAITS"
#: Longer messages are spilled. Linux's default socket buffer is 208 KiB, of which a packet may use about half.
_INLINE_BYTES = 1 << 16
_FDS_PER_PACKET = 8
#: Maximum number of memory segments that a peer may announce on one lane: each takes a descriptor of this process.
MAX_MEMORIES = 16
#: Timeout in seconds for the descriptor that follows an announcement: the peer sends it immediately.
_ANNOUNCED_S = 20.0
_ANCILLARY = socket.CMSG_SPACE(_FDS_PER_PACKET * array.array("i").itemsize)
#: Payload of a descriptor's packet: an empty packet would look like end-of-file.
_DESCRIPTOR = b"\0"
_CREDENTIALS = struct.Struct("iII")
_SEND = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LaneMessage).decode


class LaneClosed(Exception):
    """The process at the other end of the lane has exited or has closed the lane.

    With `unread`, that process had not read the last message, which therefore had no effect. Linux
    returns ECONNRESET instead of end-of-file if a unix socket is closed with unread messages
    (`unix_release_sock`), and EPIPE for later sends.
    """

    def __init__(self, text: str, *, unread: bool = False) -> None:
        super().__init__(text)
        self.unread = unread


class LaneSilent(Exception):
    """The peer sent nothing within the timeout set with `Lane.set_receive_timeout`."""


class LaneError(Exception):
    """The peer violated the protocol; the lane is unusable."""


class Lane:
    """One end of a lane: its socket, the memory that it writes (`arena`), and the memory that its peer announced.

    With `peer_trusted=False`, only memory that the peer cannot shrink is accepted. `on_arena_change` is called when the
    arena has grown or released memory.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        peer_trusted: bool,
        on_arena_change: Callable[[], None] | None = None,
    ) -> None:
        self._socket = connection
        self._peer_trusted = peer_trusted
        self._memories: dict[int, MappedMemory] = {}
        #: One more than allowed, so that truncation is detected.
        self._received = bytearray(_INLINE_BYTES + 1)
        self._view = memoryview(self._received)
        self._arena_announced = False
        self._announced: int | None = None  #: its descriptor is in the next packet
        self._on_full: Callable[[], None] | None = None
        #: Packets for which the socket had no room, each with a descriptor or None.
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        #: On a worker's end: whether the proxy can read this process's memory, and the arrays that it is reading now.
        self.reads = False
        self.lent: list[object] = []
        self.arena = Arena("pytriton-lane", on_arena_change)

    @classmethod
    def connect(cls, path: str, *, peer_trusted: bool) -> Lane:
        """Connect to the worker that listens at `path`.

        Raises:
            LaneClosed: no process listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise LaneClosed(f"no process is listening at {path}: {error}", unread=True) from error
        return cls(connection, peer_trusted=peer_trusted)

    def fileno(self) -> int:
        """Return the socket's descriptor, for polling."""
        return self._socket.fileno()

    def peer_pid(self) -> int:
        """Return the pid of the process that listened or connected at the other end (SO_PEERCRED, unix(7))."""
        pid, _, _ = _CREDENTIALS.unpack(
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return int(pid)

    def set_receive_timeout(self, seconds: float | None) -> None:
        """Set the timeout of `receive`; None waits forever. The kernel enforces it (SO_RCVTIMEO)."""
        micros = 0 if seconds is None else max(1, round(seconds * 1e6))
        timeval = struct.pack("@ll", *divmod(micros, 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def all_read(self) -> bool:
        """Return True if the peer has read everything sent to it (SIOCOUTQ, unix(7))."""
        left = array.array("i", [0])
        fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, left)
        return left[0] == 0

    def queue_when_full(self, on_full: Callable[[], None]) -> None:
        """Queue messages for which the socket has no room, instead of raising LaneError. `flush` sends them.

        `on_full` is called when the queue was empty and is about to get a message.
        """
        self._on_full = on_full

    @property
    def is_flushed(self) -> bool:
        """Return True if no message is queued."""
        return not self._unsent

    def flush(self) -> bool:
        """Send queued messages while the socket has room. Return True if none are left.

        Raises:
            LaneClosed: the peer has exited or closed the connection.
            LaneError: sending failed, for example because too many descriptors are in flight.
        """
        while self._unsent:
            data, fd = self._unsent[0]
            try:
                self._send_now(data, fd)
            except BlockingIOError:
                return False
            except OSError as error:
                raise LaneError(f"a queued message could not be sent: {error}") from error
            self._unsent.popleft()
            if fd is not None:
                os.close(fd)
        return True

    def wait_until_writable(self, *, or_readable: bool = False) -> None:
        """Wait until the socket has room for a message, the peer is gone or, with `or_readable`, a message has arrived."""
        events = select.poll()
        events.register(self._socket, select.POLLOUT | (select.POLLIN if or_readable else 0))
        events.poll()

    def send(self, message: LaneMessage) -> None:
        """Send one message, preceded by the arena's descriptor if the peer does not have it yet.

        Raises:
            LaneClosed: the peer has exited or closed the connection.
            LaneError: the peer does not read its messages, and they are not queued.
            ArenaError: there is no memory for a message that must be spilled, or no descriptor for the arena.
        """
        data = _encode(message)
        if len(data) > _INLINE_BYTES:
            offset = self.arena.allocate(len(data))
            self.arena.writable()[offset : offset + len(data)] = data
            data = _encode(Spilled(offset, len(data)))
        if not self._arena_announced and self.arena.size:
            self.announce(ARENA, self.arena.open_readonly())
            self._arena_announced = True
        self._send(data)

    def announce(self, memory: int, fd: int) -> None:
        """Announce a memory segment to the peer, send its read-only descriptor, and close the descriptor here."""
        try:
            self._send(_encode(Announce(memory)))
            self._send(_DESCRIPTOR, fd)
        finally:
            os.close(fd)

    def receive(self, *, wait: bool = True) -> FromWorker | FromProxy:
        """Return the next message; with `wait`, wait for it. Announce messages are handled here and not returned.

        Raises:
            LaneClosed: the peer has exited or closed the connection.
            LaneSilent: nothing arrived within the timeout set with `set_receive_timeout`, or, without `wait`,
                no message is available.
            LaneError: the peer violated the protocol.
        """
        how = 0 if wait else socket.MSG_DONTWAIT
        while True:
            try:
                if self._announced is not None:
                    self._map(self._announced, self._descriptors(how))
                    self._announced = None
                count = self._socket.recv_into(self._received, 0, how)
            except BlockingIOError:
                raise LaneSilent from None
            except ConnectionError as error:
                raise LaneClosed(str(error), unread=True) from error
            message = self._decoded(count)
            if not isinstance(message, Announce):
                return message  # type: ignore[return-value]
            self._announced = message.memory

    def peek(self) -> Batch | None:
        """If the next message has arrived and is a batch, return it without removing it; otherwise return None."""
        if self._announced is not None:
            return None
        try:
            how = socket.MSG_PEEK | socket.MSG_DONTWAIT
            message = self._decoded(self._socket.recv_into(self._received, 0, how))
        except (BlockingIOError, ConnectionError, LaneClosed, LaneError):
            return None  # receive raises the error
        return message if isinstance(message, Batch) else None

    def skip(self) -> None:
        """Discard the message that `peek` returned."""
        self._socket.recv(1)  # discards the rest of the packet, too

    def memory(self, number: int, end: int) -> mmap.mmap:
        """Return a mapping of the peer's memory segment `number` that covers at least the bytes [0, end).

        Raises:
            LaneError: the peer has announced no segment with this number.
            ArenaError: the segment is smaller than `end`, or cannot be mapped.
        """
        memory = self._memories.get(number)
        if memory is None:
            raise LaneError(f"the peer refers to memory segment {number}, which it never announced")
        return memory.covering(end)

    def hang_up(self) -> None:
        """Shut down the connection; the receiving thread gets end-of-file."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and release all memory."""
        self._socket.close()
        _close_all([fd for _, fd in self._unsent if fd is not None])
        self._unsent.clear()
        self.arena.close()
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()

    def _send(self, data: bytes, fd: int | None = None) -> None:
        if not self._unsent:
            try:
                self._send_now(data, fd)
                return
            except BlockingIOError as error:
                # Fail instead of waiting. With one batch in flight at a time, the peer has stopped reading.
                if self._on_full is None:
                    raise LaneError("the peer is not reading its messages") from error
            self._on_full()
        self._unsent.append((data, None if fd is None else os.dup(fd)))

    def _send_now(self, data: bytes, fd: int | None) -> None:
        try:
            if fd is None:
                self._socket.send(data, _SEND)
            else:
                rights = array.array("i", [fd])
                self._socket.sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _SEND
                )
        except (BrokenPipeError, ConnectionError) as error:
            raise LaneClosed(str(error), unread=True) from error

    def _decoded(self, count: int) -> LaneMessage:
        if count == 0:
            raise LaneClosed("end of file")
        if count > _INLINE_BYTES:
            raise LaneError("a lane message is longer than the protocol allows")
        try:
            message: LaneMessage = _decode(self._view[:count])
            if isinstance(message, Spilled):
                message = _decode(self._spilled(message))
                if isinstance(message, (Spilled, Announce)):
                    raise ArenaError(f"{type(message).__name__} must not be spilled")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArenaError) as error:
            raise LaneError(f"malformed lane message: {error}") from error
        return message

    def _descriptors(self, how: int) -> list[int]:
        """Receive the packet that follows an Announce, and return its descriptors."""
        # Use a short timeout, not the batch's: a peer that thinks it has answered would never send the rest.
        if not how:
            behind = select.poll()
            behind.register(self._socket, select.POLLIN)
            if not behind.poll(_ANNOUNCED_S * 1000):
                raise LaneError("no descriptor followed an announcement")
        data, ancillary, flags, _ = self._socket.recvmsg(
            1, _ANCILLARY, how | socket.MSG_CMSG_CLOEXEC
        )
        fds = array.array("i")
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
        if not data:
            _close_all(fds)
            raise LaneClosed("end of file")
        if flags & socket.MSG_CTRUNC or data != _DESCRIPTOR:
            _close_all(fds)
            raise LaneError("an announcement was followed by something other than a descriptor")
        return list(fds)

    def _map(self, number: int, fds: Sequence[int]) -> None:
        if len(fds) != 1 or number in self._memories:
            _close_all(fds)
            raise LaneError(
                f"memory segment {number} was announced twice or with {len(fds)} descriptors"
            )
        if len(self._memories) == MAX_MEMORIES:
            _close_all(fds)
            raise LaneError(f"more than {MAX_MEMORIES} memory segments were announced")
        try:
            self._memories[number] = MappedMemory(fds[0], writer_trusted=self._peer_trusted)
        except ArenaError as error:
            raise LaneError(str(error)) from error

    def _spilled(self, where: Spilled) -> memoryview:
        end = where.offset + where.nbytes
        if where.offset < 0 or where.nbytes < 0:
            raise ArenaError("negative offset or size")
        return memoryview(self.memory(ARENA, end))[where.offset : end]


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
