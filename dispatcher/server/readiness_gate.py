"""The gate of a tritonserver whose readiness the daemon controls; preload_layout.py explains how it works."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Protocol

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.server import preload_layout

#: tritonserver emits no event when a model has been unloaded.
_POLL_INTERVAL_S = 0.02


class GateModels(Protocol):
    """The methods of a tritonserver that the gate uses; each raises RemoteFailure."""

    async def load(self, name: str, config: dict[str, Any] | None) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def repository_states(self) -> dict[str, str]: ...


class Gate:
    """A model that keeps tritonserver from being ready while it cannot be loaded.

    Args:
        folder: the model repository
        backend: a backend that can load the harmless placeholder
    """

    in_repository = True

    def __init__(self, folder: Path, backend: str) -> None:
        self._folder = folder
        self._backend = backend

    async def open(self, server: GateModels) -> None:
        """Let tritonserver report ready once all other models are.

        Raises:
            RemoteFailure: tritonserver refused the request or is not up.
        """
        preload_layout.make_gate(self._folder)
        await forget_failure(server, preload_layout.GATE, self._backend)
        while (await server.repository_states()).get(preload_layout.GATE) in ("READY", "UNLOADING"):
            await asyncio.sleep(
                _POLL_INTERVAL_S
            )  # tritonserver is not ready until the gate is unloaded
        preload_layout.remove_gate(self._folder)

    async def close(self, server: GateModels) -> None:
        """Make tritonserver report "not ready". Does nothing if it is not up."""
        preload_layout.make_gate(self._folder)
        with contextlib.suppress(RemoteFailure):  # expected: a closed gate fails to load
            await server.load(preload_layout.GATE, preload_layout.closed_gate())


async def forget_failure(server: GateModels, name: str, backend: str) -> None:
    """Clear tritonserver's record of a failed load, which only a successful load does.

    Raises:
        RemoteFailure: tritonserver refused the request or is not up.
    """
    await server.load(name, preload_layout.harmless(name, backend))
    await server.unload(name)


def is_gated(config: DaemonConfig) -> bool:
    """Return whether the daemon controls tritonserver's readiness."""
    strict = config.tritonserver_options.get("strict-readiness", "true")
    return config.readiness != "server_up" and strict not in ("false", "0")
