"""Errors that cross process boundaries, and error texts that are safe to send and to display."""

from __future__ import annotations

import enum
import reprlib

from pytriton._protocol.messages import sendable


class ErrorKind(str, enum.Enum):
    """The kinds of Failure; the client library maps each to an exception class."""

    #: The request itself is wrong (bad name, bad configuration, wrong protocol version).
    INVALID = "invalid"
    #: A model of that name is already registered.
    EXISTS = "exists"
    #: No model of that name is registered.
    NOT_FOUND = "not_found"
    #: The callable could not be loaded or tritonserver refused the model.
    LOAD_FAILED = "load_failed"
    #: The daemon is stopping or tritonserver is not up; try again later.
    UNAVAILABLE = "unavailable"
    #: An internal error.
    INTERNAL = "internal"


#: Maximum size in bytes of an error sent to a client over gRPC: implementations accept 8 KB including gRPC's own
#: headers.
CLIENT_BYTES = 7_500
#: Of these, bytes reserved for the request id; and the bytes left for the text.
_ID_BYTES = 300
TEXT_BYTES = CLIENT_BYTES - _ID_BYTES
#: Maximum number of exceptions in a group that are examined.
_MAX_MEMBERS = 16
_CUT = " [… {} more characters: the model's log has the full text]"


def members(error: BaseException) -> list[BaseException]:
    """Return the leaf exceptions of an exception group and its nested groups; for any other exception, just that one.

    Supports the groups of Python 3.11 and later, and of the backport.
    """
    if not any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__):
        return [error]
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting and len(found) < _MAX_MEMBERS:
        one = waiting.pop()
        inner = getattr(one, "exceptions", None)
        if isinstance(inner, tuple) and inner:
            waiting += reversed(inner)
        else:
            found.append(one)
    return found


def described(error: BaseException) -> str:
    """Return an exception's type and full text, even if its `__str__` raises.

    A group with a single member, as raised by `asyncio.TaskGroup`, is described as that member.
    """
    found = members(error)
    if len(found) > 1:
        return f"{type(error).__name__}: " + "; ".join([described(one) for one in found])
    (error,) = found
    try:
        return sendable(str.__add__(f"{type(error).__name__}: ", str(error)))
    except Exception as another:
        return (
            f"{type(error).__name__}: (no text available: __str__ raised {type(another).__name__})"
        )


def shown(value: object, most: int = 80) -> str:
    """Return a value's type and the start of its `repr` on one line, even if the `repr` is huge or raises."""
    text = " ".join(_shown.repr(value).split())
    return f"{type(value).__name__} {text[:most]}{'…' if len(text) > most else ''}"


_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 400
_shown.maxlist = _shown.maxtuple = _shown.maxdict = _shown.maxset = _shown.maxfrozenset = 20
_shown.maxdeque = _shown.maxarray = 20


def triton_code(status: int) -> str:
    """Return the name of Triton's error code that is closest to an HTTP status from 400 to 599."""
    codes = {404: "NOT_FOUND", 409: "ALREADY_EXISTS", 501: "UNSUPPORTED", 503: "UNAVAILABLE"}
    return codes.get(status, "INVALID_ARG" if status < 500 else "INTERNAL")


def for_client(text: str) -> str:
    """Shorten an error text to the part that fits into a gRPC response. The caller logs the full text.

    gRPC sends the text in a header, where each byte that is not printable ASCII takes three. Longer headers
    abort the request with "Stream removed" or another implementation-specific error.
    """
    data = str.encode(text, "utf-8", "backslashreplace")
    if 3 * len(data) <= TEXT_BYTES or _size(data) <= TEXT_BYTES:
        return data.decode("utf-8")
    left = TEXT_BYTES - 3 * len(_CUT.encode()) - 3 * len(str(len(text)))
    end = 0
    while left >= _cost(data[end]):
        left -= _cost(data[end])
        end += 1
    kept = data[:end].decode("utf-8", "ignore")
    return kept + _CUT.format(len(text) - len(kept))


def with_id(text: str, request_id: str) -> str:
    """Append a request id, if there is one, to an error text that `for_client` has shortened."""
    end = f" [request id: {request_id}]"
    return f"{text}{end}" if request_id and _size(end.encode()) <= _ID_BYTES else text


def _size(data: bytes) -> int:
    return len(data) if len(data) > CLIENT_BYTES else sum(map(_cost, data))


def _cost(byte: int) -> int:
    return 1 if 0x20 <= byte < 0x7F and byte != ord("%") else 3


class RemoteFailure(Exception):
    """A failure sent to, or received from, another process.

    Attributes:
        kind: the category of the failure.
        text: one paragraph a user can act on.
        traceback: the traceback from the process where the error occurred, or None.
    """

    def __init__(self, kind: ErrorKind, text: str, traceback: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.traceback = traceback
