"""Peeking at the next message of a lane: it returns only complete batches, and leaves everything to `receive`."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest
from fakes.lane_pair import Lanes
from fakes.raw_lanes import BATCH, BATCH_BYTES, RawLane, packet, sealed_memory, send_raw
from support.models.descriptors import leaves_open

from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import Batch, BatchFailed, RequestRef

pytestmark = pytest.mark.usefixtures("no_collection")


def test_peek_leaves_the_batch_and_skip_takes_it(lanes: Lanes) -> None:
    sender, receiver = lanes
    other = Batch(8, [])
    sender.send(BATCH)
    sender.send(other)
    assert receiver.peek() == BATCH
    assert receiver.peek() == BATCH
    receiver.skip()
    assert receiver.peek() == other
    assert not sender.all_read()
    assert receiver.receive() == other
    assert sender.all_read()


def test_peek_does_not_wait(lanes: Lanes) -> None:
    sender, receiver = lanes
    assert receiver.peek() is None
    sender.send(BATCH)
    assert receiver.receive() == BATCH
    assert receiver.peek() is None


def test_peek_leaves_announcements_to_receive(end_and_socket: RawLane) -> None:
    lane, peer = end_and_socket
    send_raw(peer, packet("Announce", 1))
    assert lane.peek() is None
    with pytest.raises(LaneSilent):  # it has the announcement, but not its descriptor yet
        lane.receive(wait=False)
    fd = sealed_memory(b"data")
    send_raw(peer, b"\0", [fd])
    os.close(fd)
    send_raw(peer, BATCH_BYTES)
    assert lane.peek() is None
    assert lane.receive(wait=False) == BATCH
    assert lane.memory(1, 4)[:] == b"data"


def test_peek_at_a_spilled_batch(lanes: Lanes) -> None:
    sender, receiver = lanes
    first, second = (
        Batch(id, [RequestRef([], "{}", ["output"], str(index)) for index in range(10_000)])
        for id in (1, 2)
    )
    sender.send(first)
    assert receiver.peek() is None  # the arena has to be announced first
    assert receiver.receive() == first
    sender.arena.reset()
    sender.send(second)
    assert receiver.peek() == second
    receiver.skip()
    with pytest.raises(LaneSilent):
        receiver.receive(wait=False)


def test_peek_returns_only_batches(lanes: Lanes) -> None:
    sender, receiver = lanes
    sender.send(BatchFailed(1, "no batch"))
    assert receiver.peek() is None
    assert receiver.receive() == BatchFailed(1, "no batch")


@pytest.mark.parametrize("unread", [False, True])
def test_receive_reports_a_closed_lane_after_a_peek(unread: bool) -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(Lane(ends[0], peer_trusted=True)) as lane:
        peer = Lane(ends[1], peer_trusted=True)
        if unread:
            lane.send(BATCH)
        peer.close()
        for _ in range(2):
            assert lane.peek() is None
        with pytest.raises(LaneClosed):
            lane.receive(wait=False)


def test_messages_sent_before_the_end_are_seen() -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(Lane(ends[0], peer_trusted=True)) as lane:
        peer = Lane(ends[1], peer_trusted=True)
        peer.send(BATCH)
        peer.close()
        assert lane.peek() == BATCH
        lane.skip()
        with pytest.raises(LaneClosed):
            lane.receive(wait=False)


MALFORMED = {
    "garbage": b"\xc1\xff\x00garbage",
    "spilled into memory never announced": packet("Spilled", 0, 10),
    "spilled to a negative place": packet("Spilled", -1, 10),
    "longer than the protocol allows": bytes(1 << 17),
}


@pytest.mark.parametrize("with_descriptors", [0, 2])
@pytest.mark.parametrize("case", MALFORMED)
def test_receive_reports_a_malformed_message_after_a_peek(
    end_and_socket: RawLane, case: str, with_descriptors: int
) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(with_descriptors)]
        send_raw(peer, MALFORMED[case], fds)
        for fd in fds:
            os.close(fd)
        assert lane.peek() is None
        with pytest.raises(LaneError):
            lane.receive(wait=False)
