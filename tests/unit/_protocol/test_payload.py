"""The header of a pickled callable: it is read as written, and garbage is recognized."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton._protocol.payload import Header, MalformedPayload, pack, unpack


@given(st.tuples(st.integers(3, 4), st.integers(0, 99)), st.booleans(), st.binary())
def test_a_header_survives_a_round_trip(
    version: tuple[int, int], by_reference: bool, body: bytes
) -> None:
    header, pickled = unpack(pack(Header(version, by_reference), body))
    assert (header.python_version, header.by_reference, bytes(pickled)) == (
        version,
        by_reference,
        body,
    )


@given(st.binary() | st.binary().map(lambda rest: b"PTD1" + rest))
def test_garbage_is_refused(data: bytes) -> None:
    """Any bytes are either a payload or a MalformedPayload, never another exception."""
    try:
        unpack(data)
    except MalformedPayload:
        return
    assert data.startswith(b"PTD1")


def test_a_truncated_header_is_refused() -> None:
    whole = pack(Header((3, 11), True), b"")
    for end in range(len(whole)):
        with pytest.raises(MalformedPayload):
            unpack(whole[:end])
