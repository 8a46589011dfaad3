"""Descriptions of exceptions and values whose own methods fail, and how much of them reaches a client."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton._protocol.errors import (
    CLIENT_BYTES,
    TEXT_BYTES,
    described,
    for_client,
    members,
    shown,
    with_id,
)
from pytriton._protocol.log_lines import record_of


def as_grpc_sends(text: str) -> int:
    """Return its size with everything but printable ASCII escaped (gRPC over HTTP2, "Responses")."""
    kept = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
    return len(quote(text, safe=kept))


@given(
    st.text(st.characters(), max_size=300),
    st.integers(1, 2000),
)
def test_error_texts_fit_into_a_grpc_header(part: str, times: int) -> None:
    text = part * times
    reported = for_client(text)
    sent = text.encode("utf-8", "backslashreplace").decode()
    assert as_grpc_sends(reported) <= TEXT_BYTES
    if as_grpc_sends(sent) <= TEXT_BYTES:
        assert reported == sent
    else:
        kept, _, note = reported.rpartition(" [… ")
        assert sent.startswith(kept)
        assert len(kept) > TEXT_BYTES // 12 - 100
        assert note.endswith("the model's log has the full text]")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(0, 10_000))
def test_the_request_id_fits_after_the_text(name: str, size: int) -> None:
    text = for_client("é" * size)
    reported = with_id(text, name)
    assert as_grpc_sends(reported) <= CLIENT_BYTES
    fits = name and as_grpc_sends(f" [request id: {name}]") <= CLIENT_BYTES - TEXT_BYTES
    assert reported == (f"{text} [request id: {name}]" if fits else text)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class BaseExceptionGroup(Exception):
    """A stand-in for Python's own since 3.11, and for its backport."""

    def __init__(self, text: str, exceptions: list[BaseException]) -> None:
        super().__init__(f"{text} ({len(exceptions)} sub-exceptions)")
        self.exceptions = tuple(exceptions)


class ExceptionGroup(BaseExceptionGroup):
    pass


WRONG, LOST = ValueError("token 7 is unknown"), KeyError("row")


@pytest.mark.parametrize(
    ("error", "found", "said"),
    [
        (WRONG, [WRONG], "ValueError: token 7 is unknown"),
        (ExceptionGroup("TaskGroup", [WRONG]), [WRONG], "ValueError: token 7 is unknown"),
        (
            ExceptionGroup("", [ExceptionGroup("", [WRONG]), LOST]),
            [WRONG, LOST],
            "ExceptionGroup: ValueError: token 7 is unknown; KeyError: 'row'",
        ),
    ],
)
def test_a_group_is_described_by_its_members(
    error: BaseException, found: list[BaseException], said: str
) -> None:
    assert members(error) == found
    assert described(error) == said
    record = record_of(error, "", "it failed")
    kind, _, text = said.partition(": ")
    assert (record.event, record.error_type) == (f"it failed: {said}", kind)
    assert record.error_message == text


def test_a_group_of_very_many_is_described_by_some_members() -> None:
    assert described(ExceptionGroup("", [LOST] * 1000)).count("KeyError") == 16


def test_any_exception_can_be_described() -> None:
    assert described(ValueError("what: \udcff")) == "ValueError: what: \\udcff"
    assert described(Unprintable()) == (
        "Unprintable: (no text available: __str__ raised ValueError)"
    )
    assert "KeyError: (no text" in described(KeyError(Unprintable()))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\nb", "str 'a\\nb'"),
        ([1, "x"], "list [1, 'x']"),
        (list(range(10**6)), "list [0, 1, 2, 3"),
        (Unprintable(), "Unprintable <Unprintable instance at"),
        ({"y": [Unprintable()]}, "dict {'y': [<Unprintable instance at"),
        ("x" * 10**7, "str 'xxx"),
    ],
)
def test_any_value_can_be_shown(value: Any, said: str) -> None:
    text = shown(value)
    assert text.startswith(said)
    assert len(text) < 100
