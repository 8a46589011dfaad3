"""Loads models when tritonserver starts, some of them before it opens its ports, the others afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.admission import check_devices, why_it_cannot_suspend
from pytriton.dispatcher.models.deployer import ModelDeployer, starts_suspended
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.server.tritonserver import TritonServer


class ServerStarts:
    """Loads models when tritonserver starts or restarts.

    Args:
        server: tritonserver
        served: the registrations
        deployer: deploys and removes models
        restoring: the persisted models that are not served yet
    """

    def __init__(
        self,
        server: TritonServer,
        served: ServedModels,
        deployer: ModelDeployer,
        restoring: Restorer,
    ) -> None:
        self._server = server
        self._served = served
        self._deployer = deployer
        self._restoring = restoring

    def deploy_suspended_models(self, lazy: Callable[[messages.ModelSpec], bool]) -> None:
        """Prepare tritonserver's first start: deploy persisted models that start suspended, or make them lazy.

        They become lazy if `lazy` returns True. The others are loaded during the start, because the more models are
        loaded, the longer each load takes.
        """
        self.load_lazily(lazy)
        for entry in self._restoring.entries():
            if starts_suspended(entry.spec, restored=True) and not self._restoring.is_lazy(
                entry.spec.name
            ):
                with contextlib.suppress(
                    RemoteFailure
                ):  # the regular restore tries it later and reports the error
                    check_devices(entry.spec)
                    self._deployer.deploy_suspended(entry)

    def load_lazily(self, lazy: Callable[[messages.ModelSpec], bool]) -> None:
        """Make persisted models lazy if they start suspended and `lazy` returns True for them."""
        self._restoring.mark_lazy(lambda entry: can_load_lazily(entry.spec) and lazy(entry.spec))

    def preload_at_first_start(self) -> dict[str, dict[str, Any]]:
        """Discard what an earlier attempt to start left behind, and return the models of `preload`."""
        self.forget_proxies()
        return self.preload()

    async def record_preloaded(self, loaded: set[str]) -> None:
        """Record which models tritonserver loaded at its first start. The others are retried by the normal restore."""
        await self._unload_removed(loaded)
        for registration in list(self._served):
            name = registration.spec.name
            if name in loaded:
                await registration.in_triton.load_again(self._server, loaded=True)
            if self._served.names.get(name) is not registration or not registration.ready:
                continue  # a client is unregistering it
            if name in loaded:
                self._restoring.restored(name)
            else:
                await self._deployer.cancel_preload(registration)
        self._deployer.changes.notify()

    def preload(self) -> dict[str, dict[str, Any]]:
        """Return the models that tritonserver loads when it starts, before it opens its ports: name ->
        configuration.
        """
        return {one.spec.name: one.in_triton.config for one in self._served if one.preloadable}

    async def load_again(self, loaded: set[str]) -> None:
        """Load all models except those in `loaded` into a restarted tritonserver. Their workers are still running."""
        await self._unload_removed(loaded)
        for one in self._served:
            if one.spec.name not in loaded:
                one.in_triton.server_lost = True
        await asyncio.gather(
            *(
                one.in_triton.load_again(self._server, loaded=one.spec.name in loaded)
                for one in self._served
            )
        )
        self._deployer.changes.notify()

    async def _unload_removed(self, loaded: set[str]) -> None:
        """Unload the models that were unregistered while tritonserver was loading them."""
        gone = loaded - {one.spec.name for one in self._served}
        await asyncio.gather(*map(self._server.try_unload, gone))

    @property
    def loads_again(self) -> bool:
        """Whether a restarted tritonserver still has to load models."""
        return any(one.loads_again for one in self._served)

    def forget_proxies(self) -> None:
        """Forget the proxies of the tritonserver that exited. Keep those of servers still finishing their requests."""
        for registration in self._served.keys.values():
            registration.in_triton.forget_proxies(self._server.retiring)

    def forget_retired(self, server: int) -> None:
        """Forget the proxies of a tritonserver that was replaced and has now exited."""
        for registration in self._served.keys.values():
            registration.in_triton.ends.detach_of(server)


def can_load_lazily(spec: messages.ModelSpec) -> bool:
    """Return whether tritonserver may load a model on its first request.

    Provisional models and those of the OpenAI frontend may not: they must be available at once.
    """
    looked_after = spec.lease is not None or spec.openai is not None
    return (
        starts_suspended(spec, restored=True)
        and not looked_after
        and not why_it_cannot_suspend(spec)
    )
