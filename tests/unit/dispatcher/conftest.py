"""A daemon without processes, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes.brain import Brain
from support.fakes.virtual_time import VirtualLoop


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    """One whose tritonserver is up; when the test is over it is stopped, and no worker may be left."""
    one = Brain(tmp_path)
    one.advance(2.0)
    yield one
    one.close()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """For parts of a daemon: this thread's event loop, in a time of its own."""
    one = VirtualLoop()
    asyncio.set_event_loop(one)
    yield one
    one.close()
    asyncio.set_event_loop(None)
