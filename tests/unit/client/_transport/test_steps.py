"""Client operations, written once and run blocking or awaited, with the same answers and failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytriton.client._transport.failures import CallFailed, FailureKind
from pytriton.client._transport.steps import CallStep, Pause, Steps, arun, run

LATE = CallFailed(FailureKind.TIMEOUT, "late")


class Connection:
    """Answers with the name of the method; raises for the methods in `fails`."""

    def __init__(self, *, awaited: bool, fails: list[Exception] | None = None) -> None:
        self.awaited, self.fails = awaited, fails or []
        self.called: list[Any] = []

    def call(self, *how: Any) -> Any:
        self.called.append(how)
        if self.awaited:
            return self._later(how[0])
        if self.fails:
            raise self.fails.pop(0)
        return how[0]

    async def _later(self, method: str) -> str:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails.pop(0)
        return method


def do(steps: Steps[Any], pauses: list[float], *, awaited: bool) -> Any:
    if not awaited:
        return run(steps, pauses.append)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    return asyncio.run(arun(steps, pause))


pytestmark = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


def test_steps_run_in_order_and_get_their_answers(awaited: bool) -> None:
    connection = Connection(awaited=awaited)
    pauses: list[float] = []

    def both() -> Steps[list[str]]:
        first = yield CallStep(connection, "first", 5.0, {"a": 1}, {"h": "x"})
        yield Pause(0.5)
        second = yield CallStep(connection, "second", 1.0)
        return [first, second]

    assert do(both(), pauses, awaited=awaited) == ["first", "second"]
    assert connection.called == [("first", 5.0, {"a": 1}, {"h": "x"}), ("second", 1.0, {}, {})]
    assert pauses == [0.5]


def test_steps_can_handle_a_failed_call(awaited: bool) -> None:
    connection = Connection(awaited=awaited, fails=[LATE])

    def again() -> Steps[str]:
        try:
            yield CallStep(connection, "ask", 1.0)
        except CallFailed as failure:
            said = yield CallStep(connection, failure.text, 1.0)
            return f"after that: {said}"
        raise AssertionError("it did not fail")

    assert do(again(), [], awaited=awaited) == "after that: late"


def test_an_unhandled_failure_is_raised(awaited: bool) -> None:
    connection = Connection(awaited=awaited, fails=[LATE])

    def once() -> Steps[str]:
        answer: str = yield CallStep(connection, "ask", 1.0)
        return answer

    with pytest.raises(CallFailed) as caught:
        do(once(), [], awaited=awaited)
    assert caught.value is LATE


def test_other_exceptions_end_the_steps(awaited: bool) -> None:
    """They are bugs, not failures of a server."""
    connection = Connection(awaited=awaited, fails=[ZeroDivisionError()])

    def once() -> Steps[None]:
        try:
            yield CallStep(connection, "ask", 1.0)
        except ZeroDivisionError as error:
            raise AssertionError("it is not the steps' business") from error

    with pytest.raises(ZeroDivisionError):
        do(once(), [], awaited=awaited)
