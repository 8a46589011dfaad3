"""Bodies of requests that come compressed: inflated piece by piece, so that whoever reads can stop in time.

The servers let aiohttp inflate nothing (`auto_decompress=False`): it would do so before anybody has looked at who asks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Decompressor", "EncodingError"]

#: What a piece has at most, whatever it was made of.
_PIECE = 1 << 18
#: gzip may be put together of any number of streams; each costs a few bytes to send, and more to begin.
_MOST_STREAMS = 1_000
_UNREAD = frozenset({"br", "zstd"})
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class EncodingError(Exception):
    """The body is compressed in a way that is not understood."""


class Decompressor:
    """The body of one request. What is neither gzip nor deflate is passed on as it comes.

    Args:
        encoding: the header Content-Encoding

    Raises:
        EncodingError: it is known, and not understood
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding in _UNREAD:
            raise EncodingError(
                f"Content-Encoding: {self._encoding} is not understood; gzip and deflate are."
            )
        self.is_plain = self._encoding not in ("gzip", "deflate")
        self._stream: Any = None
        self._streams = 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of the body stand for; raises zlib.error where they stand for nothing."""
        if self.is_plain:
            yield data
            return
        while data:
            if self._stream is None or self._stream.eof:
                self._begin(data[0])
            piece = self._stream.decompress(data, _PIECE)
            data = self._stream.unused_data or self._stream.unconsumed_tail
            if piece:
                yield piece

    def end(self) -> None:
        """Say that this is all of it; raises zlib.error where it is cut off."""
        if self._stream is not None and not self._stream.eof:
            raise zlib.error("the body is cut off")

    def _begin(self, first: int) -> None:
        self._streams += 1
        if self._streams > _MOST_STREAMS:
            raise zlib.error("the body has too many streams")
        # Some clients send the bare stream, without the header that names the method (8).
        deflate = _ZLIB if first & 0xF == 8 else _RAW
        self._stream = zlib.decompressobj(_GZIP if self._encoding == "gzip" else deflate)
