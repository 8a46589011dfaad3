"""Metrics that a callable exports. The worker passes them to the dispatcher in two pages after its stats page.

The worker writes the content of its `prometheus_client` to the inactive page and then activates it.
So the dispatcher always finds the last complete page, even if the worker hangs or has exited::

    [ serial: page serial % 2 is active, 0: none ]  8 bytes
    [ size ][ CRC-32 ] MessagePack …                page 0
    [ size ][ CRC-32 ] MessagePack …                page 1

The content is controlled by the callable: `user_series.py` validates it.
"""

from __future__ import annotations

import zlib
from typing import Optional

import msgspec

#: Size in bytes of a page, and of the message in it.
_PAGE = 1 << 18
_PREFIX = 8
MAX_BYTES = _PAGE - _PREFIX
#: Bytes before the pages.
_HEADER = 4096
#: Total size in bytes.
SIZE = _HEADER + 2 * _PAGE
#: Maximum number of values per worker: a counter has one per set of labels, a histogram one per bucket and two more.
MAX_VALUES = 2_000
_TRIES = 3


class UserSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One value of a metric. Its name is that of the family plus `suffix`: "_total", "_bucket", "" …"""

    suffix: str
    labels: dict[str, str]
    value: float


class UserFamily(msgspec.Struct, frozen=True, array_like=True):
    """One metric. Its samples are encoded `UserSample`s; those of one histogram or summary are consecutive."""

    name: str
    kind: str
    help: str
    samples: list[msgspec.Raw]


class UserMetrics(msgspec.Struct, frozen=True, array_like=True):
    """The metrics in a worker's `prometheus_client` registry, and the number of values that did not fit."""

    families: list[UserFamily]
    left_out: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UserMetrics).decode
_decode_sample = msgspec.msgpack.Decoder(UserSample).decode


def encoded_sample(sample: UserSample) -> msgspec.Raw:
    """Encode a sample for `UserFamily.samples`."""
    return msgspec.Raw(_encode(sample))


def decoded_sample(sample: msgspec.Raw) -> Optional[UserSample]:
    """Decode a sample of a family; return None if it is invalid."""
    try:
        return _decode_sample(sample)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def encoded(metrics: UserMetrics) -> bytes:
    """Encode metrics as a page's message."""
    return _encode(metrics)


def decoded(message: bytes) -> Optional[UserMetrics]:
    """Decode a page's message. Return None if it is invalid, because the worker's memory cannot be trusted."""
    try:
        return _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class UserMetricsPages:
    """One end of the two pages of metrics. The worker calls `write`, the dispatcher calls `read`."""

    def __init__(self, memory: memoryview) -> None:
        """Take ownership of a view of at least `SIZE` bytes."""
        self._memory = memory
        self._serial = memory[:8].cast("Q")
        self._last = b""

    def write(self, message: bytes) -> bool:
        """Write a message and activate its page; return False if it does not fit."""
        if len(message) > MAX_BYTES:
            return False
        serial = (self._serial[0] + 1) % (1 << 63) or 2
        at = _HEADER + serial % 2 * _PAGE
        self._memory[at + _PREFIX : at + _PREFIX + len(message)] = message
        self._memory[at : at + _PREFIX] = _prefix(message)
        self._serial[0] = serial
        return True

    def read(self) -> bytes:
        """Return the last message; b"" if there is none yet. Ignore a corrupt message."""
        for _ in range(_TRIES):  # the worker may rewrite both pages during the read
            serial = self._serial[0]
            if not serial:
                break
            at = _HEADER + serial % 2 * _PAGE
            prefix = bytes(self._memory[at : at + _PREFIX])
            size = int.from_bytes(prefix[:4], "little")
            message = bytes(self._memory[at + _PREFIX : at + _PREFIX + min(size, MAX_BYTES)])
            if prefix == _prefix(message):
                self._last = message
                break
        return self._last

    def close(self) -> None:
        """Release the memory."""
        self._serial.release()
        self._memory.release()


def _prefix(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + zlib.crc32(message).to_bytes(4, "little")
