"""base/: UTF-8, names, compression."""

from __future__ import annotations

import gzip
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frontend.driver import Driver, Refused

GZIP, DEFLATE = 1, 2


def _valid_prefix(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(text)


@given(
    st.one_of(
        st.binary(),
        st.text().map(str.encode),
        st.tuples(st.text(), st.binary()).map(lambda t: t[0].encode() + t[1]),
    )
)
def test_utf8_validation_matches_python(driver: Driver, text: bytes) -> None:
    assert int(driver.ask("u", text)) == _valid_prefix(text)


def test_utf8_validation_of_every_first_byte(driver: Driver) -> None:
    """With second bytes on both sides of each limit that a first byte can set."""
    for first in range(0x80, 0x100):
        for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF):
            text = b"aaaaaaaa" + bytes([first, second]) + b"\x80\x80"
            assert int(driver.ask("u", text)) == _valid_prefix(text), text


@given(st.binary())
def test_repaired_text_is_valid_and_keeps_its_content(driver: Driver, text: bytes) -> None:
    mended = driver.ask("m", text)
    mended.decode()
    assert mended[: _valid_prefix(text)] == text[: _valid_prefix(text)]
    assert len(text) - 3 <= len(mended) <= len(text)


@pytest.mark.parametrize("piece", [1, 3, 8, 100])
@pytest.mark.parametrize(
    ("size", "digest"),
    [(0, "a3817f04ba25a8e66df67214c7550293"), (63, "5150d1772f50834a503e069a973fbd7c")],
)
def test_the_digest_is_siphash_2_4_128(driver: Driver, size: int, digest: str, piece: int) -> None:
    """Source of the values: the reference implementation's vectors of SipHash-2-4-128."""
    said = driver.ask("g", struct.pack("<I", piece) + bytes(range(size)))
    assert said.hex() == digest


def test_a_name_table_behaves_like_a_dictionary(driver: Driver) -> None:
    rng = random.Random(1)
    kept: dict[bytes, int] = {}
    question, expected, value = b"", [], 0
    for _ in range(5000):
        name = b"name%d" % rng.randrange(300)
        step = rng.choice("+-?")
        question += step.encode() + struct.pack("<I", len(name)) + name
        if step == "+":
            value += 1
            kept[name] = value
            expected.append(1)
        else:
            expected.append(kept.pop(name, 0) if step == "-" else kept.get(name, 0))
    said, _, left = driver.ask("n", question).partition(b"\n")
    assert [int(number) for number in said.split()] == expected
    assert dict(line.split(b"=") for line in left.split()) == {
        name: b"%d" % value for name, value in kept.items()
    }


def _expand(driver: Driver, kind: int, data: bytes, limit: int = 1 << 30) -> bytes:
    return driver.ask("x", struct.pack("<BQ", kind, limit) + data)


@given(st.binary(max_size=1 << 12), st.integers(1, 1000))
def test_compressed_data_is_expanded(driver: Driver, data: bytes, times: int) -> None:
    data = data * times
    assert _expand(driver, GZIP, gzip.compress(data)) == data
    assert _expand(driver, DEFLATE, zlib.compress(data)) == data


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 300_000))
def test_pieces_are_compressed_into_one_body(
    driver: Driver, pieces: list[bytes], more: int
) -> None:
    pieces = [*pieces, b"ab" * more]
    asked = b"".join(struct.pack("<I", len(piece)) + piece for piece in pieces)
    assert gzip.decompress(driver.ask("X", bytes([GZIP]) + asked)) == b"".join(pieces)
    assert zlib.decompress(driver.ask("X", bytes([DEFLATE]) + asked)) == b"".join(pieces)


def test_gzip_bodies_may_have_several_members(driver: Driver) -> None:
    assert _expand(driver, GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 1 << 20])
def test_the_decompression_limit_is_exact(driver: Driver, size: int) -> None:
    packed = gzip.compress(bytes(size))
    assert len(_expand(driver, GZIP, packed, size)) == size
    if size:
        with pytest.raises(Refused, match=f"413 the gzip body has more than {size - 1} bytes"):
            _expand(driver, GZIP, packed, size - 1)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (GZIP, b"", "is truncated"),
        (GZIP, gzip.compress(b"x" * 1000, mtime=0)[:-1], "is truncated"),
        (DEFLATE, zlib.compress(b"x" * 1000)[:-5], "is truncated"),
        (GZIP, b"not gzip at all, this", "not valid gzip: incorrect header check"),
        (DEFLATE, gzip.compress(b"x", mtime=0), "not valid deflate: incorrect header check"),
        (GZIP, gzip.compress(b"x", mtime=0) + b"rubbish", "not valid gzip"),
        (DEFLATE, zlib.compress(b"x") + b"y", "is followed by more data"),
    ],
)
def test_damaged_data_is_refused(driver: Driver, kind: int, data: bytes, said: str) -> None:
    with pytest.raises(Refused, match=f"400 .*{said}"):
        _expand(driver, kind, data)


_MB = 1 << 20


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([("t", _MB), ("t", _MB)], "0 1"),  # two at a time are two
        ([("t", _MB), ("g", 0), ("t", _MB)], "0 0"),
        ([("t", _MB), ("g", 0), ("t", _MB - 1000)], "0 0"),
        ([("t", _MB), ("g", 0), ("d", 0), ("t", _MB)], "0 left 0"),
        ([("t", _MB), ("g", 0), ("d", 0), ("d", 0)], "0 left empty"),
        ([("t", _MB), ("g", 0), ("d", 0), ("t", _MB), ("g", 1), ("d", 0)], "0 left 0 left"),
        # of those with room, the smallest
        ([("t", 3 * _MB), ("t", 2 * _MB), ("g", 0), ("g", 1), ("t", 2 * _MB)], "0 1 1"),
        # what is too small, or far too large, stays where it is
        ([("t", 2 * _MB), ("g", 0), ("t", 3 * _MB), ("d", 0)], "0 1 left"),
        ([("t", 9 * _MB), ("g", 0), ("t", _MB), ("d", 0)], "0 1 left"),
        # small ones are not kept, and no more than 128 MB
        ([("t", 1000), ("g", 0), ("d", 0)], "0 empty"),
        ([("t", 129 * _MB), ("g", 0), ("d", 0)], "0 empty"),
        ([("t", 70 * _MB), ("t", 70 * _MB), ("g", 0), ("g", 1), ("t", 70 * _MB), ("d", 0)], "0 1 0 empty"),
    ],
)  # fmt: skip
def test_large_blocks_are_reused(driver: Driver, history: list[tuple[str, int]], said: str) -> None:
    driver.ask("b", struct.pack("<cQcQ", b"d", 0, b"d", 0))
    question = b"".join(struct.pack("<cQ", step.encode(), number) for step, number in history)
    assert driver.ask("b", question).decode().split() == said.split()
