"""The models that come back after a start: of the daemon, kept ones and the repositories'; of tritonserver, all."""

from __future__ import annotations

import asyncio

import structlog

from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repositories.repository_models import RepositoryModels

_log = structlog.get_logger(__name__)


class ServingAgain:
    """Brings back models, in an order: those that clients registered come first, their names count."""

    def __init__(self, registry: Registry, repository_models: RepositoryModels) -> None:
        self._registry = registry
        self._repository_models = repository_models
        self._server_up = asyncio.Event()
        self._restored = asyncio.Event()

    async def restore(self) -> None:
        """Restore what is kept; what failed, perhaps for tritonserver's end, again when that is up again."""
        while True:
            self._server_up.clear()
            try:
                await self._registry.restore(self._restored.set)
            except Exception:
                _log.exception("a fault of the daemon: models were not restored")
            self._restored.set()
            await self._server_up.wait()

    async def load_repositories(self) -> None:
        """Load the models of the given repositories, after those that were registered."""
        try:
            await self._restored.wait()
            await self._repository_models.start()
        except Exception:
            _log.exception("a fault of the daemon: model repositories are not looked after")

    def server_lost(self) -> None:
        """tritonserver has ended."""
        self._registry.server_starts.forget_proxies()
        self._repository_models.known.server_lost = True

    async def load_again(self, loaded: set[str]) -> None:
        """tritonserver was started again, and has loaded these models by itself: load all others."""
        self._repository_models.known.server_lost = True
        await self._registry.server_starts.load_again(loaded)
        await self._repository_models.load_again()
        self._server_up.set()
