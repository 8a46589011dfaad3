"""Calls to other models: the connection on which a worker asks a proxy to make them, and what travels on it.

Each proxy of a worker has such a connection to it, beside its lane: a call is no part of a batch. Any
thread of a worker may call, many calls may be under way at once, and answers come in any order::

    worker                                                   proxy
      │  Call(id, model, inputs → memory, offset, shape)        │
      │────────────────────────────────────────────────────────▶│ pb_utils.InferenceRequest(…).exec()
      │                Answer(id, outputs → memory, …, final)   │   one; or many, the last one final
      │◀────────────────────────────────────────────────────────│
      │  AnswerRead(id)     its memory may be used again        │
      │────────────────────────────────────────────────────────▶│
      │  CallDropped(id)    nobody waits for it any longer      │
      │────────────────────────────────────────────────────────▶│
      │                Retiring()   make no new calls here      │
      │◀────────────────────────────────────────────────────────│

The worker listens at `socket_path`; the proxy connects there before it sends a batch. The worker takes
connections when it makes a call: one that never does has no thread for it. Inputs lie in memory of the
worker (`Slots`), outputs where Triton put them. Either end's death is the other's end-of-file.

A call carries its chain: which models wait for it, in which workers. It travels on in a parameter of
the request (`CHAIN_PARAMETER`), so that a chain that comes back to where it began is seen.
"""

from __future__ import annotations

import array
import hmac
import mmap
import os
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Optional, Union

import msgspec

from pytriton.ipc.lanes.arena import Arena, ArenaError, MappedMemory
from pytriton.ipc.lanes.lane import LaneClosed, LaneError, LaneSilent
from pytriton.ipc.lanes.lane_messages import TensorRef
from pytriton.ipc.parameters import CHAIN_PARAMETER

#: Longer messages are refused: only thousands of tensors or parameters of this size make one.
_MOST_BYTES = 1 << 16
#: Memories that a worker may have announced and not given back: each holds a descriptor of the proxy's process.
#: So many calls can be under way on one connection, since each has a slot.
MOST_MEMORIES = 1024
#: A slot that has grown larger is given back after its call.
_MOST_KEPT = 64 << 20
MOVED = "MOVED"
#: Of tritonserver's environment: what proxies seal chains with, so that no client makes one up.
KEY_VARIABLE = "PYTRITON_CALLS_KEY"
_SEAL_CHARS = 32
_ANCILLARY = socket.CMSG_SPACE(array.array("i").itemsize)


def socket_path(lane_path: str) -> str:
    """Return where the worker that listens for lanes at `lane_path` listens for these connections."""
    return (
        f"{os.path.splitext(lane_path)[0]}.call"  # no longer than the other: its length is limited
    )


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of the messages of calls."""


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A model that waits for a call, and the worker that can do nothing else meanwhile.

    `worker` is empty where the worker goes on with other batches: nothing can get stuck behind it.
    """

    model: str
    worker: str


class Call(_Message, frozen=True):
    """worker → proxy: call a model.

    `version` -1: the newest. `outputs`: names; none: all. `parameters` is JSON of a flat object.
    `flags` are Triton's request flags (1: a sequence starts, 2: it ends). `timeout_us`: Triton's
    request timeout, 0: none. `stream`: the model may answer any number of times. `chain`: oldest
    first, the caller last.
    """

    id: int
    model: str
    version: int
    inputs: list[TensorRef]
    outputs: list[str]
    parameters: str
    request_id: str
    correlation_id: Union[int, str]
    flags: int
    timeout_us: int
    stream: bool
    chain: list[Link]


class CallDropped(_Message, frozen=True):
    """worker → proxy: nobody waits for this call any longer; it gets no more answers."""

    id: int


class AnswerRead(_Message, frozen=True):
    """worker → proxy: the oldest answer of this call that was not yet read has been read."""

    id: int


