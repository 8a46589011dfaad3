"""What histories of one instance share: a loop on a virtual clock, which the instance's records follow, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.workers import supervisor


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    for module in (supervisor, supervisor):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=loop.time))
    yield loop
    loop.close()
    asyncio.set_event_loop(None)
