"""A watch on tritonserver's index: clients of tritonserver load and unload models, too.

The watch keeps the daemon's status true. When a client unloads a model, its workers stay; when a client loads the model
again, its proxies come back to them. The daemon itself does not load such a model again, even after a crash.
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

#: tritonserver tells only who asks.
_EVERY_S = 5.0
#: What somebody who asks how things are waits for that, at most.
_LONGEST_S = 1.0


class IndexWatch:
    """Compares what is known of all models with tritonserver's index."""

    def __init__(self, server: TritonServer, registry: Registry, known: ModelRecords) -> None:
        self._server = server
        self._registry = registry
        self._known = known

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Look now; a tritonserver that does not answer at once tells nothing new."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._look(), _LONGEST_S)

    async def _look(self) -> None:
        if not self._server.ready:
            return
        # An answer is worthless if the daemon itself loads or unloads the model meanwhile.
        marks: list[tuple[Any, object, Callable[[bool], None], str]] = [
            (one.mark, one.mark(), one.seen, name)
            for name, one in ((one.spec.name, one.in_triton) for one in self._registry)
        ]
        marks += self._known.marks()
        try:
            states = await self._server.repository_states()
        except RemoteFailure:
            return
        for mark, before, tell, name in marks:
            if before is not None and mark() == before:
                tell(states.get(name, "") == "READY")
