"""Errors of requests to typed functions, as RFC 9457 problem details."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pytriton._protocol.http_statuses import reason_of
from pytriton.exceptions import HTTPError

__all__ = ["FieldError", "Problem", "field_errors", "pointer_of", "problem_document"]

#: Maximum size in bytes. The document is also sent as a gRPC status message, which is a header.
_MAX_DOCUMENT = 2000
#: The end of msgspec's error texts: "... - at `$.items[0].price`", "... - at `key` in `$.items`".
_AT = re.compile(r" - at `(?:key` in `)?(\$[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


class FieldError(msgspec.Struct, frozen=True):
    """One invalid part of a request body.

    Args:
        detail: what was expected
        pointer: where, as a JSON pointer in URI fragment form (RFC 6901): "#/items/0/price"
    """

    detail: str
    pointer: str


class Problem(HTTPError):
    """The error response to one request, with the invalid fields of its body.

    Args:
        status: HTTP status
        detail: what was wrong, for the client
        errors: the invalid fields
    """

    def __init__(self, status: int, detail: str = "", errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(status, detail)
        self.errors = errors

    def __str__(self) -> str:
        """Return the error in one line, for clients of Triton's protocols and for logs."""
        where = "; ".join(f"{one.pointer}: {one.detail}" for one in self.errors)
        return f"{self.message}: {where}" if where else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.message, self.errors)


def problem_document(error: HTTPError) -> str:
    """Return an error as problem details in JSON. The first member must be the status, which the frontend reads."""
    content: dict[str, Any] = {"status": error.status, "title": reason_of(error.status)}
    if error.message:
        content["detail"] = error.message[: _MAX_DOCUMENT // 4]
    errors = list(getattr(error, "errors", ()))
    while errors:
        text = msgspec.json.encode({**content, "errors": errors})
        if len(text) <= _MAX_DOCUMENT:
            return text.decode()
        del errors[len(errors) // 2 :]
    return msgspec.json.encode(content).decode()


def pointer_of(*steps: Any) -> str:
    """Return a pointer to a member of the body, built from the names and indices that lead to it."""
    escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return "#" + "".join(f"/{step}" for step in escaped)


def field_errors(error: Exception, *prefix: Any) -> tuple[FieldError, ...]:
    """Return the invalid fields that a validation error from msgspec or pydantic reports.

    Args:
        error: the exception
        prefix: names and indices that lead to the validated value in the body
    """
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic.ValidationError
        found = details(include_url=False, include_context=False, include_input=False)
        return tuple(FieldError(one["msg"], pointer_of(*prefix, *one["loc"])) for one in found)
    text = str(error)
    at = _AT.search(text)
    if at is None:
        return (FieldError(text, pointer_of(*prefix)),)
    steps = [name or number for name, number in _STEP.findall(at.group(1)) if name or number]
    return (FieldError(text[: at.start()], pointer_of(*prefix, *steps)),)
