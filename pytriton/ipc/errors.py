"""The errors that travel between processes: data on the wire, exceptions again at the far edge."""

from __future__ import annotations

import enum


class ErrorKind(str, enum.Enum):
    """What a Failure is about; the client library maps each to an exception class."""

    #: The request itself is wrong (bad name, bad configuration, wrong protocol version).
    INVALID = "invalid"
    #: A model of that name is registered already.
    EXISTS = "exists"
    #: No model of that name is registered.
    NOT_FOUND = "not_found"
    #: The callable could not be loaded or tritonserver refused the model.
    LOAD_FAILED = "load_failed"
    #: The daemon is stopping or tritonserver is not up; try again later.
    UNAVAILABLE = "unavailable"
    #: A fault of ours.
    INTERNAL = "internal"


def sendable(text: str) -> str:
    """Return a text that can be sent: what is no Unicode (file names that are not UTF-8, say) is escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class RemoteFailure(Exception):
    """A failure to be sent to, or received from, another process.

    Attributes:
        kind: what it is about.
        text: one paragraph a user can act on.
        traceback: the traceback of the process where it went wrong, or None.
    """

    def __init__(self, kind: ErrorKind, text: str, traceback: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.traceback = traceback
