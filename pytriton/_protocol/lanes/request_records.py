"""Records of single requests, passed from a worker to the dispatcher in a ring buffer on the worker's stats page.

The worker never waits to write records; the dispatcher collects them periodically. If the ring is full, records are
dropped and counted. Two numbers in the same memory, set by the dispatcher, select the recorded requests: the minimum
duration of a call (`limit`), and how many more records may be written (`budget`)::

    [ written ][ taken ][ left out ][ threshold ][ limit ][ budget ]     8 bytes each
    [ ring: size of a message in 4 bytes, MessagePack ] …

The worker compares the duration of each call with the threshold: `NEVER` if no records are wanted, 0 if the current
call has failed, else the limit. So a call without a record costs one comparison.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import msgspec

from pytriton._protocol.lanes.lane_messages import Batch, RequestRef
from pytriton._protocol.messages import sendable

#: Longer than any call.
NEVER = (1 << 64) - 1
#: Practically unlimited.
UNBOUNDED = 1 << 62
#: Size of the ring in bytes; a message takes at most a quarter of it.
RING = 1 << 18
#: Maximum number of records in a message: they fit even with the longest ids.
_AT_ONCE = 64
_HEADER = 64
#: Total size in bytes.
SIZE = _HEADER + RING
_WRITTEN, _TAKEN, _LEFT_OUT, THRESHOLD, _LIMIT, _BUDGET = range(6)
_PREFIX = 4


class RequestRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of one request. Times are in nanoseconds; `ended_ns` is measured with CLOCK_MONOTONIC.

    Attributes:
        id: see worker/request_log.py.
        status: "ok", or why it failed: one of stats_page.FAILURES.
        queue_ns: time from tritonserver passing its batch to the proxy until the start of the call; -1: unknown.
        compute_ns: duration of the call, including reading inputs and writing outputs.
        requests, rows: totals of the call that served the request.
        bytes_out: size of the outputs; -1: not counted.
        version: the requested model version; 0: the only one.
        error: the name of the exception type that caused the failure, if any, without its text.
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


class CollectedRecords(NamedTuple):
    """Records collected from a worker, as encoded messages, and the number of records dropped since the last collection."""

    messages: Sequence[bytes] = ()
    left_out: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[RequestRecord]).decode


def decoded(message: bytes) -> Optional[list[RequestRecord]]:
    """Decode the records in a message; return None if it is invalid, since the worker's memory cannot be trusted."""
    try:
        return _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class RequestRecords:
    """One end of the ring buffer: the worker writes records, the dispatcher selects and collects them."""

    def __init__(self, memory: memoryview) -> None:
        """Take ownership of a view of at least `SIZE` bytes."""
        self._memory = memory
        self._words = memory[:_HEADER].cast("Q")
        self._ring = memory[_HEADER:SIZE]
        # Already reported by an earlier version of the dispatcher.
        self._reported_left_out = self._words[_LEFT_OUT]

    # ── the worker's end ─────────────────────────────────────────────────────────────────────────

    @property
    def all_wanted(self) -> bool:
        """Return True if every request is recorded, not only those of slow calls."""
        return self._words[_BUDGET] > UNBOUNDED // 2

    def call_failed(self) -> None:
        """Mark the current call as failed, so that it is recorded no matter how short it was."""
        if self._words[_LIMIT] != NEVER:
            self._words[THRESHOLD] = 0

    @property
    def budget(self) -> int:
        """Return how many records may be written now."""
        return self._words[_BUDGET]

    def write(self, records: Sequence[RequestRecord]) -> None:
        """Write records, and count any that are dropped. Must be called after every call that reached the threshold."""
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
        """Request up to `budget` records of failed calls and of calls that take at least `limit_ns`.

        This replaces the previous request.
        """
        words = self._words
        words[_BUDGET] = budget
        if words[_LIMIT] != limit_ns or words[THRESHOLD] == NEVER:
            words[_LIMIT] = limit_ns
            words[THRESHOLD] = limit_ns

    @property
    def has_uncollected(self) -> bool:
        """Return True if the worker has written or dropped records since the last collection."""
        words = self._words
        return words[_WRITTEN] != words[_TAKEN] or words[_LEFT_OUT] != self._reported_left_out

    def take(self) -> CollectedRecords:
        """Collect and remove all messages. Discard an invalid message, together with all that follow it."""
        words = self._words
        written, taken = words[_WRITTEN], words[_TAKEN]
        left_out = words[_LEFT_OUT]
        more, self._reported_left_out = left_out - self._reported_left_out, left_out
        found: list[bytes] = []
        if 0 < written - taken <= RING:
            at, left = taken % RING, written - taken
            data = bytes(self._ring[at : at + left]) + bytes(self._ring[: max(0, at + left - RING)])
            found = list(_messages(data))
        words[_TAKEN] = written
        # A worker can report any number repeatedly, and the sum must fit a message.
        return CollectedRecords(found, max(0, min(more, RING)))

    def close(self) -> None:
        """Release the memory."""
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


# ── the request id used in errors, logs and traces; workers and proxies derive the same one ──

#: Maximum length of an id, which clients choose.
MAX_LENGTH = 200


def id_at(batch: Batch, place: int) -> str:
    """Return the id of the request at a position in a batch: its own id, or a generated one if it has none."""
    return _given_at(batch, place) or f"{batch.taken_ns:x}-{batch.id:x}-{place}"


def ids_of(batch: Batch) -> list[str]:
    """Return the id of each request of a batch."""
    return [id_at(batch, place) for place in range(len(batch.requests))]


def given_id(ref: RequestRef, context: str = "") -> str:
    """Return a request's id, as set by its client, its headers or its trace; "" if it has none."""
    return (
        clean(ref.request_id)
        or _of_headers(ref.parameters)
        or trace_id(ref.details.trace if ref.details else None)
        or trace_id(context)
    )


def trace_id(context: str | None) -> str:
    """Return the trace id in a trace context, which is a JSON object of headers; "" if there is none."""
    if not context:
        return ""
    return _of_traceparent(parse_json_object(context).get("traceparent"))


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object from a proxy or a client; return {} if the text is not one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clean(text: str) -> str:
    """Shorten a client's text and replace its control characters, so that it is safe to log on one line."""
    if text.isascii() and text.isprintable() and len(text) <= MAX_LENGTH:
        return text
    return "".join(
        one if one.isprintable() else "?" for one in sendable(text[:MAX_LENGTH])[:MAX_LENGTH]
    )


def _given_at(batch: Batch, place: int) -> str:
    contexts = batch.trace.contexts if batch.trace is not None else []
    return given_id(batch.requests[place], contexts[place] if place < len(contexts) else "")


def _of_headers(parameters: str) -> str:
    """Return the request id in forwarded headers: the value of `x-request-id`, else the trace id in `traceparent`."""
    lower = parameters.lower()
    if "x-request-id" not in lower and "traceparent" not in lower:
        return ""
    headers = {name.lower(): value for name, value in parse_json_object(parameters).items()}
    given = headers.get("x-request-id")
    found = clean(given) if isinstance(given, str) else ""
    return found or _of_traceparent(headers.get("traceparent"))


def _of_traceparent(value: Any) -> str:
    parts = value.split("-") if isinstance(value, str) else []
    return clean(parts[1]) if len(parts) >= 4 else ""
