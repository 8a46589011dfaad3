"""Decompresses request bodies in pieces, so that the reader can stop as soon as a limit is exceeded.

The servers disable aiohttp's own decompression (`auto_decompress=False`), which would run before the client is
authorized.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Decompressor", "EncodingError"]

#: Maximum size of a decompressed piece.
_PIECE = 1 << 18
#: Maximum number of gzip members. Each takes only a few bytes to send, but much more work to decompress.
_MAX_STREAMS = 1_000
_UNREAD = frozenset({"br", "zstd"})
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class EncodingError(Exception):
    """Raised for a body whose Content-Encoding is not supported."""


class Decompressor:
    """Decompressor for the body of one request. Unknown encodings are passed through unchanged.

    Args:
        encoding: value of the Content-Encoding header

    Raises:
        EncodingError: the encoding is known but not supported
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding in _UNREAD:
            raise EncodingError(
                f"Content-Encoding: {self._encoding} is not supported; use gzip or deflate."
            )
        self.is_plain = self._encoding not in ("gzip", "deflate")
        self._stream: Any = None
        self._streams = 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next bytes of the body, piece by piece; raise zlib.error if they are invalid."""
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
        """Check that the body is complete; raise zlib.error if it is truncated."""
        if self._stream is not None and not self._stream.eof:
            raise zlib.error("the body is truncated")

    def _begin(self, first: int) -> None:
        self._streams += 1
        if self._streams > _MAX_STREAMS:
            raise zlib.error("the body has too many compressed streams")
        # Some clients send a raw deflate stream without the zlib header, which names the method (8).
        deflate = _ZLIB if first & 0xF == 8 else _RAW
        self._stream = zlib.decompressobj(_GZIP if self._encoding == "gzip" else deflate)
