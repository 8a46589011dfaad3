"""`APIError`: an error of OpenAI's API, with an HTTP status and a body with message, type, param and code."""

from __future__ import annotations

from typing import Any, Optional

import msgspec

__all__ = ["APIError"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
#: Maximum retry delay sent to a client: a day.
_MAX_DELAY_S = 86_400.0


class APIError(Exception):
    """Raise this in a callable to set the HTTP status and the error body that the client gets.

    Args:
        message: message for users
        status: HTTP status, at least 400
        type: OpenAI's error type; default: the one that corresponds to the status
        param: name of the invalid field of the request
        code: machine-readable code, such as "context_length_exceeded"
        retry_after_s: delay after which the client may retry, in seconds

    Example:
        >>> APIError("The prompt has 9,000 tokens.", code="context_length_exceeded").body()["error"]["code"]
        'context_length_exceeded'
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.message = str(message)  # may be an exception, whose message is used
        super().__init__(self.message)
        self.status = int(status) if 400 <= status <= 599 else 500
        self.type = str(type or _type_of(self.status))
        self.param = _text_or_none(param)
        self.code = _text_or_none(code)  # some servers use numbers
        self.retry_after_s = _seconds_or_none(retry_after_s)

    def __reduce__(self) -> Any:
        return _again, (msgspec.structs.asdict(self.wire()),)

    def body(self) -> dict[str, Any]:
        """Return the body of the HTTP response."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def wire(self) -> WireError:
        """Convert the error to the form that a worker sends to the daemon."""
        return WireError(
            self.message, self.status, self.type, self.param, self.code, self.retry_after_s
        )


class WireError(msgspec.Struct, frozen=True):
    """An `APIError` in the form that a worker sends to the daemon."""

    message: str
    status: int = 500
    type: str = "server_error"
    param: Optional[str] = None
    code: Optional[str] = None
    retry_after_s: Optional[float] = None

    def error(self) -> APIError:
        """Convert this back to an `APIError`."""
        return _again(msgspec.structs.asdict(self))


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _seconds_or_none(value: Any) -> float | None:
    """Return a number of seconds that is valid in a header; None for invalid values from other servers."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds <= _MAX_DELAY_S else None


def _again(fields: dict[str, Any]) -> APIError:
    return APIError(fields.pop("message"), fields.pop("status"), **fields)


def _type_of(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
