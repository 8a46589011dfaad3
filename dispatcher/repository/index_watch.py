"""Watches tritonserver's index, because its clients can load and unload models, too.

This keeps the daemon's status accurate. When a client unloads a model, its workers stay; when a client loads it again,
its proxies reconnect to them. The daemon does not load such a model by itself, even after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.model_records import ModelRecords
from pytriton.dispatcher.server.tritonserver import TritonServer

#: Polling interval: tritonserver does not notify.
_EVERY_S = 5.0
#: Maximum wait of a status request for the index.
_MAX_DELAY_S = 1.0


class IndexWatch:
    """Compares the known state of all models with tritonserver's index."""

    def __init__(self, server: TritonServer, registry: Registry, known: ModelRecords) -> None:
        self._server = server
        self._registry = registry
        self._known = known

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Compare now. Skip this if tritonserver does not answer in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._look(), _MAX_DELAY_S)

    async def _look(self) -> None:
        if not self._server.ready:
            return
        # Ignore the answer if the daemon itself loads or unloads the model in the meantime.
        marks: list[tuple[Any, object, Callable[[bool], None], str]] = [
            (one.mark, one.mark(), one.seen, name)
            for name, one in ((one.spec.name, one.in_triton) for one in self._registry)
        ]
        marks += self._known.marks()
        try:
            states = await self._server.repository_states()
        except RemoteFailure:
            return
        for mark, before, on_state, name in marks:
            if before is not None and mark() == before:
                on_state(states.get(name, "") == "READY")
