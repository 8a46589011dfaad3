"""Reads request bodies with limits on their time, their size, and the memory of all of them."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import web

from pytriton.dispatcher.http_server.decompression import Decompressor, EncodingError
from pytriton.dispatcher.openai.state import ApiSettings
from pytriton.openai.errors import APIError

if sys.version_info >= (3, 11):
    from asyncio import timeout  # novermin
else:
    from async_timeout import timeout

__all__ = ["Bodies", "within"]

_T = TypeVar("_T")

#: Limit of all bodies together, as a multiple of the maximum size of one.
_AT_ONCE = 4


class Bodies:
    """The bodies currently in memory; a body counts until its request has been answered."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._all = 0

    async def read(self, request: web.BaseRequest, limits: ApiSettings) -> bytes:
        """Return the body of a request.

        Raises:
            APIError: it does not arrive in time, is too large, or exceeds the memory for all bodies
        """
        if (request.content_length or 0) > limits.max_body_size:
            raise _too_large(limits)
        try:
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
                self._hold(request, data, piece, limits)
                if not inflating.is_plain:
                    await asyncio.sleep(
                        0
                    )  # yield to other tasks: a small chunk may have many pieces
        inflating.end()
        return bytes(data)

    def _hold(
        self, request: web.BaseRequest, data: bytearray, piece: bytes, limits: ApiSettings
    ) -> None:
        data += piece
        if len(data) > limits.max_body_size:
            raise _too_large(limits)
        if self._all + len(piece) > _AT_ONCE * limits.max_body_size:
            raise APIError(
                "Too many large requests are in progress. Retry later.", 429, type="overloaded",
                code="overloaded", retry_after_s=1.0,
            )  # fmt: skip
        self._all += len(piece)
        self._held[id(request)] = len(data)

    def release(self, request: web.BaseRequest) -> None:
        """Release the body of a request that has been answered."""
        self._all -= self._held.pop(id(request), 0)


async def within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    """Await something in the same task with a time limit; 0 means no limit.

    Before Python 3.12, `wait_for` uses a separate task and, on failure, leaves a reference cycle: what its frames hold,
    such as a request's body, would stay until garbage collection.

    Raises:
        asyncio.TimeoutError: the limit is exceeded
    """
    async with timeout(timeout_s or None):
        return await awaitable


def _too_large(limits: ApiSettings) -> APIError:
    return APIError(
        f"The body is larger than the {limits.max_body_size} bytes that this server accepts.", 413,
        code="request_too_large",
    )  # fmt: skip