class Answer(_Message, frozen=True):
    """proxy → worker: an answer to a call. With an `error`, `code` is the name of Triton's code for it.

    The code `MOVED`: nothing was done about the call, another proxy has to be asked. `parameters` are those of
    the response, JSON of a flat object, or "".
    """

    id: int
    outputs: list[TensorRef]
    final: bool
    error: Optional[str] = None
    code: str = ""
    parameters: str = ""


class Retiring(_Message, frozen=True):
    """proxy → worker: this proxy goes elsewhere; what is under way is still answered."""


class Memory(_Message, frozen=True):
    """The descriptor in this packet is memory `number` of the sender from now on."""

    number: int


class Forget(_Message, frozen=True):
    """The sender has given back its memory `number`."""

    number: int


CallMessage = Union[Call, CallDropped, AnswerRead, Answer, Retiring, Memory, Forget]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CallMessage).decode
_decode_chain = msgspec.json.Decoder(list[Link]).decode


def encode_chain(chain: Sequence[Link], key: bytes) -> str:
    """Return the value of `CHAIN_PARAMETER` for a chain, sealed so that only who has the key can make one."""
    encoded = msgspec.json.encode(chain)
    return _seal(encoded, key) + encoded.decode()


def decode_chain(parameters: str, key: bytes | None = None) -> list[Link]:
    """Return the chain in a request's parameters (JSON); none if it has none, or none that was sealed with `key`."""
    if CHAIN_PARAMETER not in parameters:
        return []
    try:
        value: str = msgspec.json.decode(parameters).get(CHAIN_PARAMETER, "")
        seal, encoded = value[:_SEAL_CHARS], value[_SEAL_CHARS:].encode()
        if key is not None and not hmac.compare_digest(_seal(encoded, key), seal):
            return []
        return _decode_chain(encoded)
    except (msgspec.DecodeError, UnicodeError, AttributeError, TypeError):
        return []


def _seal(encoded: bytes, key: bytes) -> str:
    return hmac.digest(key, encoded, "sha256").hex()[:_SEAL_CHARS]


