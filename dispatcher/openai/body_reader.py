"""Bodies of requests: read in time, no larger than allowed, and not more at once than there is memory for."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import web

from pytriton.dispatcher.http_server.decompression import Decompressor, EncodingError
from pytriton.dispatcher.openai.state import Answering
from pytriton.openai.errors import APIError

if sys.version_info >= (3, 11):
    from asyncio import timeout  # novermin
else:
    from async_timeout import timeout

__all__ = ["Bodies", "within"]

_T = TypeVar("_T")

#: All bodies together may be as large as so many of the largest.
_AT_ONCE = 4


class Bodies:
    """The bodies that are held at the moment: a body counts until its request has been answered."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._all = 0

    async def read(self, request: web.BaseRequest, limits: Answering) -> bytes:
        """Return the body of a request.

        Raises:
            APIError: it does not come, is too large, or there is no room for it now
        """
        if (request.content_length or 0) > limits.max_body_size:
            raise _too_large(limits)
        try:
            return await within(self._read(request, limits), limits.body_s)
        except asyncio.TimeoutError:
            raise APIError("The body did not come in time.", 408, code="timeout") from None
        except EncodingError as error:
            raise APIError(str(error), 415, code="unsupported_encoding") from None
        except (web.RequestPayloadError, zlib.error):
            raise APIError(
                "The body cannot be read: its framing or compression is broken.",
                code="invalid_body",
            ) from None

    async def _read(self, request: web.BaseRequest, limits: Answering) -> bytes:
        data = bytearray()
        inflating = Decompressor(request.headers.get("Content-Encoding", ""))
        while chunk := await request.content.readany():
            for piece in inflating.pieces(chunk):
                self._hold(request, data, piece, limits)
                if not inflating.is_plain:
                    await asyncio.sleep(
                        0
                    )  # a small chunk may have many pieces: others have their turn
        inflating.end()
        return bytes(data)

    def _hold(
        self, request: web.BaseRequest, data: bytearray, piece: bytes, limits: Answering
    ) -> None:
        data += piece
        if len(data) > limits.max_body_size:
            raise _too_large(limits)
        if self._all + len(piece) > _AT_ONCE * limits.max_body_size:
            raise APIError(
                "The bodies of other requests take all the room there is.", 429, type="overloaded",
                code="overloaded", retry_after_s=1.0,
            )  # fmt: skip
        self._all += len(piece)
        self._held[id(request)] = len(data)

    def release(self, request: web.BaseRequest) -> None:
        """Forget the body of a request that has been answered."""
        self._all -= self._held.pop(id(request), 0)


async def within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    """Wait for something, in the same task; 0 is no limit.

    `wait_for` of Python before 3.12 has a task of its own for it, and a cycle of references when that fails: what its
    frames hold, such as the body of a request, would stay until the garbage is collected.

    Raises:
        asyncio.TimeoutError: it takes longer
    """
    async with timeout(timeout_s or None):
        return await awaitable


def _too_large(limits: Answering) -> APIError:
    return APIError(
        f"The body is larger than the {limits.max_body_size} bytes that this server takes.", 413,
        code="request_too_large",
    )  # fmt: skip
