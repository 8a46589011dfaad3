"""The errors that travel between processes: data on the wire, exceptions again at the far edge."""

from __future__ import annotations

import enum
import reprlib


class ErrorKind(str, enum.Enum):
    """The kinds of Failure; the client library maps each to an exception class."""

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


#: Bytes of an error that a client gets, as gRPC sends them: with what it adds, its implementations take 8 KB.
CLIENT_BYTES = 7_500
#: Bytes of these that are left for the id of the request, and for the text.
_ID_BYTES = 300
TEXT_BYTES = CLIENT_BYTES - _ID_BYTES
#: Exceptions of a group that are looked at.
_MOST_MEMBERS = 16
_CUT = " [… {} characters more: all of it is in the model's log]"


def sendable(text: str) -> str:
    """Return a text that can be sent: what is no Unicode (file names that are not UTF-8, say) is escaped."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")


def members(error: BaseException) -> list[BaseException]:
    """Return the exceptions that a group consists of, groups in it resolved; of any other exception, itself.

    Groups are those of Python 3.11 and later, and of its backport.
    """
    if not any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__):
        return [error]
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting and len(found) < _MOST_MEMBERS:
        one = waiting.pop()
        inner = getattr(one, "exceptions", None)
        if isinstance(inner, tuple) and inner:
            waiting += reversed(inner)
        else:
            found.append(one)
    return found


def described(error: BaseException) -> str:
    """Return an exception's type and text, of any length; what cannot be had of it is said.

    A group of one, as `asyncio.TaskGroup` makes it, is described as that one. `__str__` is the code of whoever
    wrote the exception, and may raise like any other.
    """
    found = members(error)
    if len(found) > 1:
        return f"{type(error).__name__}: " + "; ".join([described(one) for one in found])
    (error,) = found
    try:
        return sendable(str.__add__(f"{type(error).__name__}: ", str(error)))
    except Exception as another:
        return f"{type(error).__name__}: (its text cannot be had: __str__ raised {type(another).__name__})"


def shown(value: object, most: int = 80) -> str:
    """Return a value's type and, in one line, the beginning of its `repr`, which may raise, or be huge."""
    text = " ".join(_shown.repr(value).split())
    return f"{type(value).__name__} {text[:most]}{'…' if len(text) > most else ''}"


_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 400
_shown.maxlist = _shown.maxtuple = _shown.maxdict = _shown.maxset = _shown.maxfrozenset = 20
_shown.maxdeque = _shown.maxarray = 20


def for_client(text: str) -> str:
    """Return so much of an error's text as reaches a client over gRPC; who cuts it has it in the log.

    gRPC sends it in a header, where all but printable ASCII takes three bytes for one. Longer headers
    end the request with "Stream removed", or whatever the client's implementation says then.
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
    """Return an error's text that has been cut for a client, with the id that logs have of the request, if any."""
    end = f" [request id: {request_id}]"
    return f"{text}{end}" if request_id and _size(end.encode()) <= _ID_BYTES else text


def _size(data: bytes) -> int:
    return len(data) if len(data) > CLIENT_BYTES else sum(map(_cost, data))


def _cost(byte: int) -> int:
    return 1 if 0x20 <= byte < 0x7F and byte != ord("%") else 3


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
