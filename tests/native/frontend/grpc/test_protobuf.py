"""The frontend's Protocol Buffers compared with google.protobuf: equal messages are valid, with equal meanings."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.frontend.c_programs import built
from tritonclient.grpc import model_config_pb2, service_pb2

_MESSAGES: list[type[Message]] = [
    service_pb2.ModelInferRequest,
    service_pb2.ModelInferResponse,
    service_pb2.ModelConfigResponse,
    service_pb2.ModelStatisticsResponse,
    service_pb2.TraceSettingRequest,
]
_INTEGERS = {
    3: (-(2**63), 2**63 - 1),
    4: (0, 2**64 - 1),
    5: (-(2**31), 2**31 - 1),
    13: (0, 2**32 - 1),
}


class _Copier:
    """The C program that copies messages."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def copy(self, kind: type[Message], data: bytes) -> tuple[bool, bytes]:
        """Return whether the message is valid, and the copy or the error."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(struct.pack("=II", _MESSAGES.index(kind), len(data)) + data)
        process.stdin.flush()
        head = process.stdout.read(5)
        assert len(head) == 5, process.stderr.read().decode() if process.stderr else ""
        valid, size = struct.unpack("=BI", head)
        return bool(valid), process.stdout.read(size)

    def close(self) -> None:
        _, said = self._process.communicate()
        assert self._process.returncode == 0, said.decode()


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Copier]:
    sources = ["memory/*.c", "base/*.c", "protobuf/protobuf.c", "protobuf/messages.c"]
    program = built(
        Path(__file__).with_name("protobuf_copy.c"), sources, tmp_path_factory.mktemp("protobuf")
    )
    copier = _Copier(program)
    yield copier
    copier.close()


def _value(draw: st.DrawFn, field: Any, depth: int) -> Any:
    """Return a value for a field that is not a message."""
    if field.type in _INTEGERS:
        return draw(st.integers(*_INTEGERS[field.type]))
    return draw(
        {
            1: st.floats(),
            2: st.floats(width=32),
            8: st.booleans(),
            9: st.text(max_size=200),
            12: st.binary(max_size=200),
            14: st.sampled_from([value.number for value in field.enum_type.values])
            if field.enum_type
            else st.none(),
        }[field.type]
    )


def _is_repeated(field: Any) -> bool:
    """Return whether a field is repeated; `label` is deprecated, but the only way in older versions."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == 3)


def _fill(draw: st.DrawFn, message: Any, depth: int = 0) -> None:
    """Set some of the message's fields."""
    fields = list(message.DESCRIPTOR.fields)
    chosen = draw(st.lists(st.sampled_from(fields), max_size=5, unique=True)) if fields else []
    for field in chosen:
        repeated = _is_repeated(field)
        inner = field.message_type
        if inner is not None and depth > 4:
            continue
        target = getattr(message, field.name)
        if inner is not None and inner.GetOptions().map_entry:
            key = _value(draw, inner.fields_by_name["key"], depth)
            value_field = inner.fields_by_name["value"]
            if value_field.message_type is not None:
                _fill(draw, target[key], depth + 1)
            else:
                target[key] = _value(draw, value_field, depth)
        elif inner is not None and repeated:
            for _ in range(draw(st.integers(0, 3))):
                _fill(draw, target.add(), depth + 1)
        elif inner is not None:
            target.SetInParent()
            _fill(draw, target, depth + 1)
        elif repeated:
            target.extend(_value(draw, field, depth) for _ in range(draw(st.integers(0, 20))))
        else:
            setattr(message, field.name, _value(draw, field, depth))


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    message = draw(st.sampled_from(_MESSAGES))()
    _fill(draw, message)
    return message


def _same(kind: type[Message], one: bytes, other: bytes) -> bool:
    """Return whether both have the same meaning, considering known fields only.

    Implementations differ in what they do with unknown fields of a map's entry.
    """
    first, second = kind(), kind()
    first.ParseFromString(one)
    second.ParseFromString(other)
    known = kind()
    known.CopyFrom(first)
    known.DiscardUnknownFields()
    if known.SerializeToString(deterministic=True) != first.SerializeToString(deterministic=True):
        return True
    written = [message.SerializeToString(deterministic=True) for message in (first, second)]
    return bool(written[0] == written[1])


@settings(max_examples=examples(300), deadline=None)
@given(message=_messages())
def test_messages_round_trip(copier: _Copier, message: Message) -> None:
    data = message.SerializeToString()
    valid, copied = copier.copy(type(message), data)
    assert valid, copied
    assert _same(type(message), data, copied)


@settings(max_examples=examples(500), deadline=None)
@given(message=_messages(), cuts=st.data())
def test_both_agree_on_damaged_messages(
    copier: _Copier, message: Message, cuts: st.DataObject
) -> None:
    data = bytearray(message.SerializeToString())
    for _ in range(cuts.draw(st.integers(1, 4))):
        place = cuts.draw(st.integers(0, len(data)))
        data[place : place + cuts.draw(st.integers(0, 3))] = cuts.draw(st.binary(max_size=3))
    _judged_alike(copier, type(message), bytes(data))


@settings(max_examples=examples(300), deadline=None)
@given(kind=st.sampled_from(_MESSAGES), data=st.binary(max_size=60))
def test_both_agree_on_any_bytes(copier: _Copier, kind: type[Message], data: bytes) -> None:
    _judged_alike(copier, kind, data)


def _judged_alike(copier: _Copier, kind: type[Message], data: bytes) -> None:
    valid, copied = copier.copy(kind, data)
    try:
        kind().ParseFromString(data)
    except DecodeError:
        assert not valid
    else:
        assert valid, copied
        assert _same(kind, data, copied)


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"\x0a\x05abc", "model_name is cut off"),
        (b"\x0a\x02\xc3\x28", "model_name is not valid UTF-8"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "model_name is cut off"),
        (b"\x00\x00", "has no valid number"),
        (b"\xfb\x07", "cannot be skipped"),
    ],
)
def test_malformed_input_is_reported(copier: _Copier, data: bytes, wrong: str) -> None:
    valid, said = copier.copy(service_pb2.ModelInferRequest, data)
    assert not valid
    assert wrong in said.decode()


def test_groups_are_skipped_up_to_a_depth(copier: _Copier) -> None:
    start, end = b"\xfb\x07", b"\xfc\x07"  # of field 127
    name = b"\x0a\x01m"
    assert copier.copy(service_pb2.ModelInferRequest, start * 32 + end * 32 + name) == (True, name)
    assert not copier.copy(service_pb2.ModelInferRequest, start * 33 + end * 33)[0]


def test_the_tables_match_the_descriptors() -> None:
    """Each field that tritonclient knows is in the generated header."""
    header = Path(__file__).parents[4] / "proxy_backend/frontend/protobuf/messages.h"
    text = header.read_text(encoding="utf-8")
    for descriptor in (
        service_pb2.ModelInferRequest.DESCRIPTOR,
        model_config_pb2.ModelConfig.DESCRIPTOR,
    ):
        for field in descriptor.fields:
            assert f"_{field.name} = {field.number}" in text
