"""The steps of a client with a server, written once for blocking and for asyncio clients.

A generator says step by step what is to be done: a `Call`, or a `Pause`. `run` does that and waits;
`arun` awaits it. The generator gets each step's answer, or `CallFailed` thrown in.

    def ready(server):                        # what
        return (yield Call(server, "is_server_ready", 5.0))

    run(ready(server), pause)                 # how: blocking
    await arun(ready(server), pause)          # how: awaiting
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from pytriton.client._transport.failures import CallFailed

__all__ = ["Call", "Pause", "Steps", "arun", "run"]

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """Call a method of tritonclient's client.

    Args:
        connection: to a server
        method: its name
        timeout_s: how long the answer may take
        arguments: all but headers and time-out
        headers: of this call
    """

    connection: Any
    method: str
    timeout_s: float
    arguments: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Wait before going on."""

    seconds: float


Steps = Generator[Union[Call, Pause], Any, T]


def run(steps: Steps[T], pause: Callable[[float], object]) -> T:
    """Do the steps one after another in this thread, and return what the generator returns."""

    def do(step: Call | Pause) -> tuple[Any, CallFailed | None]:
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
    """Do the same as `run`, awaiting each step."""

    async def do(step: Call | Pause) -> tuple[Any, CallFailed | None]:
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


def _call(step: Call) -> Any:
    return step.connection.call(step.method, step.timeout_s, step.arguments, step.headers)
