"""Metrics that a callable counts by itself, from a worker to the dispatcher: two pages of memory behind its gauge.

The worker writes what its `prometheus_client` holds into the page that does not count, and then has that one count.
So the dispatcher finds the last whole one whenever it looks, also when the worker hangs or has ended::

    [ serial: page serial % 2 counts, 0: none ]     8 bytes
    [ size ][ CRC-32 ] MessagePack …                page 0
    [ size ][ CRC-32 ] MessagePack …                page 1

What lies there is the callable's: `user_series.py` has the checks.
"""

from __future__ import annotations

import zlib
from typing import Optional

import msgspec

#: Bytes of a page, and of the message in it.
_PAGE = 1 << 18
_PREFIX = 8
MOST_BYTES = _PAGE - _PREFIX
#: Bytes before the pages.
_HEADER = 4096
#: Bytes that it takes in all.
SIZE = _HEADER + 2 * _PAGE
#: Values of a worker: a counter has one for each set of labels, a histogram as many as it has buckets, and two more.
MOST_VALUES = 2_000
_TRIES = 3


class UserSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One value; `suffix` is what its name has behind that of its family: "_total", "_bucket", "" …"""

    suffix: str
    labels: dict[str, str]
    value: float


class UserFamily(msgspec.Struct, frozen=True, array_like=True):
    """One metric. Its samples are `UserSample`s; those of one histogram, and its like, follow each other."""

    name: str
    kind: str
    help: str
    samples: list[msgspec.Raw]


class UserMetrics(msgspec.Struct, frozen=True, array_like=True):
    """The content of a worker's `prometheus_client`, and how many values had no room."""

    families: list[UserFamily]
    left_out: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UserMetrics).decode
_decode_sample = msgspec.msgpack.Decoder(UserSample).decode


def encoded_sample(sample: UserSample) -> msgspec.Raw:
    """Return a sample as a family has it."""
    return msgspec.Raw(_encode(sample))


def decoded_sample(sample: msgspec.Raw) -> Optional[UserSample]:
    """Return a family's sample; None for what is none."""
    try:
        return _decode_sample(sample)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def encoded(metrics: UserMetrics) -> bytes:
    """Return the message that a page holds."""
    return _encode(metrics)


def decoded(message: bytes) -> Optional[UserMetrics]:
    """Return what a message says; None for what is none: the worker's memory may hold anything."""
    try:
        return _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class UserMetricsPages:
    """One end of the pages: `write` is for the worker, `read` for the dispatcher."""

    def __init__(self, memory: memoryview) -> None:
        """Take over a view of `SIZE` bytes, or more."""
        self._memory = memory
        self._serial = memory[:8].cast("Q")
        self._last = b""

    def write(self, message: bytes) -> bool:
        """Have a message count from now on; return whether it has room."""
        if len(message) > MOST_BYTES:
            return False
        serial = (self._serial[0] + 1) % (1 << 63) or 2
        at = _HEADER + serial % 2 * _PAGE
        self._memory[at + _PREFIX : at + _PREFIX + len(message)] = message
        self._memory[at : at + _PREFIX] = _prefix(message)
        self._serial[0] = serial
        return True

    def read(self) -> bytes:
        """Return the last message; b"" while there is none. One that is damaged counts as not written."""
        for _ in range(_TRIES):  # the worker may write both while one is read
            serial = self._serial[0]
            if not serial:
                break
            at = _HEADER + serial % 2 * _PAGE
            prefix = bytes(self._memory[at : at + _PREFIX])
            size = int.from_bytes(prefix[:4], "little")
            message = bytes(self._memory[at + _PREFIX : at + _PREFIX + min(size, MOST_BYTES)])
            if prefix == _prefix(message):
                self._last = message
                break
        return self._last

    def close(self) -> None:
        """Let go of the memory."""
        self._serial.release()
        self._memory.release()


def _prefix(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + zlib.crc32(message).to_bytes(4, "little")
