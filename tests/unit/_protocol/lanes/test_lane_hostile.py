"""The lane against a hostile peer: every violation raises one kind of error, and leaks no descriptor."""

from __future__ import annotations

import os

import msgspec
import pytest
from fakes.raw_lanes import (
    BATCH,
    BATCH_BYTES,
    RawLane,
    announce_memory,
    announce_raw,
    packet,
    sealed_memory,
    send_raw,
)
from support.models.descriptors import leaves_open

from pytriton._protocol import linux
from pytriton._protocol.lanes.lane import MAX_MEMORIES, LaneError
from pytriton._protocol.lanes.lane_messages import (
    ARENA,
    Announce,
    Spilled,
)

pytestmark = pytest.mark.usefixtures("no_collection")


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
def test_a_malformed_message_is_a_lane_error(
    end_and_socket: RawLane, case: str, with_descriptors: int
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
def test_a_missing_spilled_message(end_and_socket: RawLane, offset: int, nbytes: int) -> None:
    lane, peer = end_and_socket
    announce_memory(peer, ARENA, bytes(4096))
    send_raw(peer, packet("Spilled", offset, nbytes))
    with pytest.raises(LaneError):
        lane.receive()


@pytest.mark.parametrize(
    "inner", [Spilled(0, 4), Announce(3)], ids=lambda inner: type(inner).__name__
)
def test_only_a_message_for_the_callable_may_be_spilled(
    end_and_socket: RawLane, inner: Spilled | Announce
) -> None:
    lane, peer = end_and_socket
    data = msgspec.msgpack.encode(inner)
    announce_memory(peer, ARENA, data)
    send_raw(peer, packet("Spilled", 0, len(data)))
    with pytest.raises(LaneError):
        lane.receive()


def test_memory_must_be_announced_only_once(end_and_socket: RawLane) -> None:
    lane, peer = end_and_socket
    with leaves_open(1):  # the first one stays
        for _ in range(2):
            announce_memory(peer, 1, b"data")
        with pytest.raises(LaneError, match="memory segment 1 was announced twice"):
            lane.receive()


def test_memory_of_an_untrusted_peer_must_be_sealed(end_and_socket: RawLane) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fd = linux.memfd_create("unsealed")
        os.ftruncate(fd, 4096)
        announce_raw(peer, 1, [fd])
        os.close(fd)
        with pytest.raises(LaneError, match="shrink"):
            lane.receive()


def test_a_descriptor_sent_with_a_batch_is_closed(end_and_socket: RawLane) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fd = sealed_memory(b"data")
        send_raw(peer, BATCH_BYTES, [fd])
        os.close(fd)
        assert lane.receive() == BATCH


@pytest.mark.parametrize("packet_behind", [b"\1", BATCH_BYTES])
def test_an_announcement_followed_by_another_message(
    end_and_socket: RawLane, packet_behind: bytes
) -> None:
    lane, peer = end_and_socket
    with leaves_open():
        fd = sealed_memory(b"data")
        send_raw(peer, packet("Announce", 1))
        send_raw(peer, packet_behind, [fd])
        os.close(fd)
        with pytest.raises(LaneError, match="something other than a descriptor"):
            lane.receive()


def test_waiting_after_an_announcement_is_limited(
    end_and_socket: RawLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer believes that it has answered: nobody would ever end the wait."""
    monkeypatch.setattr("pytriton._protocol.lanes.lane._ANNOUNCED_S", 0.05)
    lane, peer = end_and_socket
    send_raw(peer, packet("Announce", 1))
    with pytest.raises(LaneError, match="no descriptor followed an announcement"):
        lane.receive()


def test_the_number_of_memories_is_limited(end_and_socket: RawLane) -> None:
    """Each one takes a descriptor."""
    lane, peer = end_and_socket
    with leaves_open(MAX_MEMORIES):
        for number in range(MAX_MEMORIES + 1):
            announce_memory(peer, number, b"data")
        with pytest.raises(LaneError, match=f"more than {MAX_MEMORIES} memory segments"):
            lane.receive()
