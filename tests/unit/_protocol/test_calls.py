"""The connection for calls: one end receives what the other sends; protocol violations raise one kind of error."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from support.models.descriptors import leaves_open

from pytriton._protocol.calls import call_connection
from pytriton._protocol.calls.call_connection import CallConnection, Slots, socket_path
from pytriton._protocol.calls.call_messages import (
    Answer,
    AnswerRead,
    Call,
    CallDropped,
    CallMessage,
    Link,
    Retiring,
    decode_chain,
    encode_chain,
)
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import Arena, ArenaError
from pytriton._protocol.lanes.lane import LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.parameters import CHAIN_PARAMETER

pytestmark = pytest.mark.usefixtures("no_collection")

Ends = tuple[CallConnection, CallConnection]
REF = TensorRef("x", "FP32", [2], 1, 0, 8)
CHAIN = [Link("a", "w1"), Link("ä/b", "")]
MESSAGES: list[CallMessage] = [
    Call(1, "m", -1, [REF], ["y"], "{}", "id", 7, 3, 1000, True, CHAIN),
    Call(2, "m", 3, [], [], '{"a": 1}', "", "sequence", 0, 0, False, []),
    CallDropped(1),
    AnswerRead(2),
    Answer(1, [REF], False),
    Answer(2, [], True, "Kaputt ✗", "INTERNAL"),
    Retiring(),
]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pair = CallConnection(ours, peer_trusted=False), CallConnection(theirs, peer_trusted=True)
    yield pair
    for end in pair:
        end.close()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_sent(ends: Ends, message: CallMessage) -> None:
    ends[0].send(message)
    assert ends[1].receive() == message


def test_a_slot_stores_a_tensor_and_is_reused(ends: Ends) -> None:
    worker, proxy = ends[1], ends[0]
    slots = Slots(worker)
    for value in range(3):
        slot = slots.take()
        array = np.full(3, value, np.float32)
        ref = slot.reference(tensors.write(slot, "x", "FP32", array, array.dtype))
        worker.send(Answer(1, [ref], False))
        received = proxy.receive()
        assert isinstance(received, Answer)
        (got,) = received.outputs
        assert got.memory == 1
        np.testing.assert_array_equal(tensors.read(proxy, got, array.dtype), array)
        slots.give_back(slot)
    slots.close()


def test_a_slot_that_grew_large_is_freed(ends: Ends) -> None:
    with leaves_open():
        slots = Slots(ends[0])
        slot = slots.take()
        tensors.write_raw(slot, "x", "BYTES", [1], bytes(65 << 20))
        slots.give_back(slot)
        ends[0].send(Retiring())
        assert ends[1].receive() == Retiring()
        with pytest.raises(LaneError, match="never announced"):
            ends[1].memory(slot.number, 1)


def test_memory_of_many_calls_is_released_after_a_delay(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_connection, "_MAX_KEPT", 8 << 20)
    slots = Slots(ends[0])

    def use(count: int) -> None:
        taken = [slots.take() for _ in range(count)]
        for slot in taken:
            slot.arena.allocate(2 << 20)
        for slot in taken:
            slots.give_back(slot)

    use(10)
    slots.release_idle()
    assert slots.large  # more may come at once
    monkeypatch.setattr(call_connection, "KEPT_S", -1.0)
    slots.release_idle()
    assert not slots.large
    use(1)
    ends[0].send(Retiring())
    assert ends[1].receive() == Retiring()
    assert len(ends[1]._memories) == 4
    slots.close()


@pytest.mark.parametrize("missing", ["memfd_create", "open"])
def test_a_slot_that_cannot_be_created_is_not_counted(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Otherwise a worker that ran out of descriptors for a while could make no more calls."""

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    slots = Slots(ends[0])
    monkeypatch.setattr(call_connection, "MAX_MEMORIES", 2)
    with leaves_open(), monkeypatch.context() as patch:
        patch.setattr(os, missing, none_left)
        for _ in range(2):
            with pytest.raises(ArenaError, match="Too many open files"):
                slots.take()
    with leaves_open(2):
        taken = [slots.take() for _ in range(2)]
    with pytest.raises(ArenaError, match="2 calls are in flight"):
        slots.take()
    for slot in taken:
        slots.give_back(slot)
    slots.close()


