"""Whatever bytes and descriptors a peer sends: one kind of error, no crash, no descriptor left.

By default 2,000 cases of a lane, and a quarter of that for each of the rest. More, and others::

    PYTRITON_FUZZ_CASES=200000 PYTRITON_FUZZ_SEED=7 pytest tests/unit/ipc/test_fuzz.py --timeout 0
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from support.examples import examples
from support.models.descriptors import leaves_open

from pytriton.ipc import datatypes, linux, messages
from pytriton.ipc.lanes import tensors
from pytriton.ipc.lanes.arena import ArenaError
from pytriton.ipc.lanes.lane import Lane, LaneClosed, LaneError
from pytriton.ipc.lanes.lane_messages import Batch, BatchDone, RequestRef, ResponseRef, TensorRef

CASES = int(os.environ.get("PYTRITON_FUZZ_CASES", examples(2000)))
SEED = int(os.environ.get("PYTRITON_FUZZ_SEED", "2"))


def fuzzed(cases: int) -> settings:
    return settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _memory(size: int, *, sealed: bool, flags: int = os.O_RDONLY) -> int:
    fd = linux.memfd_create("fuzz")
    os.ftruncate(fd, size)
    if sealed:
        linux.seal_against_shrinking(fd)
    passed = os.open(f"/proc/self/fd/{fd}", flags)
    os.close(fd)
    return passed


def _half_a_pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


DESCRIPTORS: dict[str, Callable[[], int]] = {
    "memory": lambda: _memory(8192, sealed=True),
    "memory, empty": lambda: _memory(0, sealed=True),
    "memory, larger than any machine": lambda: _memory(1 << 62, sealed=True),
    "memory, not to be read": lambda: _memory(8192, sealed=True, flags=os.O_WRONLY),
    "memory, only a path": lambda: _memory(8192, sealed=True, flags=os.O_PATH),
    "memory that can shrink": lambda: _memory(8192, sealed=False),
    "device": lambda: os.open("/dev/zero", os.O_RDONLY),
    "folder": lambda: os.open("/", os.O_RDONLY),
    "pipe": _half_a_pipe,
}

INTEGERS = st.sampled_from([0, 1, 2, 4, 64, 4096, 8192]) | st.integers(-(1 << 63), (1 << 64) - 1)
MEMORIES = st.integers(0, 2)
TEXTS = st.sampled_from(["x", "FP32", "BYTES", "{}", ""]) | st.text(max_size=3)
SHAPES = st.lists(st.integers(0, 3) | INTEGERS, max_size=3) | st.integers(0, 80).map(
    lambda n: [1] * n
)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
TENSORS = st.builds(
    lambda *fields: list(fields),
    TEXTS, st.sampled_from(["FP32", "BYTES", "UINT8"]), SHAPES, MEMORIES, INTEGERS, INTEGERS,
)  # fmt: skip
REQUESTS = st.builds(
    lambda *fields: list(fields), st.lists(TENSORS, max_size=2), TEXTS, st.just([]), TEXTS
)
RESPONSES = st.builds(
    lambda *fields: list(fields), st.lists(TENSORS, max_size=2), st.none() | TEXTS
)
#: Messages of the right form with any numbers in them.
WELL_FORMED = st.one_of(
    st.tuples(st.just("Announce"), MEMORIES),
    st.tuples(st.just("Batch"), INTEGERS, st.lists(REQUESTS, max_size=2)),
    st.tuples(st.just("BatchDone"), INTEGERS, st.lists(RESPONSES, max_size=2)),
    st.tuples(st.just("BatchFailed"), INTEGERS, TEXTS),
    st.tuples(st.just("Spilled"), INTEGERS, INTEGERS),
)
TAGS = st.sampled_from(["Announce", "Batch", "BatchDone", "BatchFailed", "Spilled"])
#: Messages with the right tag and anything behind it.
TAGGED = st.builds(lambda tag, values: (tag, *values), TAGS, st.lists(VALUES, max_size=4))


@st.composite
def damaged(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """Sound bytes with some of them replaced, removed or added."""
    data = bytearray(draw(sound))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 3))
        data[start:end] = draw(st.binary(max_size=3))
    return bytes(data)


ENCODED = (WELL_FORMED | TAGGED).map(msgspec.msgpack.encode)
#: An empty packet is end-of-file by definition.
DATA = (ENCODED | damaged(ENCODED) | st.binary(max_size=40)).filter(len)
FDS = st.lists(st.sampled_from(sorted(DESCRIPTORS)), max_size=2)
#: Mostly one good announcement first, so that what follows gets somewhere.
PACKETS = st.builds(
    lambda announced, rest: [*chain.from_iterable(announced), *rest],
    st.lists(
        st.builds(
            lambda number, kind: [
                (msgspec.msgpack.encode(("Announce", number)), []),
                (b"\0", [kind]),
            ],
            MEMORIES,
            st.sampled_from(sorted(DESCRIPTORS)),
        ),
        max_size=2,
    ),
    st.lists(st.tuples(DATA, FDS | st.just([])), min_size=1, max_size=3),
)


def _send(peer: socket.socket, data: bytes, kinds: Sequence[str]) -> None:
    fds = [DESCRIPTORS[kind]() for kind in kinds]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    peer.sendmsg([data], rights)
    for fd in fds:
        os.close(fd)


def _tensors_of(message: Any) -> list[TensorRef]:
    if isinstance(message, Batch):
        return [ref for request in message.requests for ref in request.inputs]
    if isinstance(message, BatchDone):
        return [ref for response in message.responses for ref in response.outputs]
    return []


def _read_tensor(lane: Lane, ref: TensorRef) -> None:
    """Touch every byte that the descriptor speaks of; wrong descriptors are refused with an error."""
    dtype = datatypes.NUMERIC.get(ref.datatype)
    try:
        if dtype is None:
            tensors.decode_bytes(tensors.read_raw(lane, ref), ref.shape)
        else:
            tensors.read(lane, ref, dtype).tobytes()
    except (LaneError, ArenaError):
        return


def _read_all(lane: Lane) -> None:
    """Receive until the lane ends in the one or the other way."""
    try:
        while True:
            message = lane.receive()
            assert isinstance(getattr(message, "id", 0), int)
            for ref in _tensors_of(message):
                _read_tensor(lane, ref)
    except (LaneClosed, LaneError):
        return


@pytest.mark.parametrize("peer_trusted", [False, True])
@seed(SEED)
@fuzzed(CASES // 2)
@given(packets=PACKETS)
def test_lane(packets: list[tuple[bytes, list[str]]], peer_trusted: bool) -> None:
    with leaves_open():
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lane = Lane(ends[0], peer_trusted=peer_trusted)
        for data, kinds in packets:
            _send(ends[1], data, kinds)
        ends[1].close()
        _read_all(lane)
        lane.close()


@seed(SEED)
@fuzzed(CASES // 4)
@given(st.binary(max_size=60), st.lists(st.integers(0, 5) | INTEGERS, max_size=3))
def test_elements_of_a_bytes_tensor(data: bytes, shape: list[int]) -> None:
    try:
        decoded = tensors.decode_bytes(memoryview(data), shape)
    except ArenaError:
        return
    assert list(decoded.shape) == shape
    assert tensors.encode_bytes(decoded) == data


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
CONTROL_ENCODED = st.sampled_from(CONTROL).map(msgspec.msgpack.encode)


@seed(SEED)
@fuzzed(CASES // 4)
@given(damaged(CONTROL_ENCODED) | st.binary(max_size=40) | VALUES.map(msgspec.msgpack.encode))
def test_control_message(data: bytes) -> None:
    try:
        message = messages.decode(data)
    except messages.MalformedMessage:
        return
    again = messages.decode(messages.encode(message))
    assert messages.encode(again) == messages.encode(message)


def test_the_fuzzed_forms_are_those_of_the_protocol() -> None:
    """Were they not, the fuzzing would stop at the first field."""
    request: RequestRef = msgspec.convert([[["x", "FP32", [1], 0, 0, 4]], "{}", [], ""], RequestRef)
    assert _tensors_of(Batch(1, [request])) == [TensorRef("x", "FP32", [1], 0, 0, 4)]
    assert _tensors_of(BatchDone(1, [ResponseRef(request.inputs)])) == request.inputs
    assert [type(messages.decode(msgspec.msgpack.encode(form))).__name__ for form in CONTROL] == [
        form["type"] for form in CONTROL
    ]
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane = Lane(ends[0], peer_trusted=False)
    with ends[1] as peer:
        _send(peer, msgspec.msgpack.encode(("Announce", 0)), [])
        _send(peer, b"\0", ["memory"])
        _send(
            peer,
            msgspec.msgpack.encode(("Batch", 1, [[[["x", "FP32", [2], 0, 4, 8]], "", [], ""]])),
            [],
        )
        (ref,) = _tensors_of(lane.receive())
        np.testing.assert_array_equal(tensors.read(lane, ref, np.dtype(np.float32)), [0, 0])
    lane.close()
