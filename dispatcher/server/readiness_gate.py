"""The gate of a tritonserver whose readiness is the daemon's to tell; preloading.py says how it works."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Protocol

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.server import preloading

#: tritonserver has no event for a model that has gone.
_LOOK_S = 0.02


class Models(Protocol):
    """The methods of a tritonserver that the gate uses; each raises RemoteFailure."""

    async def load(self, name: str, config: dict[str, Any] | None) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def repository_states(self) -> dict[str, str]: ...


class Gate:
    """A model of tritonserver's that keeps it from being ready as long as it cannot be loaded.

    Args:
        folder: the model repository
        backend: one that loads what is harmless
    """

    in_repository = True

    def __init__(self, folder: Path, backend: str) -> None:
        self._folder = folder
        self._backend = backend

    async def open(self, server: Models) -> None:
        """Have tritonserver say that it is ready, if all other models are.

        Raises:
            RemoteFailure: tritonserver refused it or is not up.
        """
        preloading.make_gate(self._folder)
        await forget_failure(server, preloading.GATE, self._backend)
        while (await server.repository_states()).get(preloading.GATE) in ("READY", "UNLOADING"):
            await asyncio.sleep(_LOOK_S)  # it is not ready before the gate has gone
        preloading.remove_gate(self._folder)

    async def close(self, server: Models) -> None:
        """Have tritonserver say that it is not ready; nothing happens when it is not up."""
        preloading.make_gate(self._folder)
        with contextlib.suppress(RemoteFailure):  # which is what a closed gate is
            await server.load(preloading.GATE, preloading.closed_gate())


async def forget_failure(server: Models, name: str, backend: str) -> None:
    """Have tritonserver forget that a model could not be loaded: only a load that succeeds does that.

    Raises:
        RemoteFailure: tritonserver refused it or is not up.
    """
    await server.load(name, preloading.harmless(name, backend))
    await server.unload(name)


def is_gated(config: DaemonConfig) -> bool:
    """Whether tritonserver's readiness is the daemon's to tell."""
    strict = config.tritonserver_options.get("strict-readiness", "true")
    return config.ready_when != "up" and strict not in ("false", "0")
