"""Starts of tritonserver: which models it loads before it opens its ports, and what becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.admission import check_devices, why_it_cannot_sleep
from pytriton.dispatcher.models.deployer import Serving, begins_asleep
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.server.tritonserver import TritonServer


class ServerStarts:
    """The models of a tritonserver that starts: for the first time, or again.

    Args:
        server: tritonserver
        served: the models
        serving: changes them
        restoring: those that are kept and not served yet
    """

    def __init__(
        self, server: TritonServer, served: ServedModels, serving: Serving, restoring: Restorer
    ) -> None:
        self._server = server
        self._served = served
        self._serving = serving
        self._restoring = restoring

    def place_sleeping(self, resting: Callable[[messages.ModelSpec], bool]) -> None:
        """Prepare tritonserver's first start: kept models that begin asleep rest if `resting`, and else are placed.

        So tritonserver loads the latter at its start: one by one, each load takes longer the more models it has.
        """
        self.let_rest(resting)
        for entry in self._restoring.entries():
            if begins_asleep(entry.spec, restored=True) and not self._restoring.rests(
                entry.spec.name
            ):
                with contextlib.suppress(RemoteFailure):  # it is restored in turn, and fails
                    check_devices(entry.spec)
                    self._serving.place_asleep(entry)

    def let_rest(self, resting: Callable[[messages.ModelSpec], bool]) -> None:
        """Have kept models wait for the first request that can, if they begin asleep and are `resting`."""
        self._restoring.rest(lambda entry: can_rest(entry.spec) and resting(entry.spec))

    def preload_at_first_start(self) -> dict[str, dict[str, Any]]:
        """Do the same as `preload`; nothing is left of an earlier attempt."""
        self.forget_proxies()
        return self.preload()

    async def have_loaded(self, loaded: set[str]) -> None:
        """Note what tritonserver has loaded at its first start; the others are restored in turn, errors told."""
        await self._take_out_of(loaded)
        for registration in list(self._served):
            name = registration.spec.name
            if name in loaded:
                await registration.in_triton.load_again(self._server, loaded=True)
            if self._served.names.get(name) is not registration or not registration.ready:
                continue  # a client has it unregistered
            if name in loaded:
                self._restoring.restored(name)
            else:
                await self._serving.take_back(registration)
        self._serving.news.tell()

    def preload(self) -> dict[str, dict[str, Any]]:
        """Return what a starting tritonserver can load before it opens its ports: name -> configuration."""
        return {one.spec.name: one.in_triton.config for one in self._served if one.preloadable}

    async def load_again(self, loaded: set[str]) -> None:
        """Load all models but these into a tritonserver that was started again; the workers have kept theirs."""
        await self._take_out_of(loaded)
        for one in self._served:
            if one.spec.name not in loaded:
                one.in_triton.server_lost = True
        await asyncio.gather(
            *(
                one.in_triton.load_again(self._server, loaded=one.spec.name in loaded)
                for one in self._served
            )
        )
        self._serving.news.tell()

    async def _take_out_of(self, loaded: set[str]) -> None:
        """Unload what was unregistered while tritonserver loaded it."""
        gone = loaded - {one.spec.name for one in self._served}
        await asyncio.gather(*map(self._server.take_out, gone))

    @property
    def loads_again(self) -> bool:
        """Whether models are missing in a tritonserver that was started again."""
        return any(one.loads_again for one in self._served)

    def forget_proxies(self) -> None:
        """Note that tritonserver has ended. One that it had taken the place of may still answer what it has."""
        for registration in self._served.keys.values():
            registration.in_triton.forget_proxies(self._server.retiring)

    def forget_retired(self, server: int) -> None:
        """Note that a tritonserver has ended which another one had taken the place of."""
        for registration in self._served.keys.values():
            registration.in_triton.ends.detach_of(server)


def can_rest(spec: messages.ModelSpec) -> bool:
    """Whether tritonserver need not have a model before somebody asks for it.

    Not one that somebody looks after meanwhile: whoever has it on trial, or the OpenAI front.
    """
    looked_after = spec.trial is not None or spec.openai is not None
    return begins_asleep(spec, restored=True) and not looked_after and not why_it_cannot_sleep(spec)