def test_all_users_notice_the_peers_exit(ends: Ends) -> None:
    ends[1].hang_up()
    with pytest.raises(LaneClosed):
        ends[0].receive()
    with pytest.raises(LaneClosed):
        ends[0].send(Retiring())
    with pytest.raises(LaneClosed):
        Slots(ends[0]).take()


def test_messages_sent_before_a_shutdown_are_received(ends: Ends) -> None:
    ends[0].send(CallDropped(1))
    ends[1].stop_receiving()
    with pytest.raises(LaneClosed):
        ends[0].send(CallDropped(2))
    assert ends[1].receive() == CallDropped(1)
    with pytest.raises(LaneClosed):
        ends[1].receive()
    ends[1].send(Retiring())
    assert ends[0].receive() == Retiring()


def test_an_oversized_message_is_refused_by_the_sender(ends: Ends) -> None:
    call = Call(1, "m", -1, [], [], json.dumps({"a": "x" * 70000}), "", 0, 0, 0, False, [])
    with pytest.raises(LaneError, match="too large"):
        ends[0].send(call)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        msgspec.msgpack.encode(["Answer"]),
        msgspec.msgpack.encode(["Memory", 1]),
        b"x" * 70000,
    ],
    ids=["no-messagepack", "too-short", "memory-without-descriptor", "too-long"],
)
def test_malformed_messages_raise_one_kind_of_error(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        connection = CallConnection(theirs, peer_trusted=False)
        ours.send(data)
        with pytest.raises(LaneError):
            connection.receive()
        connection.close()


def test_memory_that_could_be_shrunk_is_refused(ends: Ends, tmp_path: os.PathLike[str]) -> None:
    ends[1].announce(os.open(os.fspath(tmp_path), os.O_TMPFILE | os.O_RDWR))
    with pytest.raises(LaneError, match="shrink"):
        ends[0].receive()
    arena = Arena("sealed")
    ends[1].announce(arena.open_readonly())
    ends[1].send(Retiring())
    assert ends[0].receive() == Retiring()
    arena.close()


def test_a_chain_travels_in_a_request_parameter() -> None:
    parameters = json.dumps({"mine": 1, CHAIN_PARAMETER: encode_chain(CHAIN, b"key")})
    assert decode_chain(parameters) == CHAIN
    assert decode_chain(parameters, b"key") == CHAIN
    assert decode_chain(parameters, b"another") == []
    assert decode_chain(parameters.replace("w1", "w2"), b"key") == []


@pytest.mark.parametrize("value", [1, "", "[", "[[1,2]]", '{"a":1}', None])
def test_a_forged_chain_is_ignored(value: object) -> None:
    assert decode_chain(json.dumps({CHAIN_PARAMETER: value})) == []
    assert decode_chain("{}") == []


def test_its_socket_path_is_no_longer_than_a_lanes() -> None:
    assert len(socket_path("/run/x/w1.sock")) <= len("/run/x/w1.sock")
    assert socket_path("/run/x/w1.sock") != "/run/x/w1.sock"


def test_both_ends_limit_the_number_of_memories(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker creates no more, and freed ones make room; a proxy accepts no more."""
    proxy, worker = ends
    monkeypatch.setattr(call_connection, "MAX_MEMORIES", 2)
    monkeypatch.setattr(call_connection, "_MAX_KEPT", 0)
    slots = Slots(worker)
    taken = [slots.take(), slots.take()]
    with pytest.raises(ArenaError, match="2 calls are in flight on one connection"):
        slots.take()
    taken[0].arena.allocate(1)
    slots.give_back(taken[0])
    slots.take()
    worker.send(Retiring())
    assert isinstance(proxy.receive(), Retiring)
    arena = Arena("test")
    worker.announce(arena.open_readonly())
    arena.close()
    with pytest.raises(LaneError, match="more than 2 memory segments are announced at once"):
        proxy.receive()
