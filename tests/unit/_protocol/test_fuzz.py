"""Whatever bytes and descriptors a peer sends: one kind of error, no crash, no leaked descriptor.

By default, 2,000 cases of a lane and a quarter of that for each of the others, generated as in scripts/tools/fuzz,
because hypothesis takes ten times as long. A failure names its case. To run more and other cases::

    PYTRITON_FUZZ_CASES=200000 PYTRITON_FUZZ_SEED=7 pytest tests/unit/_protocol/test_fuzz.py --timeout 0
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from fuzz import lanes
from fuzz.values import Maker, packed
from support.examples import examples
from support.models.descriptors import leaves_open

from pytriton._protocol import messages, numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    RequestRef,
    ResponseRef,
    TensorRef,
)

CASES = int(os.environ.get("PYTRITON_FUZZ_CASES", examples(2000)))
SEED = int(os.environ.get("PYTRITON_FUZZ_SEED", "2"))
#: Number of cases of a lane between checks of open files.
TOGETHER = 20
#: A packet, and the indices of its descriptors in `lanes.DESCRIPTORS`.
Packet = tuple[bytes, list[int]]
Made = TypeVar("Made")


def each_case(
    target: str, cases: range, make: Callable[[Maker], Made], play: Callable[[Made], None]
) -> None:
    """Generate and run cases; name the one that fails."""
    for case in cases:
        made = make(Maker(SEED, target, case))
        try:
            play(made)
        except Exception as error:
            raise AssertionError(f"case {case} of seed {SEED}: {made!r}") from error


def _packets(maker: Maker) -> list[Packet]:
    """Usually start with a valid announcement, so that later packets get further; then anything."""
    random = maker.random
    kinds = range(len(lanes.DESCRIPTORS))
    made: list[Packet] = []
    for _ in range(random.randrange(3)):
        sound = maker.chance(2)
        made.append((packed(("Announce", random.randrange(3))), []))
        made.append((b"\0", [0 if sound else random.choice(kinds)]))
    for _ in range(random.randrange(1, 4)):
        some = random.randrange(3) if maker.chance(2) else 0
        data = packed(_well_formed(maker)) if maker.chance(3) else lanes.packet(maker)
        made.append((data, random.choices(kinds, k=some)))
    return made


def _well_formed(maker: Maker) -> list[Any]:
    """A well-formed message in which at most the numbers are invalid."""
    random = maker.random
    numbers = [0, 1, 2, 4, 64, 4096, 8192, maker.integer()]
    kind = random.randrange(4)
    if kind == 0:
        return ["Announce", random.randrange(3)]
    if kind == 1:
        return ["Spilled", *random.choices(numbers, k=2)]
    shape = [1] * random.randrange(80) if maker.chance(3) else random.choices(numbers, k=2)
    datatype = random.choice(["FP32", "BYTES", "UINT8"])
    tensor = ["x", datatype, shape, random.randrange(3), *random.choices(numbers, k=2)]
    if kind == 2:
        return ["Batch", maker.integer(), [[[tensor], "", [], ""]]]
    return ["BatchDone", maker.integer(), [[[tensor], None]]]


def _bytes_and_shape(maker: Maker) -> tuple[bytes, list[int]]:
    random = maker.random
    shape = [
        maker.integer() if maker.chance(3) else random.randrange(6)
        for _ in range(random.randrange(4))
    ]
    elements = [maker.data(6) for _ in range(random.randrange(6))]
    sound = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    if maker.chance(2):
        shape = [len(elements)]
    kind = random.randrange(3)
    return (sound if kind == 0 else maker.damage(sound) if kind == 1 else maker.data(60)), shape


def _control(maker: Maker) -> bytes:
    kind = maker.random.randrange(4)
    if kind == 0:
        return maker.data()
    if kind == 1:
        return packed(maker.value())
    return maker.damage(packed(maker.random.choice(CONTROL)))


def _tensors_of(message: Any) -> list[TensorRef]:
    if isinstance(message, Batch):
        return [ref for request in message.requests for ref in request.inputs]
    if isinstance(message, BatchDone):
        return [ref for response in message.responses for ref in response.outputs]
    return []


def _read_tensor(lane: Lane, ref: TensorRef) -> None:
    """Read every byte that the descriptor covers; invalid descriptors raise an error."""
    dtype = numpy_types.NUMERIC.get(ref.datatype)
    try:
        if dtype is None:
            tensors.decode_bytes(tensors.read_raw(lane, ref), ref.shape)
        else:
            tensors.read(lane, ref, dtype).tobytes()
    except (LaneError, ArenaError):
        return


def _read_all(lane: Lane) -> None:
    """Receive until the lane ends, cleanly or with an error."""
    try:
        while True:
            message = lane.receive()
            assert isinstance(getattr(message, "id", 0), int)
            for ref in _tensors_of(message):
                _read_tensor(lane, ref)
    except (LaneClosed, LaneError):
        return


@pytest.mark.parametrize("peer_trusted", [False, True])
def test_lane(peer_trusted: bool) -> None:
    def play(packets: list[Packet]) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lane = Lane(ends[0], peer_trusted=peer_trusted)
        ends[1].setblocking(False)
        for data, kinds in packets:
            with suppress(BlockingIOError):  # nobody reads yet
                lanes.send(ends[1], data, [lanes.DESCRIPTORS[kind]() for kind in kinds])
        ends[1].close()
        _read_all(lane)
        lane.close()

    for first in range(0, CASES // 2, TOGETHER):
        with leaves_open():
            each_case(f"lane {peer_trusted}", range(first, first + TOGETHER), _packets, play)


def test_elements_of_a_bytes_tensor() -> None:
    def play(made: tuple[bytes, list[int]]) -> None:
        data, shape = made
        try:
            decoded = tensors.decode_bytes(memoryview(data), shape)
        except ArenaError:
            return
        assert list(decoded.shape) == shape
        assert tensors.encode_bytes(decoded) == data

    each_case("bytes", range(CASES // 4), _bytes_and_shape, play)


_SPEC: dict[str, object] = {
    "name": "m",
    "version": 1,
    "config": {"a": [1]},
    "world": {"python": "/p", "env": {"a": "b"}},
}
CONTROL: list[dict[str, object]] = [
    {"type": "Register", "spec": _SPEC, "replace": True},
    {"type": "LoadModel", "spec": _SPEC, "instance": 1, "lane_path": "/l"},
    {"type": "Failure", "kind": "internal", "text": "é", "traceback": None},
    {"type": "LogLines", "lines": ["a", "b"]},
    {"type": "Attach", "registration": "r", "instance": "i", "pid": 1},
    {"type": "Progress", "stage": "s", "text": "t", "done": 1, "total": 2},
]


def test_control_message() -> None:
    def play(data: bytes) -> None:
        try:
            message = messages.decode(data)
        except messages.MalformedMessage:
            return
        again = messages.decode(messages.encode(message))
        assert messages.encode(again) == messages.encode(message)

    each_case("control", range(CASES // 4), _control, play)


def test_the_fuzzed_forms_match_the_protocol() -> None:
    """Otherwise the fuzzing would stop at the first field."""
    request: RequestRef = msgspec.convert([[["x", "FP32", [1], 0, 0, 4]], "{}", [], ""], RequestRef)
    assert _tensors_of(Batch(1, [request])) == [TensorRef("x", "FP32", [1], 0, 0, 4)]
    assert _tensors_of(BatchDone(1, [ResponseRef(request.inputs)])) == request.inputs
    assert [type(messages.decode(msgspec.msgpack.encode(form))).__name__ for form in CONTROL] == [
        form["type"] for form in CONTROL
    ]
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane = Lane(ends[0], peer_trusted=False)
    with ends[1] as peer:
        lanes.send(peer, packed(("Announce", 0)), [])
        lanes.send(peer, b"\0", [lanes.DESCRIPTORS[0]()])
        lanes.send(peer, packed(("Batch", 1, [[[["x", "FP32", [2], 0, 4, 8]], "", [], ""]])), [])
        (ref,) = _tensors_of(lane.receive())
        np.testing.assert_array_equal(tensors.read(lane, ref, np.dtype(np.float32)), [0, 0])
    lane.close()
