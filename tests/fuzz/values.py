"""Hostile values and bytes, derived only from (seed, target, case), so that every case is reproducible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

#: Borders of what integers are used for: sizes, pages, 32 and 64 bits.
INTEGERS = (
    -1, 0, 1, 2, 3, 4, 64, 255, 4095, 4096, 8191, 8192, 8193, 65535, 65536, 1 << 31, 1 << 32,
    1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, -1.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", "x", "y", "FP32", "BYTES", "UINT8", "{}", "[", "0", "..", "../../etc", "/", "/dev/null", "a" * 300,
    "\0", "\n", "é", "\U0001f600", "%s%n", "w1", "m#1", "-", "internal",
)  # fmt: skip


class Maker:
    """Makes the values of one case. `words` are texts that have a meaning for the target."""

    def __init__(self, seed: int, target: str, case: int, words: Sequence[str] = ()) -> None:
        self.random = Random(f"{seed}/{target}/{case}")
        self._words = words

    def chance(self, one_in: int) -> bool:
        """Return True with a probability of 1 in `one_in`."""
        return self.random.randrange(one_in) == 0

    def integer(self) -> int:
        """Return an integer that MessagePack can carry."""
        if self.chance(3):
            return self.random.randrange(-(1 << 63), 1 << 64)
        return self.random.choice(INTEGERS)

    def number(self) -> float:
        """Return a float, finite or not."""
        return self.random.choice(FLOATS)

    def text(self) -> str:
        """Return a text: a meaningful one, one that often breaks something, or any."""
        if self._words and not self.chance(3):
            return self.random.choice(self._words)
        if not self.chance(4):
            return self.random.choice(TEXTS)
        codes = [self.random.randrange(0xD800) for _ in range(self.random.randrange(6))]
        return "".join(map(chr, codes))

    def data(self, longest: int = 40) -> bytes:
        """Return random bytes."""
        return bytes(self.random.getrandbits(8) for _ in range(self.random.randrange(longest + 1)))

    def value(self, depth: int = 3) -> Any:
        """Return anything that MessagePack can carry."""
        kind = self.random.randrange(9 if depth else 6)
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        if kind > 6:
            return {self.text(): self.value(depth - 1) for _ in range(self.random.randrange(4))}
        simple: list[Callable[[], Any]] = [
            lambda: None, lambda: self.chance(2), self.integer, self.number, self.text, self.data,
        ]  # fmt: skip
        return simple[kind]()

    def damage(self, data: bytes) -> bytes:
        """Return the bytes with some replaced, removed or added, or with the end cut off."""
        damaged = bytearray(data)
        for _ in range(self.random.randrange(1, 4)):
            start = self.random.randrange(len(damaged) + 1)
            end = start + self.random.randrange(4)
            damaged[start:end] = self.data(3)
        if self.chance(5):
            del damaged[self.random.randrange(len(damaged) + 1) :]
        return bytes(damaged)

    def of(self, kind: Any) -> Any:
        """Return a message type's value in builtin form: valid in form, hostile in its values."""
        return self._of(form_of(kind))

    def slightly_wrong(self, kind: Any) -> Any:
        """Like `of`, with a field too many, too few, or of another type."""
        form = self.of(kind)
        if isinstance(form, dict):
            name = self.random.choice([*form, "more"])
            if self.chance(3):
                form.pop(name, None)
            else:
                form[name] = self.value()
        elif isinstance(form, list):
            place = self.random.randrange(len(form) + 1)
            form[place : place + self.random.randrange(2)] = [self.value()] * self.random.randrange(
                2
            )
        return form

    def _of(self, form: inspect.Type) -> Any:
        if isinstance(form, inspect.StructType):
            return self._struct(form)
        if isinstance(form, inspect.UnionType):
            return self._of(self.random.choice(form.types))
        if isinstance(form, (inspect.ListType, inspect.VarTupleType)):
            return [self._of(form.item_type) for _ in range(self.random.randrange(4))]
        if isinstance(form, inspect.DictType):
            return {self.text(): self._of(form.value_type) for _ in range(self.random.randrange(3))}
        simple = _SIMPLE.get(type(form), Maker.value)
        return simple(self)

    def _struct(self, form: inspect.StructType) -> Any:
        if form.array_like:
            tag = [form.tag] if form.tag is not None else []
            return [*tag, *(self._of(field.type) for field in form.fields)]
        fields = {
            field.encode_name: self._of(field.type)
            for field in form.fields
            if field.required or not self.chance(3)
        }
        return {form.tag_field: form.tag, **fields} if form.tag_field is not None else fields


_SIMPLE: dict[type, Callable[[Maker], Any]] = {
    inspect.IntType: Maker.integer,
    inspect.FloatType: Maker.number,
    inspect.StrType: Maker.text,
    inspect.BytesType: Maker.data,
    inspect.BoolType: lambda maker: maker.chance(2),
    inspect.NoneType: lambda maker: None,
}


@cache
def form_of(kind: Any) -> inspect.Type:
    """Return msgspec's description of a type."""
    return inspect.type_info(kind)


def packed(value: Any) -> bytes:
    """Return a value as MessagePack."""
    return msgspec.msgpack.encode(value)
