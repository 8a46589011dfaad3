"""Restores models: when the daemon starts, persisted and repository models; when tritonserver restarts, all models."""

from __future__ import annotations

import asyncio

import structlog

from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.repository_models import RepositoryModels

_log = structlog.get_logger(__name__)


class StartupRestorer:
    """Restores registered and repository models. Registered models come first, so that no repository model takes their
    names.
    """

    def __init__(self, registry: Registry, repository_models: RepositoryModels) -> None:
        self._registry = registry
        self._repository_models = repository_models
        self._server_up = asyncio.Event()

    async def restore(self) -> None:
        """Restore the persisted models. Whenever tritonserver has restarted, retry those that failed."""
        while True:
            self._server_up.clear()
            try:
                await self._registry.restore()
            except Exception:
                _log.exception("internal error: models were not restored")
            await self._server_up.wait()

    async def load_repositories(self) -> None:
        """Load the models of the repositories. Each load waits for the registered models that it depends on."""
        try:
            await self._repository_models.start()
        except Exception:
            _log.exception("internal error: could not load the models of the repositories")

    def server_lost(self) -> None:
        """Record that tritonserver has exited."""
        self._registry.server_starts.forget_proxies()
        self._repository_models.records.server_lost = True

    async def load_again(self, loaded: set[str]) -> None:
        """Load all models into a restarted tritonserver, except those in `loaded`, which it loaded when it started."""
        self._repository_models.records.server_lost = True
        await self._registry.server_starts.load_again(loaded)
        await self._repository_models.reload_all()
        self._server_up.set()
