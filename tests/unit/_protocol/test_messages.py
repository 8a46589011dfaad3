"""Control messages: every type survives a round trip; anything else is malformed, with the position."""

from __future__ import annotations

import enum
import functools
import re
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from pytriton._protocol import messages
from pytriton._protocol.messages import PROTOCOL, AnyMessage, MalformedMessage

TYPES: tuple[type[Any], ...] = typing.get_args(AnyMessage)
_SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=9),
    type(None): st.none(),
}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@functools.cache  # a strategy costs more than its values
def instances(annotation: Any) -> st.SearchStrategy[Any]:
    """Generate values of a field's type; for messages, with any optional fields left out."""
    if annotation is Any:
        return _JSON
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union:
        return st.one_of(*(instances(argument) for argument in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(instances(arguments[0]), max_size=2)
    if origin is dict:
        keys, values = (instances(argument) for argument in arguments)
        return st.dictionaries(keys, values, max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return st.sampled_from(annotation)
    fields = msgspec.structs.fields(annotation)
    return st.fixed_dictionaries(
        {field.name: instances(field.type) for field in fields if field.required},
        optional={field.name: instances(field.type) for field in fields if not field.required},
    ).map(lambda values: annotation(**values))


def wire(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


def test_every_message_type_can_be_sent() -> None:
    # Other tests of this process may have declared messages of their own.
    kinds = messages.Message.__subclasses__()
    declared = {kind.__name__ for kind in kinds if kind.__module__.startswith(messages.__name__)}
    travel = {kind.__name__ for kind in TYPES}
    assert sorted(declared - travel) == [], "put these into the Union at the end of their module"
    assert travel <= declared


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=examples(15))
def test_messages_survive_a_round_trip(kind: Any, data: st.DataObject) -> None:
    message = data.draw(instances(kind))
    decoded = messages.decode(messages.encode(message))
    assert type(decoded) is kind
    assert decoded == message


def test_the_bytes_of_a_message() -> None:
    """Written by hand: a map, tagged with the type's name."""
    assert messages.encode(messages.Unregister("m")) == b"\x82\xa4type\xaaUnregister\xa4name\xa1m"


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=examples(5))
def test_every_truncation_is_malformed(kind: Any, data: st.DataObject) -> None:
    whole = messages.encode(data.draw(instances(kind)))
    for length in range(0, len(whole), 1 + len(whole) // 50):
        with pytest.raises(MalformedMessage):
            messages.decode(whole[:length])
    with pytest.raises(MalformedMessage):
        messages.decode(whole + b"\0")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed|invalid"),
        (wire(), "missing required field `type`"),
        (wire(type="Nonsense"), "Invalid value 'Nonsense'"),
        (wire(type=5), "Expected `str`"),
        (wire(type="Message"), "Invalid value 'Message'"),
        (wire(type="Unregister"), "missing required field `name`"),
        (wire(type="Unregister", name=5), r"Expected `str`, got `int` - at `\$.name`"),
        (wire(type="Unregister", name="m", force=True), "unknown field `force`"),
        (wire(type="GetLogs", lines="many"), r"at `\$.lines`"),
        (wire(type="Register", spec={"name": "m"}), r"missing required field .* `\$.spec`"),
        (msgspec.msgpack.encode(["Unregister", "m"]), "Expected `object`, got `array`"),
        (b"\x82\xa4type\xaaUnregister\xa4name\xa2\xff\xfe", "(?i)utf-8"),
        (b"\x82\xa4type\xa8LogLines\xa5lines\xdd\xff\xff\xff\xff", "truncated"),
        (
            b"\x82\xa4type\xa8Register\xa4spec\x81\xa6config\x81\xa1a" + b"\x91" * 100_000,
            "recursion|Stack overflow",
        ),
    ],
    ids=lambda value: re.sub(r"\W+", " ", repr(value))[:50],
)
def test_a_malformed_message_is_reported_with_the_position(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        messages.decode(data)


@pytest.mark.parametrize("kind", [messages.Register, messages.WorkerHello, messages.Attach])
def test_another_protocol_number_is_readable(kind: type[Any]) -> None:
    """The first message of a conversation is readable for any number, so that it can be refused."""
    assert "protocol" in {field.name for field in msgspec.structs.fields(kind)}
    forms: dict[str, dict[str, Any]] = {
        "Register": {"spec": {"name": "m", "version": 1, "config": {}, "world": {"python": "/p"}}},
        "WorkerHello": {"worker": "w1", "pid": 5, "python_version": "3.9"},
        "Attach": {"registration": "r", "instance": "i"},
    }
    form = forms[kind.__name__]
    newer = messages.decode(wire(type=kind.__name__, protocol=PROTOCOL + 1, **form))
    assert newer.protocol == PROTOCOL + 1  # type: ignore[union-attr]
    same = messages.decode(wire(type=kind.__name__, **form))
    assert same.protocol == PROTOCOL  # type: ignore[union-attr]


def test_messages_cannot_be_changed() -> None:
    message = messages.Unregister("m")
    with pytest.raises(AttributeError, match="immutable"):
        message.name = "n"  # type: ignore[misc]
