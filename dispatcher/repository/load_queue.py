"""Loads of many models of repositories: at the start, and when files have changed.

At the start several are loaded at once (models/load_slots.py), and an ensemble waits for its steps alone. A
tritonserver that ends while it loads a model takes along all others that it loads. These are tried again, one by one:
so the one that it cannot load is found, and only that one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.model_records import ModelRecord, ModelRecords
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events

_log = structlog.get_logger(__name__)

#: The most tries of a model by itself. One that tritonserver loads itself has failed before: see `ModelLoading`.
_TRIES = 3


class LoadQueue:
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
        self._ensemble_lock = asyncio.Lock()  #: one may be another one's step

    async def at_start(self, names: Sequence[str], ensembles: Mapping[str, Sequence[str]]) -> None:
        """Load models, several at once. What fails, its record says.

        Args:
            names: of the models
            ensembles: the steps of those that are ensembles
        """
        loads = {
            name: asyncio.create_task(self._load_in_turn(name))
            for name in names
            if name not in ensembles
        }
        for name in names:
            if name in ensembles:
                steps = [loads[step] for step in _steps(name, ensembles) if step in loads]
                loads[name] = asyncio.create_task(self._load_ensemble(name, steps))
        try:
            if loads:
                await asyncio.wait(loads.values())
        except asyncio.CancelledError:
            for load in loads.values():
                load.cancel()
            await asyncio.wait(loads.values())
            raise
        for name, load in loads.items():  # ensembles are the last ones
            if not load.result() and not self._known.of(name).served_by:
                await self._try_alone(name)

    async def _load_in_turn(self, name: str) -> bool:
        slots = self._registry.load_slots
        await slots.until_free()
        return await slots.begin(name, self._try(name))

    async def _load_ensemble(self, name: str, steps: Sequence[asyncio.Task[bool]]) -> bool:
        """Load an ensemble once its steps have been tried; False: tritonserver has ended meanwhile."""
        if steps:
            await asyncio.wait(steps)
        if not all(step.result() for step in steps):
            return False
        async with self._ensemble_lock:
            return bool(self._known.of(name).served_by) or await self._try(name)

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


def _steps(name: str, ensembles: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the models that an ensemble is made of, also by way of others, without ensembles."""
    seen, left = {name}, [name]
    while left:
        for step in ensembles[left.pop()]:
            if step in seen:
                continue
            seen.add(step)
            if step in ensembles:
                left.append(step)
            else:
                yield step


def _not_loaded(known: ModelRecord, reason: str, state: str = "failed") -> None:
    """Note why a model was not loaded; one that is served stays as it is."""
    known.reason = reason
    if not known.served_by:
        known.state = state
