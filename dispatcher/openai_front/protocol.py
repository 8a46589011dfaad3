"""A client's connection, on which what cannot be read as HTTP is answered in the API's form, too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from aiohttp import web

__all__ = ["Protocol"]

#: From there on, a text of aiohttp's shows what the client has sent; names of headers that it knows may stay.
_BYTES = re.compile(r"[:\s]*(?:\n|\b(?:bytearray\()?b['\"]|(?<!\w)['\"](?![A-Za-z-]+' header))")
#: The beginning of a text of its own. Of some faults, what the client has sent is all that it gives.
_SENTENCE = re.compile(r"[A-Z][\w'-]* ")


class Protocol(web.RequestHandler):
    """The server's end of a connection.

    Args:
        answer: makes the answer to what no route has seen: its status, and what is wrong in one line, or ""
    """

    __slots__ = ("_answer",)

    def __init__(
        self, server: web.Server, answer: Callable[[int, str], web.Response], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._answer = answer

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log what aiohttp logs, and answer in another form.

        Raises:
            ConnectionError: a part of an answer has been sent already
        """
        super().handle_error(request, status, exc, message)
        answer = self._answer(status, _without_bytes(message or ""))
        answer.force_close()
        return answer


def _without_bytes(message: str) -> str:
    """Return what is wrong in aiohttp's words, without those of the client; "" where there are no others."""
    what, *_ = _BYTES.split(message, maxsplit=1)
    return what.rstrip(".: ") if _SENTENCE.match(what) else ""