class CallConnection:
    """One end of a connection for calls. `send` may be used by any thread, `receive` by one.

    `peer_trusted=False` accepts only memory that the peer cannot shrink.
    """

    def __init__(self, connection: socket.socket, *, peer_trusted: bool) -> None:
        self._socket = connection
        self._peer_trusted = peer_trusted
        self._sending = threading.Lock()
        self._mapping = threading.Lock()
        self._memories: dict[int, MappedMemory] = {}
        self._announced = 0
        self._closed = False

    def set_patience(self, seconds: float | None) -> None:
        """Let `receive` wait no longer than this; None: for ever. The kernel keeps the time (SO_RCVTIMEO)."""
        timeval = struct.pack("@ll", *divmod(round((seconds or 0) * 1e6), 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def send(self, message: CallMessage) -> None:
        """Send one message; waits while the peer has much to read.

        Raises:
            LaneClosed: the peer is gone.
            LaneError: the message is too large.
        """
        self._send(_encode(message))

    def announce(self, fd: int) -> int:
        """Pass a read-only descriptor to the peer, close it here, and return the memory's number."""
        try:
            with self._sending:
                self._announced += 1
                number = self._announced
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                self._send_locked(_encode(Memory(number)), rights)
        finally:
            os.close(fd)
        return number

    def receive(self) -> CallMessage:
        """Wait for the next message that is not about memory and return it.

        Raises:
            LaneClosed: the peer is gone.
            LaneSilent: it said nothing for as long as `set_patience` allows.
            LaneError: it sent something else than a message of this protocol.
        """
        while True:
            message, fds = self._packet()
            if isinstance(message, Memory):
                self._map(message.number, fds)
            elif fds:
                _close_all(fds)
                raise LaneError(f"a descriptor came with {type(message).__name__}")
            elif isinstance(message, Forget):
                self._unmap(message.number)
            else:
                return message

    def memory(self, number: int, end: int) -> mmap.mmap:
        """Return the bytes [0, end), or more, of the memory that the peer announced under this number.

        Raises:
            LaneError: it announced none.
            ArenaError: that memory is smaller, or cannot be mapped.
        """
        with self._mapping:
            memory = self._memories.get(number)
            if memory is None:
                raise LaneError(f"the peer refers to memory {number}, which it never announced")
            return memory.covering(end)

    def take_no_more(self) -> None:
        """Let the peer send nothing more; what it has sent can still be received."""
        with self._sending:
            if not self._closed:
                self._socket.shutdown(socket.SHUT_RD)

    def hang_up(self) -> None:
        """End the connection, so that the thread that receives on it, and the peer, see its end."""
        with self._sending:
            if not self._closed:
                self._socket.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """In a forked child: close the descriptor without touching what other threads had in hand."""
        self._socket.close()

    def close(self) -> None:
        """Close it and give back all memory; for the thread that receives."""
        with self._sending:
            self._closed = True
            self._socket.close()
        with self._mapping:
            for memory in self._memories.values():
                memory.close()
            self._memories.clear()

    def _send(self, data: bytes) -> None:
        if len(data) > _MOST_BYTES:
            raise LaneError(
                f"a call of {len(data)} bytes without its tensors is too large: {_MOST_BYTES} is the "
                "most; send large values as tensors, not as parameters"
            )
        with self._sending:
            self._send_locked(data, [])

    def _send_locked(
        self, data: bytes, ancillary: Sequence[tuple[int, int, array.array[int]]]
    ) -> None:
        if self._closed:
            raise LaneClosed("it is closed")
        try:
            self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError) as error:
            raise LaneClosed(str(error)) from error

    def _packet(self) -> tuple[CallMessage, list[int]]:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _MOST_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
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
                raise LaneError("a message about calls was longer than the protocol allows")
            if not data:
                raise LaneClosed("end of file")
            return _decode(data), list(fds)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _close_all(fds)
            raise LaneError(f"malformed message about a call: {error}") from error
        except (LaneError, LaneClosed):
            _close_all(fds)
            raise

    def _map(self, number: int, fds: Sequence[int]) -> None:
        if len(fds) != 1 or number in self._memories:
            _close_all(fds)
            raise LaneError(f"memory {number} was announced twice or with {len(fds)} descriptors")
        if not self._peer_trusted and len(self._memories) >= MOST_MEMORIES:
            _close_all(fds)
            raise LaneError(f"more than {MOST_MEMORIES} memories are announced at once")
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
            raise LaneError(f"memory {number} was given back, but never announced")
        memory.close()


class Slot:
    """Memory for the tensors of one call at a time; its peer knows it as `number`."""

    def __init__(self, number: int, arena: Arena) -> None:
        self.number = number
        self.arena = arena

    def placed(self, ref: TensorRef) -> TensorRef:
        """Return where a tensor lies that was written into the arena, as the peer knows it."""
        return msgspec.structs.replace(ref, memory=self.number)


class Slots:
    """This end's memory on one connection: as many slots as calls were ever under way at once."""

    def __init__(self, connection: CallConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._free: list[Slot] = []
        self._made = 0  #: those in use, too
        self._closed = False

    def take(self) -> Slot:
        """Return an empty slot.

        Raises:
            LaneClosed: the peer is gone.
            ArenaError: as many are in use as there may be.
        """
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made == MOST_MEMORIES:
                raise ArenaError(
                    f"{MOST_MEMORIES} calls are under way on one connection, and no more can be"
                )
            self._made += 1
        arena = Arena("pytriton-call")
        try:
            return Slot(self._connection.announce(arena.open_readonly()), arena)
        except LaneClosed:
            arena.close()
            raise

    def give_back(self, slot: Slot) -> None:
        """The call is over, and its tensors have been read."""
        slot.arena.reset()
        with self._lock:
            if not self._closed and slot.arena.size <= _MOST_KEPT:
                self._free.append(slot)
                return
        slot.arena.close()
        try:
            self._connection.send(Forget(slot.number))
        except LaneClosed:
            return  # then it has forgotten everything
        with self._lock:  # only now: the peer counts, too
            self._made -= 1

    def close(self) -> None:
        """Give all back; what is in use follows when it is given back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for slot in free:
            slot.arena.close()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
