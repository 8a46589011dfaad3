"""The lane: what one end sends, the other receives; what breaks the protocol ends in one kind of error."""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.descriptors import leaves_open

from pytriton.ipc import linux
from pytriton.ipc.lanes.lane import MOST_MEMORIES, Lane, LaneClosed, LaneError, LaneSilent
from pytriton.ipc.lanes.lane_messages import (
    ARENA,
    Announce,
    Batch,
    BatchDone,
    BatchFailed,
    BatchLent,
    BatchTrace,
    RequestRef,
    ResponseRef,
    Spilled,
    TensorRef,
)

pytestmark = pytest.mark.usefixtures("no_collection")

TENSOR = TensorRef("x", "FP32", [2, 3], 1, 64, 24)
BATCH = Batch(7, [RequestRef([TENSOR], "{}", ["y"], "id")])

#: BATCH as MessagePack, written by hand: the second witness of the format.
BATCH_BYTES = (
    b"\x96\xa5Batch\x07"  # array of 6: the tag, the id 7, the requests, the trace, what the proxy reads, alone
    b"\x91\x95"  # one request, an array of 5: its inputs, parameters, requested outputs, id, details
    b"\x91\x96\xa1x\xa4FP32\x92\x02\x03\x01\x40\x18"  # one input: name, type, shape, memory, offset, size
    b"\xa2{}\x91\xa1y\xa2id\xc0"
    b"\xc0\xc2\xc2"  # not traced; the proxy does not read the worker's own memory; it may be merged
)

MESSAGES: list[Batch | BatchDone | BatchLent | BatchFailed] = [
    BATCH,
    Batch(0, []),
    Batch(3, BATCH.requests, BatchTrace(1 << 60, ['{"traceparent":"00-1-2-01"}'])),
    BatchDone(1, [ResponseRef([TENSOR, TENSOR]), ResponseRef([], "no such row")]),
    BatchLent(1, [ResponseRef([TENSOR])]),
    BatchFailed(2, "ValueError: é\0"),
    BatchFailed(1 << 40, ""),
]


def packet(*fields: object) -> bytes:
    return msgspec.msgpack.encode(list(fields))


