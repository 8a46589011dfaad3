"""Formats lines for systemd's journal: each begins with its priority, such as `<3>` for an error (sd-daemon(3)).

`journalctl -p err` then shows errors only, and monitoring that reads the journal can identify them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO

#: Log level -> syslog(3) priority.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def is_journal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if a stream is connected to the journal: $JOURNAL_STREAM names its device and inode."""
    named = environ.get("JOURNAL_STREAM")
    if not named or stream is None:
        return False
    try:
        info = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or not a file
        return False
    return named == f"{info.st_dev}:{info.st_ino}"


def with_priority(text: str, level: str) -> str:
    """Return a text with the priority prepended to each line."""
    prefix = f"<{_PRIORITIES.get(level, 6)}>"
    return "\n".join(f"{prefix}{line}" for line in text.split("\n"))


def print_error(text: str) -> None:
    """Write an error to standard error, with the error priority if that is the journal."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):  # the reader has closed it
        marked = with_priority(text, "error") if is_journal(sys.stderr) else text
        sys.stderr.write(f"{marked}\n")
        sys.stderr.flush()
