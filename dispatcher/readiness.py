"""The readiness gate: tritonserver reports ready once the models are served.

    tritonserver is up, its gate closed ──▶ models restored, repositories loaded ──▶ the gate is opened
                 ▲                                                                         │
                 └───────────────── tritonserver exits or is restarted ◀───────────────────┘

The setting `readiness` decides which models must be served. Vertex AI's frontend needs a restart of tritonserver, see
cloud_frontends.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.runtime.tasks import until
from pytriton.dispatcher.server import cloud_frontends
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: Maximum number of model names in one sentence.
_MAX_NAMED = 5


class ReadinessController:
    """Decides when tritonserver may report ready, depending on the states of the models.

    Attributes:
        announced: whether the service manager was notified. It is notified once each model has been tried.
    """

    def __init__(
        self,
        config: DaemonConfig,
        server: TritonServer,
        registry: Registry,
        repository: RepositoryModels,
        watch: ServerWatch,
        announce: Callable[[], None],
    ) -> None:
        self._when = config.readiness
        self._vertex = cloud_frontends.vertex_model(config.tritonserver_options)
        self._server = server
        self._registry = registry
        self._repository = repository
        self._watch = watch
        self._announce = announce
        self.announced = False
        self._withdrawn = self._gate_is_open = False

    def problem(self) -> str:
        """Return the reason if tritonserver reports not ready because models failed to load; otherwise return ""."""
        failed = [*self._registry.restoring.failures(), *self._repository.records.failed]
        if self._gate_is_open or self._withdrawn or self._when != "all_loaded" or not failed:
            return ""
        if not (self._all_attempted and self._server.ready):
            return ""
        more = f" and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
        return (
            f"tritonserver reports not ready, since models could not be loaded: "
            f"{', '.join(failed[:_MAX_NAMED])}{more}. `pytriton-daemon explain {failed[0]}` shows why; with the "
            "setting readiness = all_attempted they are ignored"
        )

    async def withdraw(self) -> None:
        """Make tritonserver report not ready from now on, including any process that replaces it."""
        self._withdrawn = True
        await self._server.close_gate()

    async def run(self) -> None:
        """Whenever a tritonserver starts, open its readiness gate. Runs until cancelled."""
        try:
            await self._follow()
        except Exception:
            _log.exception("internal error: tritonserver's readiness gate stays closed")
            raise

    async def _follow(self) -> None:
        while True:
            self._gate_is_open = False
            await self._until(lambda: self._server.ready)
            await self._until(
                lambda: self._all_attempted or self._when == "server_up" or not self._server.ready
            )
            if not self.announced and self._server.ready:
                self.announced = True
                self._announce()
            await self._until(
                lambda: self._is_ready or self._may_start_vertex or not self._server.ready
            )
            if self._may_start_vertex:
                await self._watch.restart(
                    "Vertex AI's model is served", lambda: self._registry.busy
                )
            elif self._server.ready:
                await self._open_gate()

    async def _open_gate(self) -> None:
        """Open this tritonserver's gate once the models are served. Return when tritonserver has exited or must be restarted."""
        try:
            await self._server.open_gate()
            self._gate_is_open = True
            _log.info("tritonserver reports ready")
        except RemoteFailure as failure:
            _log.error("could not make tritonserver report ready", reason=failure.text)
        if self._withdrawn:  # check again: withdrawn while the gate was opened
            await self._server.close_gate()
        await self._until(lambda: self._may_start_vertex or not self._server.ready)
        if self._may_start_vertex:  # with readiness "server_up"
            await self._watch.restart("Vertex AI's model is served", lambda: self._registry.busy)

    async def until_vertex(self, name: str, timeout_s: float) -> None:
        """If `name` is Vertex AI's model, wait up to `timeout_s` seconds until Vertex AI's frontend is up."""
        if self._vertex != name:
            return

        def is_up() -> bool:
            return self._server.ready and self._server.vertex_model == name and self._all_attempted

        try:
            await asyncio.wait_for(self._until(is_up), timeout_s)
        except asyncio.TimeoutError:
            _log.error("Vertex AI's frontend is not up", model=name, waited_s=timeout_s)

    @property
    def _all_attempted(self) -> bool:
        """Whether the daemon has tried to load each model, successfully or not."""
        return not (
            self._registry.restoring.pending
            or self._registry.server_starts.loads_again
            or not self._repository.tried
            or self._repository.records.server_lost
        )

    @property
    def _is_ready(self) -> bool:
        """Whether all models that the setting `readiness` requires are served."""
        if self._withdrawn:
            return False
        if self._when == "server_up":
            return True
        if not self._all_attempted or not self._vertex_is_served:
            return False
        return self._when == "all_attempted" or not (
            self._registry.restoring.failed or self._repository.records.failed
        )

    @property
    def _vertex_is_served(self) -> bool:
        """Whether Vertex AI's frontend is up and its model is served. True if that frontend is not configured."""
        return self._vertex is None or (
            self._server.vertex_model == self._vertex
            and self._vertex in self._registry.server_starts.preload()
        )

    @property
    def _may_start_vertex(self) -> bool:
        """Whether Vertex AI's frontend is configured and not running, but could be started."""
        return (
            self._vertex is not None
            and self._server.vertex_model is None
            and self._server.ready
            and self._all_attempted
            and self._vertex in self._registry.server_starts.preload()
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. Check it whenever tritonserver or a model changes."""
        await until(
            condition,
            self._server.changes,
            self._registry.changes,
            self._registry.restoring.changes,
        )
