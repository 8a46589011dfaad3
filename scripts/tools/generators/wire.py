"""Generate pytriton/_protocol/messages/wire.json, the shape of each message, so that shapes and PROTOCOL change together.

Processes of different versions exchange messages, so a changed shape needs another PROTOCOL:
`scripts/generate --raise-protocol`. If all processes with the current number understand the change, such as a field
with a default in an answer that only new clients request, the file records a note instead:

    scripts/generate --compatible "GetMetrics.since: old daemons of protocol 12 are never asked for it"
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from pytriton._protocol import messages
from pytriton._protocol.calls import call_messages
from pytriton._protocol.lanes import lane_messages
from pytriton._protocol.messages.base import PROTOCOL

PATH = Path("pytriton/_protocol/messages/wire.json")
_Struct = type[msgspec.Struct]
_DIGITS = 12  #: length of a digest


class ChangedWire(Exception):
    """Shapes have changed, but PROTOCOL has not. The text says which, and what to do."""


class Wire(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        protocol: value of PROTOCOL for these shapes
        compatible: for each compatible change since then, why it is compatible
        shapes: digests by module and name of a message, or of a part of a message
    """

    protocol: int
    compatible: list[str]
    shapes: dict[str, str]


def text(committed: str | None, note: str | None = None) -> str:
    """Return the file's text.

    Args:
        committed: the current text
        note: why a change without a new number is compatible

    Raises:
        ChangedWire: the shapes have changed, without a new number or a note
    """
    known = None if committed is None else msgspec.json.decode(committed, type=Wire)
    wire = update(known, PROTOCOL, shapes(), note)
    return json.dumps(msgspec.to_builtins(wire), indent=2) + "\n"


def raise_protocol(root: Path) -> None:
    """Raise PROTOCOL by one in its module's source."""
    path = root / "pytriton/_protocol/messages/base.py"
    raised = re.sub(r"(?m)^PROTOCOL = \d+$", f"PROTOCOL = {PROTOCOL + 1}", path.read_text())
    path.write_text(raised)


def update(
    known: Wire | None, protocol: int, found: Mapping[str, str], note: str | None = None
) -> Wire:
    """Return the new content of the file. Raises the same errors as `text`."""
    ordered = dict(sorted(found.items()))
    if known is None or protocol > known.protocol:
        return Wire(protocol, [], ordered)
    if protocol < known.protocol:
        raise ChangedWire(f"PROTOCOL is {protocol}, but was {known.protocol}: it must not decrease")
    if ordered == known.shapes:
        return known
    if not note:
        names = [
            one for one in {**known.shapes, **ordered} if known.shapes.get(one) != found.get(one)
        ]
        raise ChangedWire(
            f"the shapes of these messages have changed since protocol {protocol}: {', '.join(sorted(names))}. Raise "
            "PROTOCOL (pytriton/_protocol/messages/base.py) with scripts/generate --raise-protocol; or, if every process "
            'with the current number understands them, run scripts/generate --compatible "WHY"'
        )
    return Wire(protocol, [*known.compatible, note], ordered)


def shapes(*unions: Any) -> dict[str, str]:
    """Return the digest of each message, and of each part of a message, by module and name."""
    found: dict[str, str] = {}
    for union in unions or _ALL:
        for struct in union.__args__:
            _add(struct, found)
    return found


_ALL = (messages.AnyMessage, lane_messages.LaneMessage, call_messages.CallMessage)


def _add(struct: _Struct, found: dict[str, str]) -> None:
    name = _name(struct)
    if name in found:
        return
    shape = _shape(struct)
    found[name] = hashlib.sha256(shape.encode()).hexdigest()[:_DIGITS]
    for field in fields_of(struct):
        for part in parts_of(field.type):
            _add(part, found)


def _shape(struct: _Struct) -> str:
    """Return the shape as text: the encoding and the fields. If fields have names on the wire, their order is irrelevant."""
    config = struct.__struct_config__
    fields = [
        f"{field.encode_name}{'' if field.required else '?'}: {_kind(field.type)}"
        for field in fields_of(struct)
    ]
    if not config.array_like:
        fields.sort()
    head = [config.tag_field, config.tag, config.array_like, config.forbid_unknown_fields]
    return "\n".join([*map(str, head), *fields])


def _kind(kind: inspect.Type) -> str:
    """Return the name of a type, independent of the versions of Python and msgspec."""
    if isinstance(kind, inspect.StructType):
        return _name(kind.cls)
    if isinstance(kind, inspect.UnionType):
        return " | ".join(sorted(map(_kind, kind.types)))
    if isinstance(kind, inspect.LiteralType):
        return f"one of {sorted(kind.values, key=str)}"
    if isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        return f"list[{_kind(kind.item_type)}]"
    if isinstance(kind, inspect.TupleType):
        return f"tuple[{', '.join(map(_kind, kind.item_types))}]"
    if isinstance(kind, inspect.DictType):
        return f"dict[{_kind(kind.key_type)}, {_kind(kind.value_type)}]"
    if isinstance(kind, inspect.EnumType):
        return f"one of {sorted(str(one.value) for one in kind.cls)}"
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]
    raise TypeError(f"scripts/tools/generators/wire.py does not support {kind}")


_PLAIN: dict[type[Any], str] = {
    inspect.AnyType: "any",
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "text",
    inspect.BytesType: "bytes",
    inspect.RawType: "any",
}


def parts_of(kind: inspect.Type) -> Iterator[_Struct]:
    """Yield the structs in a type."""
    if isinstance(kind, inspect.StructType):
        yield kind.cls
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from parts_of(one)
    elif isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        yield from parts_of(kind.item_type)
    elif isinstance(kind, inspect.TupleType):
        for one in kind.item_types:
            yield from parts_of(one)
    elif isinstance(kind, inspect.DictType):
        yield from parts_of(kind.value_type)


def fields_of(struct: _Struct) -> tuple[inspect.Field, ...]:
    """Return the fields of a struct, with their types."""
    kind = inspect.type_info(struct)
    assert isinstance(kind, inspect.StructType)
    return kind.fields


def _name(struct: _Struct) -> str:
    return f"{struct.__module__.rpartition('.')[2]}.{struct.__name__}"
