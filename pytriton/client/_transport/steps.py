"""The steps of a client's operations, written once for blocking and asyncio clients.

A generator yields each step: a `CallStep` or a `Pause`. `run` executes them and blocks; `arun` awaits them. The
generator receives each step's result, or `CallFailed` thrown in.

    def ready(connection):                        # the steps
        return (yield CallStep(connection, "is_server_ready", 5.0, {}, {}))

    run(ready(connection), pause)                 # run them blocking
    await arun(ready(connection), pause)          # run them in an event loop
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from pytriton.client._transport.failures import CallFailed

__all__ = ["CallStep", "Pause", "Steps", "arun", "run"]

T = TypeVar("T")


@dataclass(frozen=True)
class CallStep:
    """A step that calls a method of tritonclient's client.

    Args:
        connection: connection to a server
        method: name of the method
        timeout_s: timeout of the call, in seconds
        arguments: all arguments except headers and timeout
        headers: headers of this call
    """

    connection: Any
    method: str
    timeout_s: float
    arguments: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """A step that waits for a number of seconds."""

    seconds: float


Steps = Generator[Union[CallStep, Pause], Any, T]


def run(steps: Steps[T], pause: Callable[[float], object]) -> T:
    """Run the steps in this thread and return the generator's return value."""

    def do(step: CallStep | Pause) -> tuple[Any, CallFailed | None]:
        try:
            return (pause(step.seconds) if isinstance(step, Pause) else _call(step)), None
        except CallFailed as failure:
            return None, failure

    answer, failure = None, None
    try:
        while True:
            answer, failure = do(steps.throw(failure) if failure else steps.send(answer))
    except StopIteration as stop:
        value: T = stop.value
        return value


async def arun(steps: Steps[T], pause: Callable[[float], Awaitable[object]]) -> T:
    """Run the steps in the event loop and return the generator's return value."""

    async def do(step: CallStep | Pause) -> tuple[Any, CallFailed | None]:
        try:
            return await (pause(step.seconds) if isinstance(step, Pause) else _call(step)), None
        except CallFailed as failure:
            return None, failure

    answer, failure = None, None
    try:
        while True:
            answer, failure = await do(steps.throw(failure) if failure else steps.send(answer))
    except StopIteration as stop:
        value: T = stop.value
        return value


def _call(step: CallStep) -> Any:
    return step.connection.call(step.method, step.timeout_s, step.arguments, step.headers)