def send_raw(peer: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    peer.sendmsg([data], rights)


def announce_raw(peer: socket.socket, memory: int, fds: Sequence[int]) -> None:
    send_raw(peer, packet("Announce", memory))
    send_raw(peer, b"\0", fds)


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


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_arrives_as_it_was_sent(
    lanes: tuple[Lane, Lane], message: Batch | BatchDone | BatchLent | BatchFailed
) -> None:
    for sender, receiver in (lanes, lanes[::-1]):
        sender.send(message)
        assert receiver.receive() == message


def test_messages_arrive_in_order(lanes: tuple[Lane, Lane]) -> None:
    sender, receiver = lanes
    for message in MESSAGES:
        sender.send(message)
    assert [receiver.receive() for _ in MESSAGES] == MESSAGES


def test_bytes_of_a_batch(end_and_socket: tuple[Lane, socket.socket]) -> None:
    lane, peer = end_and_socket
    lane.send(BATCH)
    assert receive_raw(peer) == (BATCH_BYTES, [])
    send_raw(peer, BATCH_BYTES)
    assert lane.receive() == BATCH


@pytest.mark.parametrize("count", [10_000, 20_000])
def test_message_larger_than_a_packet_is_spilled(lanes: tuple[Lane, Lane], count: int) -> None:
    sender, receiver = lanes
    inputs = [TensorRef("input", "INT64", [1, index], 1, index, 8 * index) for index in range(9)]
    for id in (1, 2):
        message = Batch(id, [RequestRef(inputs, "{}", [], str(index)) for index in range(count)])
        sender.send(message)
        assert receiver.receive() == message
        sender.arena.reset()
    failed = BatchFailed(3, "x" * 1_000_000)
    receiver.send(failed)
    assert sender.receive() == failed


@pytest.mark.parametrize("length", range((1 << 16) - 40, (1 << 16) + 40, 8))
def test_message_about_as_large_as_a_packet(lanes: tuple[Lane, Lane], length: int) -> None:
    sender, receiver = lanes
    sender.send(BatchFailed(1, "x" * length))
    assert receiver.receive() == BatchFailed(1, "x" * length)


def test_arena_is_announced_once_with_the_first_message_after_it_is_used(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    lane, peer = end_and_socket
    lane.send(BATCH)
    assert receive_raw(peer) == (BATCH_BYTES, [])
    for used in (100, 1_000_000):  # growth needs no new announcement
        lane.arena.allocate(used)
        lane.send(BATCH)
    assert receive_raw(peer) == (packet("Announce", ARENA), [])
    data, fds = receive_raw(peer)
    assert data == b"\0"
    assert len(fds) == 1
    os.close(fds[0])
    assert [receive_raw(peer) for _ in range(2)] == [(BATCH_BYTES, [])] * 2


def test_announced_memory_is_mapped_under_its_number(lanes: tuple[Lane, Lane]) -> None:
    sender, receiver = lanes
    sender.announce(5, sealed_memory(b"five"))
    sender.announce(6, sealed_memory(b"six"))
    sender.send(BATCH)
    assert receiver.receive() == BATCH
    assert receiver.memory(5, 4)[:] == b"five"
    assert receiver.memory(6, 3)[:] == b"six"
    with pytest.raises(LaneError, match=r"memory 7.*never announced"):
        receiver.memory(7, 1)


def test_received_descriptors_do_not_reach_children(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    lane, peer = end_and_socket
    before = set(os.listdir("/proc/self/fd"))
    lane.announce(3, os.open("/dev/null", os.O_RDONLY))
    fd = sealed_memory(b"data")
    announce_raw(peer, 1, [fd])
    send_raw(peer, BATCH_BYTES)
    lane.receive()
    os.close(fd)
    new = {int(fd) for fd in set(os.listdir("/proc/self/fd")) - before}
    assert not any(os.get_inheritable(fd) for fd in new if os.path.exists(f"/proc/self/fd/{fd}"))


def test_descriptor_to_announce_is_closed_even_if_the_peer_is_gone(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    lane, peer = end_and_socket
    peer.close()
    with leaves_open(), pytest.raises(LaneClosed):
        lane.announce(1, sealed_memory(b"data"))


def test_end_of_the_peer_is_seen_by_both_receive_and_send(lanes: tuple[Lane, Lane]) -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(Lane(ends[0], peer_trusted=True)) as lane:
        Lane(ends[1], peer_trusted=True).close()
        with pytest.raises(LaneClosed, match="end of file"):
            lane.receive()
        with pytest.raises(LaneClosed):
            lane.send(BATCH)


def test_an_end_tells_whether_the_last_message_was_read() -> None:
    """Then something may have been done about it; else nothing has."""
    for read in (False, True):
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(Lane(ends[0], peer_trusted=False)) as lane:
            peer = Lane(ends[1], peer_trusted=True)
            lane.send(BATCH)
            assert not lane.all_read()
            if read:
                peer.receive()
                assert lane.all_read()
            peer.close()
            with pytest.raises(LaneClosed) as end:
                lane.receive()
            assert end.value.unread is not read
            with pytest.raises(LaneClosed) as end:
                lane.send(BATCH)
            assert end.value.unread


def test_patience(lanes: tuple[Lane, Lane]) -> None:
    """Waiting ends when nothing came in time, and only then."""
    lane, peer = lanes
    lane.set_patience(0.05)
    with pytest.raises(LaneSilent):
        lane.receive()
    peer.send(BATCH)
    assert lane.receive() == BATCH
    lane.set_patience(None)
    threading.Timer(0.2, peer.send, [BATCH]).start()
    assert lane.receive() == BATCH


_PEER = """
import socket, sys
from pytriton.ipc.lanes.lane import Lane
from pytriton.ipc.lanes.lane_messages import BatchFailed
lane = Lane(socket.socket(fileno=int(sys.argv[1])), peer_trusted=True)
lane.send(BatchFailed(1, ""))
lane.receive()
"""


def test_killed_peer_is_an_immediate_end_of_file(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    lane, peer = end_and_socket
    process = subprocess.Popen(
        [sys.executable, "-c", _PEER, str(peer.fileno())], pass_fds=[peer.fileno()]
    )
    peer.close()
    try:
        assert lane.receive() == BatchFailed(1, "")
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(LaneClosed):  # blocks, and fails by pytest's time-out, if it is not seen
            lane.receive()
    finally:
        process.kill()
        process.wait()


def test_connect_reaches_the_listener(short_dir: Path) -> None:
    path = str(short_dir / "lane.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        proxy = Lane.connect(path, peer_trusted=False)
        worker = Lane(listener.accept()[0], peer_trusted=True)
        with closing(proxy), closing(worker):
            proxy.send(BATCH)
            assert worker.receive() == BATCH


def test_connecting_where_nobody_listens_names_the_path(short_dir: Path) -> None:
    path = str(short_dir / "none.sock")
    with leaves_open(), pytest.raises(LaneClosed, match=r"nobody listens at .*none\.sock"):
        Lane.connect(path, peer_trusted=False)


MALFORMED = {
    "garbage": b"\xc1\xff\x00garbage",
    "truncated": BATCH_BYTES[:-1],
    "bytes after the end": BATCH_BYTES + b"\xc0",
    "unknown tag": packet("Bath", 1, []),
    "tag is no string": packet(1, 1, []),
    "no fields": packet("Batch"),
    "wrong type": packet("Batch", "1", []),
    "not an array": msgspec.msgpack.encode({"type": "Batch", "id": 1, "requests": []}),
    "invalid UTF-8": b"\x93\xabBatchFailed\x01\xa2\xff\xfe",
    "invalid UTF-8 in the tag": b"\x93\xa2\xff\xfe\x01\xa2\xff\xfe",
    "array of 4 billion": b"\x93\xa5Batch\x01\xdd\xff\xff\xff\xff",
    "string of 4 billion": b"\x93\xabBatchFailed\x01\xdb\xff\xff\xff\xff",
    "nested without end": b"\x91" * 60_000,
    "announced without a descriptor": packet("Announce", 1),
    "spilled into memory never announced": packet("Spilled", 0, 10),
    "longer than the protocol allows": bytes(1 << 17),
}


@pytest.mark.parametrize("with_descriptors", [0, 1, 3])
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_message_is_a_lane_error(
    end_and_socket: tuple[Lane, socket.socket], case: str, with_descriptors: int
) -> None:
    lane, peer = end_and_socket
    announced = case.startswith("announced")
    if announced and with_descriptors:
        with_descriptors += 1
    with leaves_open():
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(with_descriptors)]
        if announced:
            send_raw(peer, MALFORMED[case])
        send_raw(peer, b"\0" if announced else MALFORMED[case], fds)
        for fd in fds:
            os.close(fd)
        with pytest.raises(LaneError):
            lane.receive()


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(-1, 10), (0, -1), (0, 100_000), (1 << 63, 1), (0, 1 << 63), (8, 8), (0, 0)],
)
def test_spilled_message_that_is_not_there(
    end_and_socket: tuple[Lane, socket.socket], offset: int, nbytes: int
) -> None:
    lane, peer = end_and_socket
    fd = sealed_memory(bytes(4096))
    announce_raw(peer, ARENA, [fd])
    os.close(fd)
    send_raw(peer, packet("Spilled", offset, nbytes))
    with pytest.raises(LaneError):
        lane.receive()


@pytest.mark.parametrize(
    "inner", [Spilled(0, 4), Announce(3)], ids=lambda inner: type(inner).__name__
)
def test_only_a_message_for_the_callable_may_be_spilled(
    end_and_socket: tuple[Lane, socket.socket], inner: Spilled | Announce
) -> None:
    lane, peer = end_and_socket
    data = msgspec.msgpack.encode(inner)
    fd = sealed_memory(data)
    announce_raw(peer, ARENA, [fd])
    os.close(fd)
    send_raw(peer, packet("Spilled", 0, len(data)))
    with pytest.raises(LaneError):
        lane.receive()


def test_memory_is_announced_only_once(end_and_socket: tuple[Lane, socket.socket]) -> None:
    lane, peer = end_and_socket
    with leaves_open(1):  # the first one stays
        fd = sealed_memory(b"data")
        for _ in range(2):
            announce_raw(peer, 1, [fd])
        os.close(fd)
        with pytest.raises(LaneError, match="memory 1 was announced twice"):
            lane.receive()


def test_memory_of_an_untrusted_peer_must_be_sealed(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fd = linux.memfd_create("unsealed")
        os.ftruncate(fd, 4096)
        announce_raw(peer, 1, [fd])
        os.close(fd)
        with pytest.raises(LaneError, match="shrink"):
            lane.receive()


def test_descriptor_beside_a_batch_is_closed(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fd = sealed_memory(b"data")
        send_raw(peer, BATCH_BYTES, [fd])
        os.close(fd)
        assert lane.receive() == BATCH


@pytest.mark.parametrize("packet_behind", [b"\1", BATCH_BYTES])
def test_something_else_behind_an_announcement(
    end_and_socket: tuple[Lane, socket.socket], packet_behind: bytes
) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fd = sealed_memory(b"data")
        send_raw(peer, packet("Announce", 1))
        send_raw(peer, packet_behind, [fd])
        os.close(fd)
        with pytest.raises(LaneError, match="something else than a descriptor"):
            lane.receive()


def test_an_announcement_that_nothing_comes_behind_is_waited_for_no_longer_than_that(
    end_and_socket: tuple[Lane, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer believes that it has answered: nobody would ever end it."""
    monkeypatch.setattr("pytriton.ipc.lanes.lane._ANNOUNCED_S", 0.05)
    lane, peer = end_and_socket
    send_raw(peer, packet("Announce", 1))
    with pytest.raises(LaneError, match="nothing came behind an announcement"):
        lane.receive()


def test_close_gives_back_every_descriptor() -> None:
    with leaves_open():
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        proxy, worker = Lane(ends[0], peer_trusted=False), Lane(ends[1], peer_trusted=True)
        for sender, receiver in ((proxy, worker), (worker, proxy)):
            offset = sender.arena.allocate(1000)
            sender.arena.writable()[offset : offset + 4] = b"data"
            sender.announce(1, sealed_memory(b"more"))
            sender.send(BATCH)
            receiver.receive()
            assert np.frombuffer(receiver.memory(ARENA, 1000), "S4", 1, offset) == [b"data"]
            assert receiver.memory(1, 4)[:] == b"more"
        proxy.close()
        worker.close()


def test_no_more_memories_are_taken_than_there_may_be(
    end_and_socket: tuple[Lane, socket.socket],
) -> None:
    """Each would hold a descriptor."""
    lane, peer = end_and_socket
    with leaves_open(MOST_MEMORIES):
        fd = sealed_memory(b"data")
        for number in range(MOST_MEMORIES + 1):
            announce_raw(peer, number, [fd])
        os.close(fd)
        with pytest.raises(LaneError, match=f"more than {MOST_MEMORIES} memories"):
            lane.receive()
