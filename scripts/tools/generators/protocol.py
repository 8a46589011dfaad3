"""Generate proxy_backend/backend/wire/protocol.h, what the compiled proxy needs to know about messages.

A message on a lane or on a connection for calls is an array: its name, then its fields. A control message is a map:
"type" and its name, then each field's name and value. For each message that the proxy sends or receives, the header
has the name, the number of elements or fields, how many are required, and the positions or names of the fields.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol import messages, parameters
from pytriton._protocol.calls import call_connection, call_messages
from pytriton._protocol.lanes import lane, lane_messages
from pytriton._protocol.messages import proxy
from pytriton._protocol.messages.base import PROTOCOL

PATH = Path("proxy_backend/backend/wire/protocol.h")
_Struct = type[msgspec.Struct]
#: Parts of messages, which have no name on the wire.
_PARTS: tuple[_Struct, ...] = (
    lane_messages.TensorRef,
    lane_messages.RequestRef,
    lane_messages.RequestDetails,
    lane_messages.ResponseRef,
    lane_messages.ResponseDetails,
    lane_messages.BatchTrace,
    lane_messages.PartRef,
    lane_messages.MetricUpdate,
    call_messages.Link,
)
_HEAD = """/* Written by scripts/generate from the messages of pytriton/_protocol: do not edit.
 *
 * An array (lanes, calls) has at most NAME_SIZE and at least NAME_LEAST elements. The first element of a message is its
 * name; NAME_field is the position of a field. A map (control) has NAME_FIELDS fields besides its type.
 */
/* clang-format off */
#ifndef PYTRITON_BACKEND_WIRE_PROTOCOL_H
#define PYTRITON_BACKEND_WIRE_PROTOCOL_H
"""


def header() -> str:
    """Return the header."""
    lane = _members(lane_messages.LaneMessage)
    call = _members(call_messages.CallMessage)
    control: tuple[_Struct, ...] = (*_members(proxy.WithProxy), messages.Failure)
    parts = [
        _HEAD,
        _constants(),
        _section("Parts of messages", [_array(one) for one in _PARTS]),
        _section(
            "Messages on a lane: pytriton/_protocol/lanes/lane_messages.py",
            [_array(one) for one in lane],
        ),
        _section(
            "Messages about calls: pytriton/_protocol/calls/call_messages.py",
            [_array(one) for one in call],
        ),
        _section(
            "Messages of the control socket: pytriton/_protocol/messages/proxy.py",
            [_map(one) for one in control],
        ),
        "#endif\n",
    ]
    return "\n".join(parts)


def _members(union: Any) -> tuple[_Struct, ...]:
    return tuple(union.__args__)


def _constants() -> str:
    lines = [f"enum {{ PROTOCOL = {PROTOCOL} }};"]
    lines += [
        f"enum {{ ARENA_MEMORY = {lane_messages.ARENA}, OWN_MEMORY = {lane_messages.OWN} }};",
        f"enum {{ MAX_LANE_MEMORIES = {lane.MAX_MEMORIES}, MAX_CALL_MEMORIES = {call_connection.MAX_MEMORIES} }};",
        f"enum {{ MAX_METRICS = {lane_messages.MAX_METRICS}, MAX_LABELS = {lane_messages.MAX_LABELS}, "
        f"MAX_BUCKETS = {lane_messages.MAX_BUCKETS} }};",
        f'#define TRITONS_METRICS "{lane_messages.TRITONS_METRICS}"',
    ]
    names = [name for name in vars(parameters) if name.endswith("_PARAMETER")]
    lines += [f'#define {name} "{getattr(parameters, name)}"' for name in sorted(names)]
    return _section("Numbers and names", ["\n".join(lines)])


def _section(title: str, blocks: list[str]) -> str:
    return "\n".join([f"/* ── {title} {'─' * max(3, 100 - len(title))} */", "", *blocks, ""])


def _array(struct: _Struct) -> str:
    fields = msgspec.structs.fields(struct)
    tag = struct.__struct_config__.tag
    first = 1 if tag else 0
    least = first + sum(field.required for field in fields)
    name = _upper(struct)
    lines = [f"/* {_purpose(struct)} */"]
    if tag:
        lines.append(f'#define {name}_NAME "{tag}"')
    numbers = [f"{name}_SIZE = {first + len(fields)}", f"{name}_LEAST = {least}"]
    numbers += [f"{name}_{field.name} = {first + place}" for place, field in enumerate(fields)]
    return "\n".join([*lines, _enum(numbers)])


def _enum(members: list[str]) -> str:
    # Remove the spaces in members, so that lines break between members only.
    whole = ", ".join(members).replace(" = ", "=")
    text = textwrap.fill(whole, 104, initial_indent="    ", subsequent_indent="    ")
    text = text.replace("=", " = ")
    short = f"enum {{ {', '.join(members)} }};"
    return short if len(short) <= 120 else f"enum {{\n{text}\n}};"


def _map(struct: _Struct) -> str:
    fields = msgspec.structs.fields(struct)
    name = _upper(struct)
    lines = [f"/* {_purpose(struct)} */", f'#define {name}_NAME "{struct.__struct_config__.tag}"']
    lines.append(f"enum {{ {name}_FIELDS = {len(fields)} }};")
    lines += [f'#define {name}_{field.name} "{field.encode_name}"' for field in fields]
    return "\n".join(lines)


def _purpose(struct: _Struct) -> str:
    return (inspect.getdoc(struct) or struct.__name__).split("\n")[0]


def _upper(struct: _Struct) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", struct.__name__).upper()
