"""Hostile packets for a lane, and the target that reads them with the lane's own code in this process."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.target import Function
from fuzz.values import Maker, packed
from pytriton._protocol import linux, numpy_types
from pytriton._protocol.lanes import lane_messages, tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import TensorRef

#: Bytes of the memory that is passed as if it held tensors.
MEMORY = 8192


def memory(size: int, *, sealed: bool = True, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of new shared memory, opened with `flags`."""
    fd = linux.memfd_create("fuzz")
    try:
        os.ftruncate(fd, size)
        if sealed:
            linux.seal_against_shrinking(fd)
        return os.open(f"/proc/self/fd/{fd}", flags)
    finally:
        os.close(fd)


def _half_a_pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


DESCRIPTORS: tuple[Callable[[], int], ...] = (
    lambda: memory(MEMORY),
    lambda: memory(0),
    lambda: memory(1 << 62),  # more than any machine has
    lambda: memory(MEMORY, flags=os.O_WRONLY),
    lambda: memory(MEMORY, flags=os.O_PATH),
    lambda: memory(MEMORY, sealed=False),
    lambda: os.open("/dev/zero", os.O_RDONLY),
    lambda: os.open("/", os.O_RDONLY),
    _half_a_pipe,
    lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(),
)


def send(peer: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send one packet with descriptors, and close them here."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        peer.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    finally:
        for fd in fds:
            os.close(fd)


def packets(maker: Maker) -> list[tuple[bytes, list[int]]]:
    """Return a conversation: usually a valid announcement first, so that later packets get further."""
    made: list[tuple[bytes, list[int]]] = []
    if not maker.chance(4):
        made.append((packed(("Announce", maker.random.randrange(3))), []))
        made.append((b"\0", [memory(MEMORY)]))
    for _ in range(maker.random.randrange(1, 4)):
        fds = []
        if maker.chance(4):
            fds = [maker.random.choice(DESCRIPTORS)() for _ in range(maker.random.randrange(4))]
        made.append((packet(maker), fds))
    return made


def stream_packets(maker: Maker) -> list[tuple[bytes, list[int]]]:
    """Return a conversation with a decoupled model: batches, often with equal numbers, and messages about them."""
    made: list[tuple[bytes, list[int]]] = [(packed(("Announce", 1)), []), (b"\0", [memory(MEMORY)])]
    for _ in range(maker.random.randrange(1, 8)):
        kind, number = maker.random.randrange(8), maker.random.randrange(3)
        if kind < 3:
            tensor = ["x", "FP32", [1, 4], 1, 0, 16]
            request: list[Any] = [[tensor], "", [], ""]
            made.append((packed(["Batch", number, [request] * maker.random.randrange(4)]), []))
        elif kind == 3:
            word = maker.random.choice(["Cancel", "Hold", "Go"])
            made.append((packed([word, number, maker.random.randrange(-1, 4)]), []))
        elif kind == 4:
            made.append((packed(["Credit", maker.random.randrange(-2, 5)]), []))
        elif kind == 5:
            made.append((packed(plausible_batch(maker)), []))
        else:
            made.append((packet(maker), []))
    return made


def packet(maker: Maker) -> bytes:
    """Return one packet that is not empty: an empty one is end-of-file by definition."""
    kind = maker.random.randrange(9)
    if kind == 0:
        return maker.data() or b"\0"
    if kind == 1:
        return packed(maker.value())
    if kind == 2:
        return packed(maker.slightly_wrong(lane_messages.LaneMessage))
    if kind == 3 and maker.chance(20):
        return bytes(1 << 17)  # longer than the protocol's packets
    sound = packed(plausible_batch(maker) if kind > 5 else maker.of(lane_messages.LaneMessage))
    return (maker.damage(sound) or b"\0") if maker.chance(2) else sound


def plausible_batch(maker: Maker) -> Any:
    """Return a Batch that is valid except for a number or two."""
    count = maker.random.choice((0, 1, 2, 7, 16, MEMORY // 4))
    tensor = ["x", "FP32", [1, count], maker.random.randrange(3), 0, 4 * count]
    if not maker.chance(3):
        place = maker.random.randrange(len(tensor))
        tensor[place] = maker.of(list[int]) if place == 2 else maker.value(1)
    request = [[tensor] * maker.random.randrange(3), "", [], ""]
    if maker.chance(4):
        request[maker.random.randrange(1, 4)] = maker.text()
    return ["Batch", maker.integer(), [request] * maker.random.randrange(4)]


def _tensors_of(message: Any) -> list[TensorRef]:
    parts = getattr(message, "requests", None) or getattr(message, "responses", None) or []
    return [
        ref
        for part in parts
        for ref in getattr(part, "inputs", None) or getattr(part, "outputs", [])
    ]


class LaneEnd(Function):
    """One end of a lane: one kind of error, no crash, no descriptor left behind."""

    name = "lane"
    share = 0.2

    def case(self, maker: Maker) -> bool:
        before = len(os.listdir("/proc/self/fd"))
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = Lane(near, peer_trusted=maker.chance(2))
        try:
            with far:
                far.setblocking(False)
                for data, fds in packets(maker):
                    # Nobody reads yet: what does not fit into the socket's buffer is left out.
                    with contextlib.suppress(BlockingIOError):
                        send(far, data, fds)
            accepted = self._read_all(end)
        finally:
            end.close()
        # Fewer, if a connection of the previous target has ended since.
        assert len(os.listdir("/proc/self/fd")) <= before, "descriptors were left open"
        return accepted

    def _read_all(self, end: Lane) -> bool:
        """Receive until the lane ends; return whether nothing was refused."""
        refused = False
        while True:
            try:
                message = end.receive()
            except LaneClosed:
                return not refused
            except LaneError:
                return False
            for ref in _tensors_of(message):
                refused |= not self._touch(end, ref)

    def _touch(self, end: Lane, ref: TensorRef) -> bool:
        """Read every byte that a descriptor refers to."""
        dtype = numpy_types.NUMERIC.get(ref.datatype)
        try:
            if dtype is None:
                tensors.decode_bytes(tensors.read_raw(end, ref), ref.shape)
            else:
                np.array(tensors.read(end, ref, dtype))
        except (LaneError, ArenaError):
            return False
        return True
