"""What a client is told whose bytes are no HTTP: what is wrong, in one line, and none of its bytes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiohttp import web

from pytriton.dispatcher.openai_front.protocol import Protocol


@pytest.mark.parametrize(
    ("message", "told"),
    [
        # Of aiohttp's parser in C.
        ("Invalid method encountered:\n\n  b'sk-1 here'\n    ^", "Invalid method encountered"),
        ("Invalid header token:\n\n  b'sk 1: x'\n      ^", "Invalid header token"),
        (
            "Transfer-Encoding can't be present with Content-Length:\n\n  b'Tr'\n ^",
            "Transfer-Encoding can't be present with Content-Length",
        ),
        ("Bad status line:\n  Invalid HTTP version:\n\n  b'GET'\n   ^", "Bad status line"),
        (
            "Got more than 8190 bytes when reading: b'ssss...'.",
            "Got more than 8190 bytes when reading",
        ),
        (
            "Got more than 8190 bytes when reading: bytearray(b'/ss...').",
            "Got more than 8190 bytes when reading",
        ),
        ("Duplicate 'Host' header found.", "Duplicate 'Host' header found"),
        ("Missing 'Host' header in request.", "Missing 'Host' header in request"),
        (
            "Request has invalid `Transfer-Encoding`:\n\n  b''\n    ^",
            "Request has invalid `Transfer-Encoding`",
        ),
        ("Received HTTPS traffic on an HTTP port", "Received HTTPS traffic on an HTTP port"),
        # Of the one in Python.
        ("Bad status line 'secret sk-1234 here'", "Bad status line"),
        ('Bad status line "it\'s sk-1"', "Bad status line"),
        ("Invalid HTTP header: b'sk-1\\x00'", "Invalid HTTP header"),
        ("Invalid HTTP header: 'Content-Length'", "Invalid HTTP header"),
        # What the client has sent, and nothing else.
        ("http://[sk-4", ""),
        ("sk-9", ""),
        ("SK-9", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_what_is_wrong_is_told_without_the_bytes(
    monkeypatch: pytest.MonkeyPatch, message: str | None, told: str
) -> None:
    logged: list[object] = []
    monkeypatch.setattr(
        web.RequestHandler, "handle_error", lambda protocol, *fault: logged.append(fault)
    )
    answers: list[tuple[int, str]] = []

    def answer(status: int, what: str) -> web.Response:
        answers.append((status, what))
        return web.Response(status=status)

    protocol = object.__new__(Protocol)
    protocol._answer = answer
    request, error = cast(Any, object()), ValueError()
    response = protocol.handle_error(request, 400, error, message)
    assert answers == [(400, told)]
    assert response.status == 400
    assert not response.keep_alive  # what follows on the connection is no request
    assert logged == [(request, 400, error, message)]  # as aiohttp does


def test_an_answer_that_has_begun_gets_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*_: object) -> None:
        raise ConnectionError("Response is sent already, cannot send another response")

    monkeypatch.setattr(web.RequestHandler, "handle_error", begun)
    protocol = object.__new__(Protocol)
    with pytest.raises(ConnectionError):
        protocol.handle_error(cast(Any, object()), 500, ValueError(), None)
