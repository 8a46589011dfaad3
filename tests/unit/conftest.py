"""Both ends of a lane in one process, and the state of a worker's process, reset for each test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest
from fakes.lane_pair import Lanes, lane_pair

from pytriton._protocol.messages import WorkerEnvironment
from pytriton.decorators import context
from pytriton.decorators.context import TritonContext


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    """Undo what a worker sets for its whole process, since here models follow each other in one.

    It requests no fixture of pytest, because each costs time in every test.
    """
    former, context._process_context = context._process_context, TritonContext()
    loops: list[asyncio.AbstractEventLoop] = []
    make_loop = asyncio.new_event_loop

    def make_and_note() -> asyncio.AbstractEventLoop:
        loops.append(make_loop())
        return loops[-1]

    asyncio.new_event_loop = make_and_note
    if sys.version_info < (3, 10):  # there, creating locks and events requires a loop
        asyncio.set_event_loop(make_and_note())
    yield
    asyncio.new_event_loop = make_loop
    context._process_context = former
    for loop in loops:
        loop.close()
    if loops:
        asyncio.set_event_loop(None)


class _EmptyProbe:
    """Replaces the interpreter that looks up modules missing from the search path, such as those of tests."""

    def __init__(self, world: WorkerEnvironment) -> None:
        pass

    def look_up(self, module: str) -> tuple[bool, str | None]:
        return False, None

    def close(self) -> None:
        pass


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no interpreter for a registration: each takes 30 ms, and a worker's imports are not under test."""
    monkeypatch.setattr("pytriton._register.environment.Probe", _EmptyProbe)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    """Both ends of a lane: the proxy's and the worker's."""
    with lane_pair() as ends:
        yield ends
