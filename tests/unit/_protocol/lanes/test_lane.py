"""The lane: one end receives what the other sends; protocol violations raise one kind of error."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fakes.lane_pair import Lanes, lane_pair
from fakes.raw_lanes import (
    BATCH,
    BATCH_BYTES,
    TENSOR,
    RawLane,
    announce_raw,
    packet,
    receive_raw,
    sealed_memory,
    send_raw,
)
from support.models.descriptors import leaves_open

from pytriton._protocol.lanes import lane as lane_module
from pytriton._protocol.lanes.arena import MappedMemory
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    ARENA,
    Batch,
    BatchDone,
    BatchFailed,
    BatchLent,
    BatchTrace,
    RequestRef,
    ResponseRef,
    TensorRef,
)

pytestmark = pytest.mark.usefixtures("no_collection")

MESSAGES: list[Batch | BatchDone | BatchLent | BatchFailed] = [
    BATCH,
    Batch(0, []),
    Batch(3, BATCH.requests, BatchTrace(1 << 60, ['{"traceparent":"00-1-2-01"}'])),
    BatchDone(1, [ResponseRef([TENSOR, TENSOR]), ResponseRef([], "no such row")]),
    BatchLent(1, [ResponseRef([TENSOR])]),
    BatchFailed(2, "ValueError: é\0"),
    BatchFailed(1 << 40, ""),
]


def test_messages_arrive_as_sent_and_in_order(lanes: Lanes) -> None:
    for sender, receiver in (lanes, lanes[::-1]):
        for message in MESSAGES:
            sender.send(message)
        assert [receiver.receive() for _ in MESSAGES] == MESSAGES


def test_the_bytes_of_a_batch(end_and_socket: RawLane) -> None:
    lane, peer = end_and_socket
    lane.send(BATCH)
    assert receive_raw(peer) == (BATCH_BYTES, [])
    send_raw(peer, BATCH_BYTES)
    assert lane.receive() == BATCH


@pytest.mark.parametrize("count", [10_000, 20_000])
def test_a_message_larger_than_a_packet_is_spilled(lanes: Lanes, count: int) -> None:
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
def test_messages_about_as_large_as_a_packet(lanes: Lanes, length: int) -> None:
    sender, receiver = lanes
    sender.send(BatchFailed(1, "x" * length))
    assert receiver.receive() == BatchFailed(1, "x" * length)


def test_an_arena_is_announced_once_with_the_next_message(end_and_socket: RawLane) -> None:
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


def test_announced_memory_is_mapped_under_its_number(lanes: Lanes) -> None:
    sender, receiver = lanes
    sender.announce(5, sealed_memory(b"five"))
    sender.announce(6, sealed_memory(b"six"))
    sender.send(BATCH)
    assert receiver.receive() == BATCH
    assert receiver.memory(5, 4)[:] == b"five"
    assert receiver.memory(6, 3)[:] == b"six"
    with pytest.raises(LaneError, match=r"memory segment 7.*never announced"):
        receiver.memory(7, 1)


def test_a_full_socket_is_an_error_unless_messages_are_queued(lanes: Lanes) -> None:
    sender, receiver = lanes
    sent = 0

    def fill() -> None:
        nonlocal sent
        while True:
            sender.send(BATCH)
            sent += 1

    with pytest.raises(LaneError, match="is not reading"):
        fill()
    full: list[int] = []
    sender.queue_when_full(lambda: full.append(1))
    sender.send(BATCH)
    sender.announce(5, sealed_memory(b"five"))
    sender.send(BATCH)
    assert (full, sender.is_flushed, sender.flush()) == ([1], False, False)
    assert [receiver.receive() for _ in range(sent)] == [BATCH] * sent
    assert (sender.flush(), sender.is_flushed) == (True, True)
    assert [receiver.receive() for _ in range(2)] == [BATCH] * 2
    assert receiver.memory(5, 4)[:] == b"five"


def test_received_descriptors_are_close_on_exec_from_the_start(
    end_and_socket: RawLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the model may start a process immediately after the receive."""
    lane, peer = end_and_socket
    inheritable: list[bool] = []

    def seen(fd: int, *, writer_trusted: bool) -> MappedMemory:
        inheritable.append(os.get_inheritable(fd))
        return MappedMemory(fd, writer_trusted=writer_trusted)

    def fail_late(fd: int, inheritable: bool) -> None:
        pass

    monkeypatch.setattr(lane_module, "MappedMemory", seen)
    monkeypatch.setattr(os, "set_inheritable", fail_late)
    fd = sealed_memory(b"data")
    announce_raw(peer, 1, [fd])
    send_raw(peer, BATCH_BYTES)
    lane.receive()
    os.close(fd)
    assert inheritable == [False]


