"""Client operations, written once and run blocking or awaited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytriton.client._transport.failures import CallFailed, FailureKind
from pytriton.client._transport.steps import CallStep, Pause, Steps, arun, run


class Connection:
    """Answers with the name of the method; the method "fail" fails."""

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        self.called: list[Any] = []

    def call(self, *how: Any) -> Any:
        self.called.append(how)
        return self._later(how[0]) if self.awaited else self._answer(how[0])

    async def _later(self, method: str) -> str:
        await asyncio.sleep(0)
        return self._answer(method)

    def _answer(self, method: str) -> str:
        if method == "fail":
            raise CallFailed(FailureKind.TIMEOUT, "late")
        return method


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_steps_run_in_order_and_get_their_answers_or_failures(awaited: bool) -> None:
    connection = Connection(awaited=awaited)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def steps() -> Steps[list[str]]:
        first = yield CallStep(connection, "first", 5.0, {"a": 1}, {"h": "x"})
        yield Pause(0.5)
        try:
            yield CallStep(connection, "fail", 1.0)
        except CallFailed as failure:
            return [first, failure.text]
        raise AssertionError("it did not fail")

    answers = asyncio.run(arun(steps(), pause)) if awaited else run(steps(), pauses.append)
    assert answers == ["first", "late"]
    assert connection.called == [("first", 5.0, {"a": 1}, {"h": "x"}), ("fail", 1.0, {}, {})]
    assert pauses == [0.5]
