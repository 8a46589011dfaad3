"""Generate proxy_backend/backend/wire/declarations.c, the shapes of the messages that pytriton/_protocol declares.

The compiled proxy validates each whole message with them before it reads it (wire/shapes.c), as msgspec does in Python.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from generators.wire import fields_of, parts_of
from pytriton._protocol import messages
from pytriton._protocol.calls import call_messages
from pytriton._protocol.lanes import lane_messages
from pytriton._protocol.messages import proxy

PATH = Path("proxy_backend/backend/wire/declarations.c")
_Struct = type[msgspec.Struct]
#: Array in the C source -> the messages that a kind of connection accepts.
SETS: dict[str, tuple[_Struct, ...]] = {
    "lane_messages": lane_messages.LaneMessage.__args__,  # type: ignore[attr-defined]
    "call_messages": call_messages.CallMessage.__args__,  # type: ignore[attr-defined]
    "control_messages": (*proxy.WithProxy.__args__, messages.Failure),  # type: ignore[attr-defined]
}
_HEAD = """/* Written by scripts/generate from the messages of pytriton/_protocol: do not edit. */
/* clang-format off */
#include "wire/declarations.h"

#include <stddef.h>
"""


class UnknownShape(Exception):
    """A field has a type that wire/shapes.c does not support."""


def source() -> str:
    """Return the C source."""
    declared: list[_Struct] = []
    blocks = [_HEAD]
    for struct in (one for structs in SETS.values() for one in structs):
        for part in _parts(struct):
            if part not in declared:
                declared.append(part)
                blocks.append(_declaration(part))
    for name, structs in SETS.items():
        listed = textwrap.fill(", ".join(f"&{struct.__name__}" for struct in structs), 110)
        lines = textwrap.indent(f"{listed}, NULL", "    ")
        blocks.append(f"const Declared *const {name}[] = {{\n{lines}\n}};\n")
    return "\n".join(blocks)


def _parts(struct: _Struct) -> Iterator[_Struct]:
    """Yield the structs in a struct's fields, recursively, then the struct itself."""
    for field in fields_of(struct):
        for part in parts_of(field.type):
            yield from _parts(part)
    yield struct


def _declaration(struct: _Struct) -> str:
    name, fields = struct.__name__, fields_of(struct)
    config = struct.__struct_config__
    blocks: list[str] = []
    rows = []
    for field in fields:
        shape = _shape(field.type, f"{name}_{field.name}", blocks)
        rows.append(f'    {{"{field.encode_name}", {str(field.required).lower()}, {shape}}},')
    if rows:
        blocks.append(f"static const Field {name}_fields[] = {{\n" + "\n".join(rows) + "\n};\n")
    tag = f'"{config.tag}"' if config.tag else "NULL"
    values = f"{tag}, {str(not config.array_like).lower()}, {len(rows)}, {f'{name}_fields' if rows else 'NULL'}"
    blocks.append(f"static const Declared {name} = {{{values}}};\n")
    return "".join(blocks)


def _shape(kind: inspect.Type, name: str, blocks: list[str]) -> str:
    """Return the initializer of a Shape. Append the declarations that it refers to to `blocks`."""
    optional = False
    if isinstance(kind, inspect.UnionType):
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        optional = len(others) < len(kind.types)
        if {type(one) for one in others} == {inspect.IntType, inspect.StrType}:
            return _initializer("SHAPE_INT_OR_TEXT", optional)
        if len(others) != 1:
            raise UnknownShape(f"{name}: wire/shapes.c does not support {kind}")
        (kind,) = others
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return _initializer(plain, optional)
    if isinstance(kind, inspect.LiteralType):
        listed = ", ".join(f'"{one}"' for one in kind.values)
        blocks.append(f"static const char *const {name}_choices[] = {{{listed}, NULL}};\n")
        return _initializer("SHAPE_TEXT", optional, choices=f"{name}_choices")
    if isinstance(kind, inspect.StructType):
        return _initializer("SHAPE_STRUCT", optional, declared=f"&{kind.cls.__name__}")
    if isinstance(kind, inspect.ListType):
        item = _shape(kind.item_type, f"{name}_item", blocks)
        blocks.append(f"static const Shape {name}_item = {item};\n")
        return _initializer("SHAPE_LIST", optional, item=f"&{name}_item")
    if isinstance(kind, inspect.DictType) and {type(kind.key_type), type(kind.value_type)} == {
        inspect.StrType
    }:
        return _initializer("SHAPE_TEXTS", optional)
    raise UnknownShape(f"{name}: wire/shapes.c does not support {kind}")


_PLAIN: dict[type[Any], str] = {
    inspect.IntType: "SHAPE_INT",
    inspect.FloatType: "SHAPE_FLOAT",
    inspect.BoolType: "SHAPE_BOOL",
    inspect.StrType: "SHAPE_TEXT",
}


def _initializer(kind: str, optional: bool, **more: str) -> str:
    values = [f".kind = {kind}"]
    values += [".optional = true"] if optional else []
    values += [f".{name} = {value}" for name, value in more.items()]
    return "{" + ", ".join(values) + "}"
