"""Output lines that another process parses: a worker's report of an exception, and lines for systemd's journal.

A report is one line, which becomes one log record. The worker writes it to its output, so it needs no connection and
stays in order with the other lines. A callable that forges a report only adds a record to the log of its own model.

A line for the journal begins with its priority, such as `<3>` for an error (sd-daemon(3)): `journalctl -p err` then shows
errors only, and monitoring that reads the journal can identify them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Optional, TextIO

import msgspec

from pytriton._protocol.errors import described, members
from pytriton._protocol.messages import sendable

#: Prefix of a report. It starts with a control character that does not occur at the start of normal text.
MARK = b"\x1epytriton "
#: Maximum line size that the dispatcher reads in one piece.
MAX_LINE_LENGTH = 1 << 16
#: Maximum sizes of the message, which the traceback repeats, and of a request or trace id; maximum number of ids.
_MAX_MESSAGE, _MAX_NAME, _MAX_NAMES = 2000, 200, 64
#: Maximum total size of the encoded ids: clients choose them, and encoded control characters take six bytes.
_MAX_NAMES_BYTES = 1 << 14
#: Maximum size of the event, which is one line.
_MAX_EVENT = 500
_CUT = "\n[… shortened; the full text follows as separate lines …]\n"


class ErrorRecord(msgspec.Struct, frozen=True):
    """The report of an exception, with the ids of the requests that failed because of it."""

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
    """Create the report of an exception; `what` describes the work that failed."""
    found = members(error)
    kind, full = type(found[0] if len(found) == 1 else error).__name__, described(error)
    first, _, _ = full.partition("\n")
    return ErrorRecord(
        sendable(f"{what}: {first}"[:_MAX_EVENT]),
        sendable(kind[:_MAX_NAME]),
        full[len(f"{kind}: ") :][:_MAX_MESSAGE],
        sendable(traceback).rstrip("\n"),
        _first(request_ids),
        _first(trace_ids),
    )


def _first(names: Sequence[str]) -> list[str]:
    """Return as many of the first ids as fit into a line."""
    kept: list[str] = []
    room = _MAX_NAMES_BYTES
    for one in names[:_MAX_NAMES]:
        name = sendable(one[:_MAX_NAME])
        room -= len(msgspec.json.encode(name))
        if room < 0:
            break
        kept.append(name)
    return kept


def encoded(record: ErrorRecord) -> tuple[bytes, bool]:
    """Encode a report as a line without its terminator; return it, and whether the traceback was shortened."""
    kept = len(record.exception)
    line = MARK + msgspec.json.encode(record)
    while kept and len(line) >= MAX_LINE_LENGTH:
        kept //= 2
        text = record.exception[: kept // 2] + _CUT + record.exception[-kept // 2 :]
        line = MARK + msgspec.json.encode(msgspec.structs.replace(record, exception=text))
    return line, kept < len(record.exception)


def decoded(line: bytes) -> Optional[ErrorRecord]:
    """Decode the report in a line; return None if the line is not a valid report."""
    if not line.startswith(MARK):
        return None
    try:
        return msgspec.json.decode(line[len(MARK) :], type=ErrorRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


#: Log level -> syslog(3) priority.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def is_journal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if a stream is connected to systemd's journal: $JOURNAL_STREAM gives its device and inode."""
    named = environ.get("JOURNAL_STREAM")
    if not named or stream is None:
        return False
    try:
        info = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or not a file
        return False
    return named == f"{info.st_dev}:{info.st_ino}"


def with_priority(text: str, level: str) -> str:
    """Prepend the priority of a log level to each line of a text."""
    prefix = f"<{_PRIORITIES.get(level, 6)}>"
    return "\n".join(f"{prefix}{line}" for line in text.split("\n"))


def print_error(text: str) -> None:
    """Write an error to standard error; prepend the priority of errors if standard error is systemd's journal."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):  # the reader has closed it
        marked = with_priority(text, "error") if is_journal(sys.stderr) else text
        sys.stderr.write(f"{marked}\n")
        sys.stderr.flush()
