"""A client's connection, on which what cannot be read as HTTP is answered in the API's form, too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from aiohttp import web

__all__ = ["Protocol"]

#: From there on, a text of aiohttp's shows what the client has sent.
_BYTES = re.compile(r"[:\s]*(?:\n|\bb?['\"]|['\"])")


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
        what, *_ = _BYTES.split(message or "", maxsplit=1)
        answer = self._answer(status, what)
        answer.force_close()
        return answer
