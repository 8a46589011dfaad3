"""The exception for the failure of a whole call, and the error of a single request."""

from __future__ import annotations

import enum

__all__ = ["TritonError", "TritonModelException"]


class TritonModelException(Exception):
    """Raise this in `initialize`, `execute` or `finalize`.

    The message is sent to the client. In `initialize`, it is reported as the reason why loading failed.
    """


class _ErrorCode(enum.IntEnum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """The error of a single request: its message and status code.

    Example:
        >>> error = TritonError("no such user", TritonError.NOT_FOUND)
        >>> error.message(), error.code().name
        ('no such user', 'NOT_FOUND')
    """

    UNKNOWN = _ErrorCode.UNKNOWN
    INTERNAL = _ErrorCode.INTERNAL
    NOT_FOUND = _ErrorCode.NOT_FOUND
    INVALID_ARG = _ErrorCode.INVALID_ARG
    UNAVAILABLE = _ErrorCode.UNAVAILABLE
    UNSUPPORTED = _ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = _ErrorCode.ALREADY_EXISTS
    CANCELLED = _ErrorCode.CANCELLED

    def __init__(self, message: str, code: _ErrorCode = _ErrorCode.INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(
                f"TritonError requires a string as its message, got {type(message).__name__}"
            )
        if not isinstance(code, int):
            raise TypeError(
                f"TritonError requires a code such as TritonError.NOT_FOUND, got {code!r:.80}"
            )
        self._message = message
        self._code = _ErrorCode(code)

    def message(self) -> str:
        """Return the message."""
        return self._message

    def code(self) -> _ErrorCode:
        """Return the status code."""
        return self._code
