"""One end of a lane without the lane's code: raw packets as sent on the wire."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence

import msgspec

from pytriton._protocol import linux
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import Batch, RequestRef, TensorRef

#: One end of a lane, and its peer's socket.
RawLane = tuple[Lane, socket.socket]

TENSOR = TensorRef("x", "FP32", [2, 3], 1, 64, 24)
BATCH = Batch(7, [RequestRef([TENSOR], "{}", ["y"], "id")])


#: BATCH as MessagePack, written by hand: an independent reference for the format.
BATCH_BYTES = (
    b"\x98\xa5Batch\x07"  # array of 8: the tag, the id 7, the requests, the trace, what the proxy reads, alone, …
    b"\x91\x95"  # one request, an array of 5: its inputs, parameters, requested outputs, id, details
    b"\x91\x96\xa1x\xa4FP32\x92\x02\x03\x01\x40\x18"  # one input: name, type, shape, memory, offset, size
    b"\xa2{}\x91\xa1y\xa2id\xc0"
    b"\xc0\xc2\xc2"  # not traced; the proxy does not read the worker's own memory; it may be merged
    b"\x00\x00"  # no arrival time at the proxy, no number of rows
)


def packet(*fields: object) -> bytes:
    return msgspec.msgpack.encode(list(fields))


def send_raw(peer: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    peer.sendmsg([data], rights)


def announce_raw(peer: socket.socket, memory: int, fds: Sequence[int]) -> None:
    send_raw(peer, packet("Announce", memory))
    send_raw(peer, b"\0", fds)


def announce_memory(peer: socket.socket, memory: int, content: bytes) -> None:
    """Announce sealed memory with this content."""
    fd = sealed_memory(content)
    announce_raw(peer, memory, [fd])
    os.close(fd)


def receive_raw(peer: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, _, _ = peer.recvmsg(1 << 17, socket.CMSG_SPACE(32))
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return data, list(fds)


def sealed_memory(content: bytes) -> int:
    fd = linux.memfd_create("test")
    os.write(fd, content)
    linux.seal_against_shrinking(fd)
    return fd
