"""The lane: the connection between one proxy instance and one worker, and the descriptors that travel on it.

A lane is an AF_UNIX SOCK_SEQPACKET connection: messages keep their borders, descriptors of memory
travel beside them (SCM_RIGHTS), and the end of either process is an immediate end-of-file at the
other. Tensor bytes lie in shared memory; the lane carries only where they lie::

    proxy                                                    worker
      │  Announce(memory), then a read-only descriptor          │   once per memory
      │────────────────────────────────────────────────────────▶│
      │  Batch(id, requests → tensors → memory, offset, shape)  │
      │────────────────────────────────────────────────────────▶│
      │          Announce(memory), then a read-only descriptor  │   once per memory
      │◀────────────────────────────────────────────────────────│
      │        BatchDone(id, …) | BatchFailed(id, …)
      │◀────────────────────────────────────────────────────────│

A decoupled model answers a batch many times, and its worker may have several under way::

      │        Room(batches)                                    │   how many at once; first of all
      │◀────────────────────────────────────────────────────────│
      │  Batch(id, …)                                           │   the next one after BatchBegun
      │────────────────────────────────────────────────────────▶│
      │        BatchBegun(id)     the inputs have been copied   │
      │◀────────────────────────────────────────────────────────│
      │        BatchPart(id, responses) …, then BatchDone(id)   │
      │        BatchParts(parts)      of several at once        │
      │        Room(0)                it retires: no more here  │
      │◀────────────────────────────────────────────────────────│
      │  Credit(parts)        so many have gone to tritonserver │
      │  Cancel(id, request)  nobody waits for its answers      │
      │  Hold(id, request)    who asked has enough to read      │   then nothing more is made for it
      │  Go(id, request)      who asked has read                │
      │────────────────────────────────────────────────────────▶│

Large outputs are not copied into shared memory where the proxy may read the worker's own
(process_vm_readv(2)): it says so in `Batch.reads`, and the answer names the worker's memory (`OWN`)::

      │  Batch(id, …, reads)                                    │
      │────────────────────────────────────────────────────────▶│
      │        BatchLent(id, responses → OWN, address …)        │
      │◀────────────────────────────────────────────────────────│
      │  Credit(1)                      they have been read     │   until then the worker waits
      │────────────────────────────────────────────────────────▶│

A worker may close a lane at any moment between batches. A batch that it had not read by then was
not begun, which the kernel tells: `LaneClosed.unread`.

One batch is under way at a time. What a worker wrote for batch n stays valid until batch n+1
arrives: the proxy sends it only after Triton has copied the responses of batch n. A message too
large for a packet is put into the sender's arena and announced by `Spilled`. What the messages are
made of is in lane_messages.py. The descriptor of an `Announce` comes in a packet of its own behind it,
so that all others are received by the plainest of system calls.
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
from collections.abc import Sequence

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

#: Longer messages are spilled. Linux's default socket buffer is 208 KiB, of which a packet may use
#: about half.
_INLINE_BYTES = 1 << 16
_FDS_PER_PACKET = 8
#: Memories that a peer may announce on one lane: each holds a descriptor of this process.
MOST_MEMORIES = 16
#: Seconds in which the descriptor comes that was announced: it is sent in the same breath.
_ANNOUNCED_S = 20.0
_ANCILLARY = socket.CMSG_SPACE(_FDS_PER_PACKET * array.array("i").itemsize)
#: What the packet of a descriptor holds besides: an empty one would look like the end.
_DESCRIPTOR = b"\0"
_CREDENTIALS = struct.Struct("iII")
_SEND = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LaneMessage).decode


class LaneClosed(Exception):
    """The process at the other end of the lane is gone, or has closed it.

    `unread`: the last message sent to it was not read, so nothing was done about it. Linux answers
    ECONNRESET instead of end-of-file when a unix socket is closed with unread messages
    (`unix_release_sock`), and EPIPE to who sends afterwards.
    """

    def __init__(self, text: str, *, unread: bool = False) -> None:
        super().__init__(text)
        self.unread = unread


class LaneSilent(Exception):
    """The peer sent nothing within the time that `Lane.set_patience` allows."""


class LaneError(Exception):
    """The other end broke the protocol; the lane cannot be used any longer."""


class Lane:
    """One end of a lane: its socket, the memory it writes (`arena`) and the memory its peer announced.

    `peer_trusted=False` accepts only memory that the peer cannot shrink.
    """

    def __init__(self, connection: socket.socket, *, peer_trusted: bool) -> None:
        self._socket = connection
        self._peer_trusted = peer_trusted
        self._memories: dict[int, MappedMemory] = {}
        #: One more than there may be, so that what was cut off is seen.
        self._received = bytearray(_INLINE_BYTES + 1)
        self._view = memoryview(self._received)
        self._arena_announced = False
        self._announced: int | None = None  #: its descriptor is in the next packet
        #: A worker's end: whether the proxy reads memory of this process, and what the answer at hand lends it.
        self.reads = False
        self.lent: list[object] = []
        self.arena = Arena("pytriton-lane")

    @classmethod
    def connect(cls, path: str, *, peer_trusted: bool) -> Lane:
        """Connect to the worker that listens at `path`.

        Raises:
            LaneClosed: nobody listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise LaneClosed(f"nobody listens at {path}: {error}", unread=True) from error
        return cls(connection, peer_trusted=peer_trusted)

    def fileno(self) -> int:
        """The socket's descriptor, for poll."""
        return self._socket.fileno()

    def peer_pid(self) -> int:
        """The process at the other end (SO_PEERCRED, unix(7)); of a listener, it is the one that listens."""
        pid, _, _ = _CREDENTIALS.unpack(
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return int(pid)

    def set_patience(self, seconds: float | None) -> None:
        """Let `receive` wait no longer than this; None: for ever. The kernel keeps the time (SO_RCVTIMEO)."""
        micros = 0 if seconds is None else max(1, round(seconds * 1e6))
        timeval = struct.pack("@ll", *divmod(micros, 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def all_read(self) -> bool:
        """Return whether the peer has read all that was sent to it (SIOCOUTQ, unix(7))."""
        left = array.array("i", [0])
        fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, left)
        return left[0] == 0

    def send(self, message: LaneMessage) -> None:
        """Send one message; the arena's descriptor goes first if the peer has not got it.

        Raises:
            LaneClosed: the peer is gone.
            LaneError: the peer does not read.
            ArenaError: no memory for a message that has to be spilled, or no descriptor for the arena.
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
        """Pass a read-only descriptor to the peer and close it here."""
        try:
            self._send(_encode(Announce(memory)))
            self._send(
                _DESCRIPTOR, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            )
        finally:
            os.close(fd)

    def receive(self, *, wait: bool = True) -> FromWorker | FromProxy:
        """Return the next message that is not about memory; waits for it.

        Raises:
            LaneClosed: the peer is gone.
            LaneSilent: it said nothing for as long as `set_patience` allows; without `wait`,
                nothing is there (any more).
            LaneError: the peer sent something else than a message of this protocol.
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
        """Return the batch that `receive` would return at once, and leave it there; None if none would be."""
        if self._announced is not None:
            return None
        try:
            how = socket.MSG_PEEK | socket.MSG_DONTWAIT
            message = self._decoded(self._socket.recv_into(self._received, 0, how))
        except (BlockingIOError, ConnectionError, LaneClosed, LaneError):
            return None  # receive tells
        return message if isinstance(message, Batch) else None

    def skip(self) -> None:
        """Take away the message that `peek` returned."""
        self._socket.recv(1)  # the rest of a packet goes with it

    def memory(self, number: int, end: int) -> mmap.mmap:
        """Return the bytes [0, end), or more, of the memory that the peer announced under this number.

        Raises:
            LaneError: it announced none.
            ArenaError: that memory is smaller, or cannot be mapped.
        """
        memory = self._memories.get(number)
        if memory is None:
            raise LaneError(f"the peer refers to memory {number}, which it never announced")
        return memory.covering(end)

    def hang_up(self) -> None:
        """End the connection, so that a thread that receives on it sees its end."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and give back all memory."""
        self._socket.close()
        self.arena.close()
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()

    def _send(
        self, data: bytes, ancillary: Sequence[tuple[int, int, array.array[int]]] = ()
    ) -> None:
        try:
            # One batch is under way at a time, so there is always room, unless the peer has stopped
            # to read: then nobody shall wait for it.
            if ancillary:
                self._socket.sendmsg([data], ancillary, _SEND)
            else:
                self._socket.send(data, _SEND)
        except BlockingIOError as error:
            raise LaneError("the peer does not read what it is sent") from error
        except (BrokenPipeError, ConnectionError) as error:
            raise LaneClosed(str(error), unread=True) from error

    def _decoded(self, count: int) -> LaneMessage:
        if count == 0:
            raise LaneClosed("end of file")
        if count > _INLINE_BYTES:
            raise LaneError("a lane message was longer than the protocol allows")
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
        """Receive the packet behind an Announce."""
        # Not for as long as a batch may take: who believes to have answered would be waited for for ever.
        if not how:
            behind = select.poll()
            behind.register(self._socket, select.POLLIN)
            if not behind.poll(_ANNOUNCED_S * 1000):
                raise LaneError("nothing came behind an announcement")
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
            raise LaneError("something else than a descriptor came behind an announcement")
        return list(fds)

    def _map(self, number: int, fds: Sequence[int]) -> None:
        if len(fds) != 1 or number in self._memories:
            _close_all(fds)
            raise LaneError(f"memory {number} was announced twice or with {len(fds)} descriptors")
        if len(self._memories) == MOST_MEMORIES:
            _close_all(fds)
            raise LaneError(f"more than {MOST_MEMORIES} memories were announced")
        try:
            self._memories[number] = MappedMemory(fds[0], writer_trusted=self._peer_trusted)
        except ArenaError as error:
            raise LaneError(str(error)) from error

    def _spilled(self, where: Spilled) -> memoryview:
        end = where.offset + where.nbytes
        if where.offset < 0 or where.nbytes < 0:
            raise ArenaError("negative position")
        return memoryview(self.memory(ARENA, end))[where.offset : end]


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
