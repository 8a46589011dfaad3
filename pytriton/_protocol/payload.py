"""The payload of a registration: a pickled callable behind a header, which a worker reads before it unpickles.

[ "PTD1" ][ header length: 4 bytes, little-endian ][ header: MessagePack ][ cloudpickle's bytes ]
"""

from __future__ import annotations

import importlib
import struct
from types import ModuleType
from typing import Any

import msgspec

_MAGIC = b"PTD1"
_LENGTH = struct.Struct("<I")
#: numpy's bit generators, by name.
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
#: Modules that the worker cannot import (`MemoryModule`), by name.
memory_modules: dict[str, ModuleType] = {}


class Source(msgspec.Struct, frozen=True, array_like=True):
    """A module of the registrant at registration time: its name, its absolute path, and the bytes of its file."""

    name: str
    file: str
    text: bytes


class Lines(msgspec.Struct, frozen=True, array_like=True):
    """The source of a function that was pickled by value: its file, the number of its first line, and its text."""

    file: str
    first: int
    text: str


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """One global of a module that was pickled by value. Each is pickled separately and loaded on first use.

    `uses` lists the globals of the same module that its code reads. If it could not be pickled, `missing` is the reason
    and `pickled` is empty.
    """

    name: str
    pickled: bytes = b""
    uses: list[str] = []
    missing: str = ""


class MemoryModule(msgspec.Struct, frozen=True):
    """A module that the worker cannot import, usually `__main__`, and its definitions.

    `file` is its `__file__`, `package` its `__package__`; "" means none.
    """

    name: str
    file: str = ""
    package: str = ""
    definitions: list[Definition] = []


class Header(msgspec.Struct, frozen=True):
    """Facts about a pickle that a worker needs before unpickling it.

    Attributes:
        python_version: the (major, minor) version that created the pickle
        by_reference: the pickle contains no code, only names of importable modules, so any Python version can try it;
            otherwise it needs `python_version`
        folders: where the modules are that were pickled by value because the worker would not find them
        sources: files of the modules that were pickled by reference and of those that they import, nearest first
        lines: sources of the functions that were pickled by value
        modules: modules that the worker cannot import. If there are any, a second pickle follows the first and shares
            its memo: module -> name -> the functions and classes of these modules in the first pickle.
    """

    python_version: tuple[int, int]
    by_reference: bool
    folders: list[str] = []
    sources: list[Source] = []
    lines: list[Lines] = []
    modules: list[MemoryModule] = []


class MalformedPayload(ValueError):
    """The bytes were not created by `pack`."""


def pack(header: Header, pickled: bytes) -> bytes:
    """Return the payload of a pickled callable."""
    encoded = msgspec.msgpack.encode(header)
    return b"".join([_MAGIC, _LENGTH.pack(len(encoded)), encoded, pickled])


def unpack(payload: bytes) -> tuple[Header, memoryview]:
    """Return the header and the pickle, without unpickling it.

    Raises:
        MalformedPayload: the bytes are not a payload.
    """
    start = len(_MAGIC) + _LENGTH.size
    if payload[: len(_MAGIC)] != _MAGIC or len(payload) < start:
        raise MalformedPayload("a callable's payload has no valid header: its marker is missing")
    (length,) = _LENGTH.unpack_from(payload, len(_MAGIC))
    view = memoryview(payload)
    try:
        header = msgspec.msgpack.decode(view[start : start + length], type=Header)
    except msgspec.DecodeError as error:
        raise MalformedPayload(f"a callable's payload has no valid header: {error}") from error
    return header, view[start + length :]


def memory_module(name: str) -> ModuleType:
    """Return a module that has no file in this worker. Pickles contain calls to this function."""
    module = memory_modules.get(name)
    return importlib.import_module(name) if module is None else module


def make_bit_generator(name: str, seed: Any, state: Any) -> Any:
    """Create a numpy bit generator in a given state. Pickles call this, so that any numpy version can load them."""
    if name not in BIT_GENERATORS:
        raise MalformedPayload(f"{name!r} is not a numpy bit generator")
    import numpy.random

    made = getattr(numpy.random, name)(seed)
    made.state = state
    return made
