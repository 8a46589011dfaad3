"""Loads many models of repositories: at the start, and when files have changed.

At the start several load concurrently (models/load_slots.py), and an ensemble waits only for its steps. If tritonserver
exits during a load, all concurrent loads are lost. They are retried one by one, so that only the model that cannot be
loaded fails.
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

#: Maximum attempts for a model loaded alone. A model that crashes tritonserver fails earlier: see `ModelLoading`.
_TRIES = 3


class LoadQueue:
    """Loads models; if some fail, the others are still served.

    Args:
        load: loads one model
        known: the records of the models
        server: the tritonserver, which must be up
        registry: the models that workers serve
        events: receives failures
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
        self._ensemble_lock = asyncio.Lock()  #: one ensemble may be a step of another

    async def at_start(self, names: Sequence[str], ensembles: Mapping[str, Sequence[str]]) -> None:
        """Load models, several at once. Failures are stored in their records.

        Args:
            names: names of the models
            ensembles: the steps of each ensemble among them
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
        for name, load in loads.items():  # ensembles are last
            if not load.result() and not self._known.of(name).served_by:
                await self._try_alone(name)

    async def _load_in_turn(self, name: str) -> bool:
        slots = self._registry.load_slots
        await slots.until_free()
        return await slots.begin(name, self._try(name))

    async def _load_ensemble(self, name: str, steps: Sequence[asyncio.Task[bool]]) -> bool:
        """Load an ensemble after its steps were tried; return False if tritonserver exited during the load."""
        if steps:
            await asyncio.wait(steps)
        if not all(step.result() for step in steps):
            return False
        async with self._ensemble_lock:
            return bool(self._known.of(name).served_by) or await self._try(name)

    async def anew(self, names: Sequence[str], ensembles: Collection[str]) -> None:
        """Load or reload models one by one, ensembles last."""
        for name in sorted(names, key=lambda name: name in ensembles):
            await self._try_alone(name)

    async def until_up(self) -> None:
        """Wait until tritonserver is up and has reloaded its previous models."""
        while True:
            waits = [
                asyncio.ensure_future(signal.next.wait())
                for signal in (self._server.changes, self._registry.changes)
            ]
            try:
                if self._server.ready and not self._known.server_lost:
                    return
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for change in waits:
                    change.cancel()

    async def _try_alone(self, name: str) -> None:
        for _ in range(_TRIES):
            if await self._try(name):
                return
        known = self._known.of(name)
        _not_loaded(known, known.reason)
        self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=known.reason)

    async def _try(self, name: str) -> bool:
        """Load a model or store the failure in its record; return False if tritonserver exited during the load."""
        known = self._known.of(name)
        await self.until_up()
        try:
            await self._load(name)
        except ServerLost as lost:
            _not_loaded(known, lost.text, "loading")
            _log.warning("tritonserver exited, reloading a model", model=name)
            return False
        except RemoteFailure as failure:
            _not_loaded(known, failure.text)
            self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=failure.text)
        except Exception as error:  # on any error, continue with the other models
            _not_loaded(known, f"internal error: {error!r}")
            _log.exception("internal error: a model of a repository was not loaded")
            self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=known.reason)
        return True


def _steps(name: str, ensembles: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the models that an ensemble uses directly or indirectly, without ensembles."""
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
    """Store why a model was not loaded; if it is still served, keep its state."""
    known.reason = reason
    if not known.served_by:
        known.state = state
