"""Answers of tritonserver: events in arbitrary pieces, and errors classified by their text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock
from unittest.mock import call as mock_call

import pytest

from pytriton.dispatcher.openai.upstream import AnswerTexts, error_of

SAID = ["sdata: a\n\n", "s", "s" + "\u00e9" * 50, 'u{}\n{"b":"\\n\\n"}']
SENT = b"".join(f"data: {json.dumps({'text_output': one})}\n\n".encode() for one in SAID)


class Answer:
    """Replaces an `EventStream`; it arrives in pieces."""

    tap: Any = None
    relays = False

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def texts_in(pieces: Sequence[bytes]) -> list[str]:
    async def collected() -> list[str]:
        answer: Any = Answer(pieces)
        return [text async for texts in AnswerTexts(answer) for text in texts]

    return asyncio.run(collected())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_events_are_assembled_from_any_pieces(size: int) -> None:
    pieces = [SENT[start : start + size] for start in range(0, len(SENT), size)]
    assert texts_in(pieces) == SAID


def test_the_end_of_an_event_may_be_split() -> None:
    end = SENT.index(b"\n\n") + 1
    assert texts_in([SENT[:end], SENT[end : end + 1], SENT[end + 1 :]]) == SAID


def test_pieces_of_a_large_text_are_scanned_once() -> None:
    """Concatenating each piece with the previous ones took a minute for a text of 50 MB."""
    answer: Any = Answer(())
    texts = AnswerTexts(answer)
    head = b'data: {"text_output": "'
    pieces = [head, *(bytes([65 + number % 26]) * 1000 for number in range(500))]
    for piece in pieces:
        assert texts._complete_events(piece) == []
    assert all(kept is piece for kept, piece in zip(texts._partial, pieces))
    (whole,) = texts._complete_events(b'"}\n\n')
    assert len(whole) == len(head) + 500_000 + 2
    assert texts._partial == []


def test_a_released_answer_does_not_use_its_connection() -> None:
    answer: Any = Mock(relays=True)
    texts = AnswerTexts(answer)
    texts.release()
    for call in (texts.release, texts.keep, lambda: texts.hand_over(0)):
        with pytest.raises(AttributeError):
            call()
    assert answer.mock_calls == [mock_call.close()]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("KeyError: 'page not found' [request id: 1]", 500),
        ("my.module.LookupFailed: unknown model x", 500),
        ("TimeoutError: the timeout expired", 500),
        ("ValueError", 500),
        ("it is broken", 500),
        ("Exceeds maximum queue size", 429),
        ("Request timeout expired", 429),
        ("Request for unknown model: 'm' is not found", 503),
        ("model m: no worker is there", 503),
    ],
)
def test_exceptions_of_a_callable_are_model_failures(text: str, status: int) -> None:
    assert error_of(text).status == status
