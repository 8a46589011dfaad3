"""The form in which a pickled callable travels: a header that a worker reads before it unpickles anything.

[ "PTD1" ][ header length: 4 bytes, little-endian ][ header: MessagePack ][ cloudpickle's bytes ]
"""

from __future__ import annotations

import struct

import msgspec

_MAGIC = b"PTD1"
_LENGTH = struct.Struct("<I")


class Source(msgspec.Struct, frozen=True, array_like=True):
    """A module of the registrant's as it was when it was registered: its name, absolute path, and the file's bytes."""

    name: str
    file: str
    text: bytes


class Lines(msgspec.Struct, frozen=True, array_like=True):
    """The source of a function whose code travels: the name of its file, the number of its first line, and its text."""

    file: str
    first: int
    text: str


class Header(msgspec.Struct, frozen=True):
    """The facts about a pickle that a worker needs before it opens it.

    `by_reference`: no code travels in it, only names of importable modules, so any Python version
    can try it; else it needs the Python `python_version` (major, minor) that pickled it. `folders`: in
    these lie modules whose code travels because the worker would not find them. `sources`: of modules that
    are named, and what these import; the nearest first. `lines`: of functions whose code travels.
    """

    python_version: tuple[int, int]
    by_reference: bool
    folders: list[str] = []
    sources: list[Source] = []
    lines: list[Lines] = []


class MalformedPayload(ValueError):
    """Bytes that `pack` did not make."""


def pack(header: Header, pickled: bytes) -> bytes:
    """Return the payload of a pickled callable."""
    encoded = msgspec.msgpack.encode(header)
    return b"".join([_MAGIC, _LENGTH.pack(len(encoded)), encoded, pickled])


def unpack(payload: bytes) -> tuple[Header, memoryview]:
    """Return the header and the pickle, which is not opened.

    Raises:
        MalformedPayload: it is not a payload.
    """
    start = len(_MAGIC) + _LENGTH.size
    if payload[: len(_MAGIC)] != _MAGIC or len(payload) < start:
        raise MalformedPayload("a callable's payload does not begin as one of this version")
    (length,) = _LENGTH.unpack_from(payload, len(_MAGIC))
    view = memoryview(payload)
    try:
        header = msgspec.msgpack.decode(view[start : start + length], type=Header)
    except msgspec.DecodeError as error:
        raise MalformedPayload(f"a callable's payload has a malformed header: {error}") from error
    return header, view[start + length :]
