"""What a worker's process has once, the process of these tests must have anew for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pytriton.decorators.context import TritonContext


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker serves one model and ends; here models follow each other, and leave nothing behind."""
    monkeypatch.setattr("pytriton.decorators.context._process_context", TritonContext())
    loops: list[asyncio.AbstractEventLoop] = []
    make_loop = asyncio.new_event_loop

    def make_and_note() -> asyncio.AbstractEventLoop:
        loops.append(make_loop())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", make_and_note)
    yield
    for loop in loops:
        loop.close()
    if loops:
        asyncio.set_event_loop(None)
