"""Compressed bodies: their decompressed contents, and what is refused."""

from __future__ import annotations

import gzip
import zlib

import pytest

from pytriton.dispatcher.http_server.decompression import Decompressor


def inflated(encoding: str, *chunks: bytes) -> bytes:
    inflating = Decompressor(encoding)
    pieces = [piece for chunk in chunks for piece in inflating.pieces(chunk)]
    inflating.end()
    assert max(map(len, pieces), default=0) <= 1 << 18
    return b"".join(pieces)


def test_bodies_are_inflated_piece_by_piece() -> None:
    data = bytes(3 << 20) + b"end"
    bare = zlib.compressobj(wbits=-15)
    raw = bare.compress(b"text") + bare.flush()
    packed = gzip.compress(data)
    assert inflated("gzip", packed) == data
    assert inflated("GZIP", *(bytes([byte]) for byte in packed)) == data
    assert inflated("gzip", packed + gzip.compress(b"more")[:5], gzip.compress(b"more")[5:]) == (
        data + b"more"
    )
    assert inflated("deflate", zlib.compress(data)) == data
    assert inflated("deflate", raw) == b"text"
    assert inflated("identity", raw) == raw
    assert inflated("gzip") == b""


@pytest.mark.parametrize(
    "body", [b"no gzip", gzip.compress(b"x" * 99)[:-9], gzip.compress(b"") * 1_001],
    ids=["nonsense", "cut off", "many compressed streams"],
)  # fmt: skip
def test_corrupt_compressed_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(zlib.error):
        inflated("gzip", body)
