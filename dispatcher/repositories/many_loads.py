"""Loads of many models of repositories: at the start, and when files have changed.

A tritonserver that ends while it loads a model takes along all others that it loads. These are tried again, one by
one: so the one that it cannot load is found, and only that one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from pytriton.dispatcher.events import kinds
from pytriton.dispatcher.events.events import LOG_ONLY, Events
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repositories.model_records import ModelRecord, ModelRecords
from pytriton.dispatcher.triton.server_process import ServerLost
from pytriton.dispatcher.triton.tritonserver import TritonServer
from pytriton.ipc.errors import RemoteFailure

_log = structlog.get_logger(__name__)

#: Models that are loaded at once at the start; each may take all cores while it loads.
_AT_ONCE = 4
#: The most tries of a model by itself. One that tritonserver loads itself has failed before: see `ModelLoading`.
_TRIES = 3


class ManyLoads:
    """Loads models, of which some may fail: the others are served.

    Args:
        load: loads one
        known: what is known of them
        server: that has to be up
        registry: serves those of workers
        events: takes which could not be loaded, and why
    """

    def __init__(
        self,
        load: Callable[[str], Awaitable[None]],
        known: ModelRecords,
        server: TritonServer,
        registry: Registry,
        events: Events = LOG_ONLY,
    ) -> None:
        self._events = events
        self._load = load
        self._known = known
        self._server = server
        self._registry = registry

    async def at_start(self, names: Sequence[str], ensembles: Collection[str]) -> None:
        """Load models, several at once, those that are made of others last. What fails, its record says."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def load(name: str) -> bool:
            async with slots:
                loading = asyncio.create_task(self._try(name))
                try:
                    await self._registry.accounts.until_put_off(loading, name)
                except asyncio.CancelledError:
                    loading.cancel()
                    await asyncio.wait([loading])
                    raise
            return await loading  # it waits for memory, and takes nobody's slot meanwhile

        first = [name for name in names if name not in ensembles]
        survived = await asyncio.gather(*map(load, first))
        again = [name for name, did in zip(first, survived) if not did]
        for name in (*again, *(name for name in names if name in ensembles)):
            if not self._known.of(name).served_by:  # as another one's step
                await self._try_alone(name)

    async def anew(self, names: Sequence[str], ensembles: Collection[str]) -> None:
        """Load models one by one, served ones, too, those that are made of others last."""
        for name in sorted(names, key=lambda name: name in ensembles):
            await self._try_alone(name)

    async def until_up(self) -> None:
        """Wait until tritonserver is up, and has again what it served when it ended."""
        while True:
            changes = [
                asyncio.ensure_future(news.next.wait())
                for news in (self._server.news, self._registry.news)
            ]
            try:
                if self._server.ready and not self._known.server_lost:
                    return
                await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for change in changes:
                    change.cancel()

    async def _try_alone(self, name: str) -> None:
        for _ in range(_TRIES):
            if await self._try(name):
                return
        known = self._known.of(name)
        _not_loaded(known, known.reason)
        self._events.tell(kinds.NOT_LOADED, model=name, reason=known.reason)

    async def _try(self, name: str) -> bool:
        """Load a model, or have its record say why not; False: tritonserver has ended meanwhile."""
        known = self._known.of(name)
        await self.until_up()
        try:
            await self._load(name)
        except ServerLost as lost:
            _not_loaded(known, lost.text, "loading")
            _log.warning("tritonserver has ended: a model is loaded again", model=name)
            return False
        except RemoteFailure as failure:
            _not_loaded(known, failure.text)
            self._events.tell(kinds.NOT_LOADED, model=name, reason=failure.text)
        except Exception as error:  # whatever it is, the others are loaded
            _not_loaded(known, f"a fault of the daemon: {error!r}")
            _log.exception("a fault of the daemon: a model of a repository was not loaded")
            self._events.tell(kinds.NOT_LOADED, model=name, reason=known.reason)
        return True


def _not_loaded(known: ModelRecord, reason: str, state: str = "failed") -> None:
    """Note why a model was not loaded; one that is served stays as it is."""
    known.reason = reason
    if not known.served_by:
        known.state = state
