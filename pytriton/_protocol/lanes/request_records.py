"""Records of single requests, from a worker to the dispatcher: a ring in the memory of the worker's gauge.

The worker writes a record and goes on; the dispatcher takes what there is when it comes by. Neither waits for the
other: what has no room is left out, and counted. Which requests have a record, the dispatcher says, by two numbers in
the same memory: calls that took at least so long (`limit`), and how many more (`budget`)::

    [ written ][ taken ][ left out ][ threshold ][ limit ][ budget ]     8 bytes each
    [ ring: size of a message in 4 bytes, MessagePack ] …

The threshold is what a worker compares the time of each call with: `NEVER` when nothing is wanted, 0 when the call at
hand has failed, else the limit. So a call that nobody wants a record of costs one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import msgspec

#: No call takes so long.
NEVER = (1 << 64) - 1
#: As good as any number of records.
UNBOUNDED = 1 << 62
#: Bytes of the ring; a message has a quarter of it at most.
RING = 1 << 18
#: Records of a message: it has room for so many with the longest ids.
_AT_ONCE = 64
_HEADER = 64
#: Bytes that it takes in all.
SIZE = _HEADER + RING
_WRITTEN, _TAKEN, _LEFT_OUT, THRESHOLD, _LIMIT, _BUDGET = range(6)
_PREFIX = 4


class RequestRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request. Times are nanoseconds, `ended_ns` by CLOCK_MONOTONIC.

    Attributes:
        id: see worker/request_ids.py.
        status: "ok", or why it failed: one of gauge.FAILURES.
        queue_ns: from when tritonserver handed its batch over, until the call began; -1: unknown.
        compute_ns: the call, with reading inputs and writing outputs.
        requests, rows: of the call that it was in.
        bytes_out: -1: nobody has counted them.
        version: that it was for; 0: the only one.
        error: the type of the exception that it failed by, if one did it: its name, and nothing of its text.
    """

    id: str
    status: str
    ended_ns: int
    queue_ns: int
    compute_ns: int
    requests: int
    rows: int
    bytes_in: int
    bytes_out: int
    version: int = 0
    error: str = ""


class Taken(NamedTuple):
    """The records that the dispatcher has taken: messages, undecoded, and how many records were left out since."""

    messages: Sequence[bytes] = ()
    left_out: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[RequestRecord]).decode


def decoded(message: bytes) -> Optional[list[RequestRecord]]:
    """Return the records of a message; None for what is none: the worker's memory may hold anything."""
    try:
        return _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class RequestRecords:
    """One end of the ring; `wanted` … `write` are for the worker, `want` and `take` for the dispatcher."""

    def __init__(self, memory: memoryview) -> None:
        """Take over a view of `SIZE` bytes, or more."""
        self._memory = memory
        self._words = memory[:_HEADER].cast("Q")
        self._ring = memory[_HEADER:SIZE]
        self._told_left_out = self._words[
            _LEFT_OUT
        ]  # a former version of the dispatcher has told these

    # ── the worker's end ─────────────────────────────────────────────────────────────────────────

    @property
    def all_wanted(self) -> bool:
        """Whether every request is to have a record, not only those of some calls."""
        return self._words[_BUDGET] > UNBOUNDED // 2

    def call_failed(self) -> None:
        """The call at hand has failed: it is to have records, however short it was."""
        if self._words[_LIMIT] != NEVER:
            self._words[THRESHOLD] = 0

    @property
    def budget(self) -> int:
        """How many records may be written now."""
        return self._words[_BUDGET]

    def write(self, records: Sequence[RequestRecord]) -> None:
        """Write records, or count them as left out; to be called for each call that has passed the threshold."""
        words = self._words
        budget = words[_BUDGET]
        if records:
            budget -= min(budget, len(records))
            words[_BUDGET] = budget
            for at in range(0, len(records), _AT_ONCE):
                piece = records[at : at + _AT_ONCE]
                if not self._put(_encode(piece)):
                    words[_LEFT_OUT] += len(piece)
        words[THRESHOLD] = words[_LIMIT] if budget else NEVER

    def _put(self, message: bytes) -> bool:
        words = self._words
        written = words[_WRITTEN]
        size = _PREFIX + len(message)
        if size > RING // 4 or size > RING - (written - words[_TAKEN]):
            return False
        self._copy_in(written % RING, len(message).to_bytes(_PREFIX, "little") + message)
        words[_WRITTEN] = written + size
        return True

    def _copy_in(self, at: int, data: bytes) -> None:
        first = RING - at
        self._ring[at : at + len(data)] = data[:first]
        if len(data) > first:
            self._ring[: len(data) - first] = data[first:]

    # ── the dispatcher's end ─────────────────────────────────────────────────────────────────────

    def want(self, limit_ns: int, budget: int) -> None:
        """Have calls that take at least so long get records, and failed ones; so many until this is said again."""
        words = self._words
        words[_BUDGET] = budget
        if words[_LIMIT] != limit_ns or words[THRESHOLD] == NEVER:
            words[_LIMIT] = limit_ns
            words[THRESHOLD] = limit_ns

    def take(self) -> Taken:
        """Take all messages. What does not look like one is thrown away with all behind it."""
        words = self._words
        written, taken = words[_WRITTEN], words[_TAKEN]
        left_out = words[_LEFT_OUT]
        more, self._told_left_out = left_out - self._told_left_out, left_out
        found: list[bytes] = []
        if 0 < written - taken <= RING:
            at, left = taken % RING, written - taken
            data = bytes(self._ring[at : at + left]) + bytes(self._ring[: max(0, at + left - RING)])
            found = list(_messages(data))
        words[_TAKEN] = written
        # A worker can say anything again and again, and the sum of it has to fit a message.
        return Taken(found, max(0, min(more, RING)))

    def close(self) -> None:
        """Let go of the memory."""
        self._ring.release()
        self._words.release()
        self._memory.release()


def _messages(data: bytes) -> Sequence[bytes]:
    found = []
    at = 0
    while at + _PREFIX <= len(data):
        size = int.from_bytes(data[at : at + _PREFIX], "little")
        at += _PREFIX
        if not 0 < size <= len(data) - at:
            break
        found.append(data[at : at + size])
        at += size
    return found