def test_an_announced_descriptor_is_closed_even_if_the_peer_is_gone(
    end_and_socket: RawLane,
) -> None:
    lane, peer = end_and_socket
    peer.close()
    with leaves_open(), pytest.raises(LaneClosed):
        lane.announce(1, sealed_memory(b"data"))


def test_a_close_reports_whether_the_last_message_was_read() -> None:
    """If it was read, the peer may have acted on it."""
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


def test_receive_timeouts(lanes: Lanes) -> None:
    """Waiting ends only when nothing arrived in time."""
    lane, peer = lanes
    lane.set_receive_timeout(0.05)
    with pytest.raises(LaneSilent):
        lane.receive()
    peer.send(BATCH)
    assert lane.receive() == BATCH
    lane.set_receive_timeout(None)
    threading.Timer(0.2, peer.send, [BATCH]).start()
    assert lane.receive() == BATCH


_PEER = """
import socket, sys
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import BatchFailed
lane = Lane(socket.socket(fileno=int(sys.argv[1])), peer_trusted=True)
lane.send(BatchFailed(1, ""))
lane.receive()
"""


def test_a_killed_peer_is_an_immediate_end_of_file(end_and_socket: RawLane) -> None:
    lane, peer = end_and_socket
    process = subprocess.Popen(
        [sys.executable, "-c", _PEER, str(peer.fileno())], pass_fds=[peer.fileno()]
    )
    peer.close()
    try:
        assert lane.receive() == BatchFailed(1, "")
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(LaneClosed):  # if it is not noticed, this blocks until pytest's timeout
            lane.receive()
    finally:
        process.kill()
        process.wait()


def test_connecting_where_nobody_listens_names_the_path(short_dir: Path) -> None:
    path = str(short_dir / "none.sock")
    with leaves_open(), pytest.raises(LaneClosed, match=r"no process is listening at .*none\.sock"):
        Lane.connect(path, peer_trusted=False)


def test_a_queued_message_that_cannot_be_sent_is_an_error(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a loop would try again forever."""
    sender, _ = lanes
    sender.queue_when_full(lambda: None)
    while sender.is_flushed:
        sender.send(BATCH)

    def refuse(data: bytes, fd: int | None) -> None:
        raise OSError(errno.ETOOMANYREFS, "too many references")

    monkeypatch.setattr(sender, "_send_now", refuse)
    with pytest.raises(LaneError, match=r"queued message could not be sent: .*too many"):
        sender.flush()


def test_close_releases_queued_descriptors() -> None:
    with leaves_open(), lane_pair() as (sender, _):
        sender.queue_when_full(lambda: None)
        while sender.is_flushed:
            sender.send(BATCH)
        sender.announce(5, sealed_memory(b"five"))


def test_close_releases_every_descriptor() -> None:
    with leaves_open(), lane_pair() as lanes:
        for sender, receiver in (lanes, lanes[::-1]):
            offset = sender.arena.allocate(1000)
            sender.arena.writable()[offset : offset + 4] = b"data"
            sender.announce(1, sealed_memory(b"more"))
            sender.send(BATCH)
            receiver.receive()
            assert np.frombuffer(receiver.memory(ARENA, 1000), "S4", 1, offset) == [b"data"]
            assert receiver.memory(1, 4)[:] == b"more"
