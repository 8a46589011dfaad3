"""A client's connection.

What cannot be read as HTTP is answered in the API's form, too. A client that sends no more may still read its answer.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from typing import Any

from aiohttp import HttpVersion11, web

__all__ = ["Protocol"]

#: From there on, a text of aiohttp's shows what the client has sent; names of headers that it knows may stay.
_BYTES = re.compile(r"[:\s]*(?:\n|\b(?:bytearray\()?b['\"]|(?<!\w)['\"](?![A-Za-z-]+' header))")
#: The beginning of a text of its own. Of some faults, what the client has sent is all that it gives.
_SENTENCE = re.compile(r"[A-Z][\w'-]* ")


#: Sent to a client that sends no more and has got nothing of its answer: it passes over that (RFC 9110, 15.2), and the
#: kernel of one that has closed its socket answers with a reset.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Seconds from the client's end to the first check whether it has gone, and from one to the next.
_FIRST_CHECK_S, _CHECK_INTERVAL_S = 0.01, 0.5


class Protocol(web.RequestHandler):
    """The server's end of a connection.

    Args:
        answer: makes the answer to what no route has seen: its status, and what is wrong in one line, or ""

    Attributes:
        probe: sends the client something it passes over, in the midst of a stream; None while there is none
    """

    __slots__ = ("_answer", "_end_check", "probe")

    def __init__(
        self, server: web.Server, answer: Callable[[int, str], web.Response], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._answer = answer
        self.probe: Callable[[], None] | None = None
        self._end_check: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Answer what has come before the client's end; if that is nothing, close the connection, as usual.

        Whether the client has closed its socket, or only its sending half (as `nc -N` does), cannot be told apart
        before something is sent.
        """
        if self._is_idle():
            return None
        self._end_check = self._loop.call_later(_FIRST_CHECK_S, self._check_after_end, True)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel what is under way for the client."""
        if self._end_check is not None:
            self._end_check.cancel()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self._waiter is not None and not self._waiter.done() and not self._messages

    def _check_after_end(self, is_first: bool) -> None:
        """End the connection if the client has gone, or its last request is cut off, or all has been answered.

        After the client's end the loop does not watch the socket any more.
        """
        transport, request = self.transport, self._current_request
        if transport is None or transport.is_closing():
            return
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), 0)
        is_cut_off = request is not None and not request.content.is_eof()
        if poll.poll(0) or is_cut_off:
            transport.abort()
            return
        if self._is_idle():
            transport.close()
            return
        if not self._messages:
            self.close()  # after what is being answered
        if is_first and request is not None and request.version >= HttpVersion11:
            if request.writer.output_size == 0:
                transport.write(_CONTINUE)
            elif self.probe is not None:
                self.probe()
        self._end_check = self._loop.call_later(_CHECK_INTERVAL_S, self._check_after_end, False)

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
