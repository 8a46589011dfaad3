"""A worker's report of an exception: one line of its output, which becomes one record of the log.

It goes the way of all that a worker prints, so that it needs no connection, and stands among the other lines in
their order. A line of somebody else's that looks like one is no more than a record in the log of its own model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import msgspec

from pytriton._protocol.errors import described, members, sendable

#: What such a line begins with: a control character that no text begins with.
MARK = b"\x1epytriton "
#: The dispatcher takes lines of this size in one piece.
LONGEST_LINE = 1 << 16
#: Of the message, which is in the traceback, too; of names; and how many of these.
_MOST_MESSAGE, _MOST_NAME, _MOST_NAMES = 2000, 200, 64
#: Of names together, as they are sent: clients choose them, and control characters take six times their room.
_MOST_NAMES_BYTES = 1 << 14
#: Of the event, which is one line.
_MOST_EVENT = 500
_CUT = "\n[… cut here, all of it follows in lines of its own …]\n"


class ErrorRecord(msgspec.Struct, frozen=True):
    """An exception, with the requests that failed by it, as far as they have ids."""

    event: str
    error_type: str
    error_message: str
    exception: str
    request_ids: list[str] = []
    trace_ids: list[str] = []


def record_of(
    error: BaseException,
    traceback: str,
    what: str,
    request_ids: Sequence[str] = (),
    trace_ids: Sequence[str] = (),
) -> ErrorRecord:
    """Return the record of an exception; `what` says what it has ended."""
    found = members(error)
    kind, told = type(found[0] if len(found) == 1 else error).__name__, described(error)
    first, _, _ = told.partition("\n")
    return ErrorRecord(
        sendable(f"{what}: {first}"[:_MOST_EVENT]),
        sendable(kind[:_MOST_NAME]),
        told[len(f"{kind}: ") :][:_MOST_MESSAGE],
        sendable(traceback).rstrip("\n"),
        _first(request_ids),
        _first(trace_ids),
    )


def _first(names: Sequence[str]) -> list[str]:
    """Return so many names as a line has room for."""
    kept: list[str] = []
    room = _MOST_NAMES_BYTES
    for one in names[:_MOST_NAMES]:
        name = sendable(one[:_MOST_NAME])
        room -= len(msgspec.json.encode(name))
        if room < 0:
            break
        kept.append(name)
    return kept


def encoded(record: ErrorRecord) -> tuple[bytes, bool]:
    """Return the line, without its end, and whether the traceback had to be cut for it."""
    kept = len(record.exception)
    line = MARK + msgspec.json.encode(record)
    while kept and len(line) >= LONGEST_LINE:
        kept //= 2
        text = record.exception[: kept // 2] + _CUT + record.exception[-kept // 2 :]
        line = MARK + msgspec.json.encode(msgspec.structs.replace(record, exception=text))
    return line, kept < len(record.exception)


def decoded(line: bytes) -> Optional[ErrorRecord]:
    """Return the record that a line holds; None when it holds none."""
    if not line.startswith(MARK):
        return None
    try:
        return msgspec.json.decode(line[len(MARK) :], type=ErrorRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
