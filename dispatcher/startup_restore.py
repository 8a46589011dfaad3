"""The models that come back: the kept ones and the repositories' when the daemon starts, all when tritonserver does."""

from __future__ import annotations

import asyncio

import structlog

from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.repository_models import RepositoryModels

_log = structlog.get_logger(__name__)


class StartupRestorer:
    """Brings back models: those that clients registered begin first, and keep their names."""

    def __init__(self, registry: Registry, repository_models: RepositoryModels) -> None:
        self._registry = registry
        self._repository_models = repository_models
        self._server_up = asyncio.Event()

    async def restore(self) -> None:
        """Restore what is kept. What failed, perhaps as tritonserver ended, is tried again when that is up again."""
        while True:
            self._server_up.clear()
            try:
                await self._registry.restore()
            except Exception:
                _log.exception("a fault of the daemon: models were not restored")
            await self._server_up.wait()

    async def load_repositories(self) -> None:
        """Load the models of the given repositories; each waits for those that were registered where it needs them."""
        try:
            await self._repository_models.start()
        except Exception:
            _log.exception("a fault of the daemon: model repositories are not looked after")

    def server_lost(self) -> None:
        """Note that tritonserver has ended."""
        self._registry.server_starts.forget_proxies()
        self._repository_models.known.server_lost = True

    async def load_again(self, loaded: set[str]) -> None:
        """Load all models but these, which a tritonserver that was started again has loaded by itself."""
        self._repository_models.known.server_lost = True
        await self._registry.server_starts.load_again(loaded)
        await self._repository_models.load_again()
        self._server_up.set()
