"""A client's connection to the frontend: detects disconnects, reads bodies within limits, writes JSON."""

from __future__ import annotations

import asyncio
import re
import select
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.http_server.decompression import Decompressor, EncodingError
from pytriton.dispatcher.openai.state import ApiSettings
from pytriton.openai.errors import APIError

__all__ = ["ClientConnection", "RequestBodies", "json_response"]

#: Matches where client data starts in aiohttp's messages, which must not be logged. Names of known headers may stay.
_BYTES = re.compile(r"[:\s]*(?:\n|\b(?:bytearray\()?b['\"]|(?<!\w)['\"](?![A-Za-z-]+' header))")
#: Matches the start of aiohttp's own text. Some messages consist only of client data.
_SENTENCE = re.compile(r"[A-Z][\w'-]* ")
#: Probe for a client that has closed its sending half before the response has started. A client that still reads
#: ignores it (RFC 9110, 15.2); a closed socket answers with a reset.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Delay from the client's EOF to the first check of whether it has disconnected, and interval between further checks.
_FIRST_CHECK_S, _CHECK_INTERVAL_S = 0.01, 0.5
#: Limit on the size of all bodies together, as a multiple of the maximum size of one.
_MAX_FULL_BODIES = 4


class ClientConnection(web.RequestHandler):
    """Server side of a client's connection.

    Args:
        answer: returns the response to an invalid request, given its status and a one-line description or ""
    Attributes:
        probe: during a stream, a function that sends data which the client ignores; otherwise None
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
        """Keep the connection open until the requests that arrived before EOF are answered. If there are none, close
        it.

        Until something is sent, the server cannot know whether the client closed its socket or only its sending half
        (as `nc -N` does).
        """
        if self._is_idle():
            return None
        self._end_check = self._loop.call_later(_FIRST_CHECK_S, self._check_after_end, True)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the pending check and the requests in progress."""
        if self._end_check is not None:
            self._end_check.cancel()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self._waiter is not None and not self._waiter.done() and not self._messages

    def _check_after_end(self, is_first: bool) -> None:
        """Close the connection if the client has disconnected, the last request is truncated, or nothing is pending.

        This check is needed because the event loop stops watching a socket after EOF.
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
            self.close()  # after the current answer
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
        """Log an error as aiohttp does, and return it in the API's format.

        Raises:
            ConnectionError: part of the response has been sent already
        """
        super().handle_error(request, status, exc, message)
        answer = self._answer(status, _without_bytes(message or ""))
        answer.force_close()
        return answer


def _without_bytes(message: str) -> str:
    """Return aiohttp's error message without the client data in it; "" if nothing else is left."""
    what, *_ = _BYTES.split(message, maxsplit=1)
    return what.rstrip(".: ") if _SENTENCE.match(what) else ""


class RequestBodies:
    """Request bodies currently in memory. Their total size is limited. A body counts until its request has been
    answered.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._total = 0

    async def read(self, request: web.BaseRequest, limits: ApiSettings) -> bytes:
        """Read and decompress the body of a request.

        Raises:
            APIError: the body does not arrive in time, is too large, or exceeds the memory for all bodies
        """
        if (request.content_length or 0) > limits.max_body_size:
            raise _too_large(limits)
        try:
            if request.content.is_eof():  # the body arrived with the headers
                return await self._read(request, limits)
            return await within(self._read(request, limits), limits.body_s)
        except asyncio.TimeoutError:
            raise APIError("The body did not arrive in time.", 408, code="timeout") from None
        except EncodingError as error:
            raise APIError(str(error), 415, code="unsupported_encoding") from None
        except (web.RequestPayloadError, zlib.error):
            raise APIError(
                "Cannot read the body: its framing or compression is invalid.",
                code="invalid_body",
            ) from None

    async def _read(self, request: web.BaseRequest, limits: ApiSettings) -> bytes:
        data = bytearray()
        inflating = Decompressor(request.headers.get("Content-Encoding", ""))
        while chunk := await request.content.readany():
            for piece in inflating.pieces(chunk):
                self._add(request, data, piece, limits)
                if not inflating.is_plain:
                    # Yield to other tasks: a small chunk may have many pieces.
                    await asyncio.sleep(0)
        inflating.end()
        return bytes(data)

    def _add(
        self, request: web.BaseRequest, data: bytearray, piece: bytes, limits: ApiSettings
    ) -> None:
        data += piece
        if len(data) > limits.max_body_size:
            raise _too_large(limits)
        if self._total + len(piece) > _MAX_FULL_BODIES * limits.max_body_size:
            raise APIError(
                "Too many large requests are in progress. Retry later.", 429, type="overloaded",
                code="overloaded", retry_after_s=1.0,
            )  # fmt: skip
        self._total += len(piece)
        self._sizes[id(request)] = len(data)

    def release(self, request: web.BaseRequest) -> None:
        """Stop counting the body of a request that has been answered."""
        self._total -= self._sizes.pop(id(request), 0)


def _too_large(limits: ApiSettings) -> APIError:
    return APIError(
        f"The body is larger than the {limits.max_body_size} bytes that this server accepts.", 413,
        code="request_too_large",
    )  # fmt: skip


def json_response(
    body: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return a response with `body` encoded as JSON."""
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers=headers,
    )
