"""What the log says of clients."""

from __future__ import annotations

import logging
from typing import Any

from pytriton.dispatcher.http_server.connections import ErrorLog


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_log_counts_and_quotes_nothing() -> None:
    clock, said = Clock(), list[str]()
    complaints = ErrorLog(said.append, clock)
    for _ in range(3):
        complaints.count("wrong")
    clock.now += 10
    complaints.count("wrong")
    assert said == ["wrong: 1", "wrong: 3"]
    try:
        raise ValueError("secret")
    except ValueError as error:
        exception: Any = (type(error), error, error.__traceback__)
    message = "cannot read %s\nsecret"
    complaints.handle(
        logging.LogRecord("lib", logging.ERROR, "x.py", 1, message, ("secret",), exception)
    )
    assert said[2].startswith("lib: cannot read %s ValueError (")
    assert "secret" not in "".join(said)
