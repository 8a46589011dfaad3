"""Both codecs, the compiled proxy's in C and msgspec, accept exactly the same messages."""

from __future__ import annotations

import copy
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import msgspec
import pytest
from generators.declarations import SETS
from msgspec import inspect

#: In the order of codec.c.
NAMES = ("lane_messages", "call_messages", "control_messages")
DECODERS = {name: msgspec.msgpack.Decoder(Union[SETS[name]]) for name in NAMES}
MESSAGES = [(name, one) for name in NAMES for one in SETS[name]]
#: One value of each kind.
KINDS: tuple[Any, ...] = (
    None,
    True,
    7,
    -7,
    2**63,
    1.5,
    "text",
    b"bytes",
    [],
    [1],
    {},
    {"a": 1},
    msgspec.msgpack.Ext(5, b"x"),
)


def both(program: Path, cases: list[tuple[str, bytes]]) -> Iterator[tuple[Any, bool, Any]]:
    """Decode each case with both; yield Python's result, whether C accepts it, and C's result or error."""
    asked = b"".join(
        struct.pack("=BI", NAMES.index(name), len(encoded)) + encoded for name, encoded in cases
    )
    done = subprocess.run([program], input=asked, capture_output=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    said = done.stdout
    for name, encoded in cases:
        fits, size = struct.unpack_from("=BI", said)
        answer, said = said[5 : 5 + size], said[5 + size :]
        try:
            python = DECODERS[name].decode(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            python = error
        yield python, bool(fits), answer if fits else answer.decode()


def disagreements(program: Path, cases: list[tuple[str, bytes]]) -> list[Any]:
    """Return the cases that only one accepts, or that the two decode differently."""
    found = []
    for (name, encoded), (python, fits, c) in zip(cases, both(program, cases)):
        taken = not isinstance(python, Exception)
        if taken != fits or (taken and DECODERS[name].decode(c) != python):
            found.append((encoded, python, c))
    return found


def value(kind: inspect.Type, full: bool) -> Any:
    """Return a value of a type in its wire form."""
    if isinstance(kind, inspect.UnionType):
        none = any(isinstance(one, inspect.NoneType) for one in kind.types)
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return None if none and not full else value(others[-1], full)
    if isinstance(kind, inspect.StructType):
        return wire(kind.cls, full)
    if isinstance(kind, inspect.ListType):
        return [value(kind.item_type, full)] * 2 if full else []
    if isinstance(kind, inspect.DictType):
        return {"key": "é"} if full else {}
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    plain = {inspect.IntType: -(2**40), inspect.StrType: "é" * 20, inspect.FloatType: 0.25}
    return plain.get(type(kind), True)


def wire(message: type[msgspec.Struct], full: bool) -> Any:
    """Return a message in its wire form, with all its fields, or only with the required ones."""
    info = inspect.type_info(message)
    assert isinstance(info, inspect.StructType)
    fields = {one.encode_name: value(one.type, full) for one in info.fields if full or one.required}
    tag = message.__struct_config__.tag
    if not message.__struct_config__.array_like:
        return {"type": tag, **fields}
    return [*([tag] if tag else []), *fields.values()]


def replaced(tree: Any, by: Any) -> Iterator[Any]:
    """Yield the tree once for each of its values, with that value replaced."""
    keys: Any = range(len(tree)) if isinstance(tree, list) else list(tree)
    for key in keys:
        changed = copy.copy(tree)
        changed[key] = by
        yield changed
        if isinstance(tree[key], (list, dict)):
            for below in replaced(tree[key], by):
                changed = copy.copy(tree)
                changed[key] = below
                yield changed


def resized(tree: Any) -> Iterator[Any]:
    """Yield the tree once for each of its arrays, with one element too many or too few."""
    if isinstance(tree, list):
        yield [*tree, 7]
        yield [*tree, None, b"bytes", msgspec.msgpack.Ext(5, b"x")]
        yield from (tree[:count] for count in range(len(tree)))
    else:
        yield {**tree, "new": 7}
        yield {**tree, "new": tree.get("type")}
        yield from ({key: tree[key] for key in tree if key != left_out} for left_out in tree)
    for key in range(len(tree)) if isinstance(tree, list) else tree:
        if isinstance(tree[key], (list, dict)):
            for below in resized(tree[key]):
                changed = copy.copy(tree)
                changed[key] = below
                yield changed


def variants(message: type[msgspec.Struct]) -> list[Any]:
    """Return a valid message, and all variants of it with one error."""
    whole, least = wire(message, True), wire(message, False)
    found = [whole, least, *resized(whole), *resized(least)]
    for kind in KINDS:
        found += replaced(whole, kind)
    return found


def encoded(name: str, trees: list[Any]) -> list[tuple[str, bytes]]:
    return [(name, msgspec.msgpack.encode(tree)) for tree in trees]


@pytest.mark.parametrize("full", [True, False], ids=["all fields", "required fields"])
def test_both_accept_valid_messages(codec_program: Path, full: bool) -> None:
    cases = [(name, msgspec.msgpack.encode(wire(message, full))) for name, message in MESSAGES]
    for (name, message), (python, fits, c) in zip(MESSAGES, both(codec_program, cases)):
        assert isinstance(python, message)
        assert fits, c
        assert DECODERS[name].decode(c) == python


@pytest.mark.parametrize("name", NAMES)
def test_both_agree_on_invalid_messages(codec_program: Path, name: str) -> None:
    cases = encoded(name, [tree for message in SETS[name] for tree in variants(message)])
    assert disagreements(codec_program, cases) == []


def test_missing_fields_are_refused_and_additional_ones_only_in_maps(codec_program: Path) -> None:
    """Arrays may have elements of a later version, which are ignored; maps must have the declared fields."""
    cases, expected = [], []
    for name, message in MESSAGES:
        least, whole = wire(message, False), wire(message, True)
        is_map = isinstance(whole, dict)
        longer = {**whole, "new": 7} if is_map else [*whole, 7]
        shorter = dict(list(least.items())[:-1]) if is_map else least[:-1]
        cases += encoded(name, [longer, shorter])
        expected += [not is_map, False]
    for (_, case), (python, fits, said), taken in zip(cases, both(codec_program, cases), expected):
        assert (not isinstance(python, Exception), fits) == (taken, taken), (case, said)


def test_both_accept_values_of_every_size(codec_program: Path) -> None:
    """MessagePack encodes numbers, texts and arrays differently depending on their size."""
    borders = [2**bits for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)]
    numbers = sorted({*borders, *(one - 1 for one in borders), *(-one for one in borders)})
    sizes = [0, 15, 16, 31, 32, 255, 256, 65535, 65536]
    trees: list[Any] = [["BatchReturned", 1, [*numbers, 2**64 - 1]]]
    trees += [["BatchReturned", 1, [1] * size] for size in sizes]
    trees += [["BatchFailed", 1, "x" * size] for size in sizes]
    trees += [["BatchFailed", 1, "", b"x" * size] for size in sizes]
    trees += [
        ["BatchFailed", 1, "", msgspec.msgpack.Ext(5, b"x" * size)] for size in (*sizes, 1, 2, 4, 8)
    ]
    trees += [["BatchFailed", 1, "", dict.fromkeys(map(str, range(size)), 1)] for size in sizes]
    trees += [["Metrics", [["f", "", "gauge", {}, [1.5, 7, 2**63]]]]]
    cases = encoded("lane_messages", trees)
    single = b"\xca" + struct.pack(">f", 0.1)
    (name, last), double = cases[-1], b"\xcb" + struct.pack(">d", 1.5)
    assert double in last
    cases.append((name, last.replace(double, single)))
    assert disagreements(codec_program, cases) == []
    assert all(fits for _, fits, _ in both(codec_program, cases))


@pytest.mark.parametrize(
    ("name", "tree", "complaint"),
    [
        ("lane_messages", ["BatchDone", 1], "BatchDone.responses is missing"),
        ("lane_messages", ["BatchDone", 1, [[[]], [[["y"]]]]], "BatchDone.responses[1].outputs[0].datatype is missing"),
        ("lane_messages", ["BatchDone", "1", []], "BatchDone.id is not an integer"),
        ("lane_messages", ["Room", True], "Room.batches is not an integer"),
        ("lane_messages", ["Metrics", [["f", "", "counter", {"a": 1}]]], "Metrics.updates[0].labels[…] is not a string"),
        ("lane_messages", ["Metrics", [["f", "", "counter", {}, "x"]]], "Metrics.updates[0].buckets is not an array"),
        ("lane_messages", ["Nonsense", 1], "something other than a message"),
        ("lane_messages", {"type": "Room", "batches": 1}, "something other than a message"),
        ("call_messages", ["Call", 1], "Call.model is missing"),
        ("control_messages", {"type": "Verdict", "action": "stop"}, "Verdict.action is not one of the allowed values"),
        ("control_messages", {"type": "Verdict"}, "Verdict.action is missing"),
        ("control_messages", {"type": "Verdict", "action": "fail", "x": 1}, "Verdict has an undeclared field"),
        ("control_messages", {"action": "fail"}, "something other than a message"),
    ],
)  # fmt: skip
def test_the_c_parser_reports_errors_with_their_position(
    codec_program: Path, name: str, tree: Any, complaint: str
) -> None:
    ((python, fits, said),) = both(codec_program, encoded(name, [tree]))
    assert isinstance(python, msgspec.ValidationError)
    assert not fits
    assert complaint in said


def test_both_agree_on_damaged_bytes(codec_program: Path) -> None:
    random_ = random.Random(7)
    cases = []
    for name, message in MESSAGES:
        whole = msgspec.msgpack.encode(wire(message, True))
        for _ in range(300):
            damaged = bytearray(whole)
            for _ in range(random_.randint(1, 3)):
                damaged[random_.randrange(len(damaged))] = random_.randrange(256)
            end = random_.choice([len(damaged), random_.randrange(len(damaged))])
            cases.append((name, bytes(damaged[:end]) + random_.choice([b"", b"", b"\x00"])))
    assert disagreements(codec_program, cases) == []
    taken = [not isinstance(python, Exception) for python, _, _ in both(codec_program, cases)]
    assert 0 < sum(taken) < len(taken)
