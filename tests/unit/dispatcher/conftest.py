"""A daemon without processes, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.virtual_time import VirtualLoop


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimulatedDaemon]:
    """A daemon with a running tritonserver; at the end it is stopped, and no worker may be left."""
    one = SimulatedDaemon(tmp_path)
    one.advance(2.0)
    yield one
    one.close()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """For parts of a daemon: this thread's event loop, on a virtual clock."""
    one = VirtualLoop()
    asyncio.set_event_loop(one)
    yield one
    one.close()
    asyncio.set_event_loop(None)
