"""Restores persisted registrations after a start: several at a time, in the order of registration.

load_slots.py limits concurrent loads; a model that a request waits for is restored immediately. A lazy model is
restored when it is first requested: tritonserver's frontend reports the request, and holds it until the model is ready
(core/pending_models.h).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.declaration import CurrentDeclaration, info_of
from pytriton.dispatcher.models.load_slots import LoadSlots
from pytriton.dispatcher.models.persistence.state_dir import Content, Entry
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.server.frontend import PendingModels
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.telemetry.events.explain import DEFERRED
from pytriton.dispatcher.workers.worker_process import DaemonCpus

_log = structlog.get_logger(__name__)

#: Maximum number of restores for models that requests wait for, in addition to all others.
_MAX_CONCURRENT_ASKED = 4
#: Seconds that a request waits for a lazy model to be restored; a proxy waits 10 s for its answer.
_RESTORE_WAIT_S = 5.0

Register = Callable[[Entry], Awaitable[object]]
OnUnavailable = Callable[[str], Coroutine[object, object, None]]


async def ignore_unavailable(name: str) -> None:
    """Do nothing. Used if requests never wait for a model."""


@dataclass
class _QueuedRestore:
    """A persisted registration that is not served.

    `error`: why the restore failed; None while it is queued. `is_lazy`: not restored before the first request. `requested`:
    it was lazy and has been requested. `urgent`: a request waits for it, so it is not queued. `task`: the restore under
    way, since `loading_since` (seconds since the epoch).
    """

    entry: Entry
    error: str | None = None
    is_lazy: bool = False
    requested: bool = False
    urgent: bool = False
    loading_since: float = 0.0
    task: asyncio.Future[object] | None = None
    declared: CurrentDeclaration | None = None

    @property
    def is_expected(self) -> bool:
        """Whether the model is lazy, queued, or being restored."""
        return self.error is None or self.task is not None


class Restorer:
    """The persisted registrations that are not served, in order. Each is queued, lazy, being restored, or failed.

    Args:
        content: content of the state directory
        events: receives events about restores
        slots: limits concurrent loads
        on_unavailable: awaited when a restore has failed or was cancelled, with the model's name, if requests may be
            waiting for the model

    Attributes:
        problems: one sentence about each unreadable file.
        changes: notified when a model is restored, fails, is cancelled or is requested.
        outcomes: number of models "restored" and of attempts "failed".
    """

    def __init__(
        self,
        content: Content,
        events: Events = LOG_ONLY,
        slots: LoadSlots | None = None,
        on_unavailable: OnUnavailable = ignore_unavailable,
    ) -> None:
        self._events = events
        self._slots = slots or LoadSlots()
        self._asked_slots = LoadSlots(self._slots.until_released, _MAX_CONCURRENT_ASKED)
        self.problems = content.problems
        self._queued = {entry.spec.name: _QueuedRestore(entry) for entry in content.entries}
        self._running = asyncio.Lock()
        self._register: Register | None = None
        self._stopped = False
        self._request_tasks: set[asyncio.Task[None]] = set()
        self.on_unavailable = on_unavailable
        self.changes = ChangeSignal()
        self.outcomes: Counter[str] = Counter()
        for problem in self.problems:
            _log.error(problem)

    async def run(self, register: Register) -> None:
        """Restore the models in order. Record the reason for each model that fails."""
        async with self._running:
            loading: list[asyncio.Task[None]] = []
            self._register = register
            try:
                for name, queued in list(self._queued.items()):
                    if self._is_queued(name, queued):
                        await self._slots.until_free()
                    if self._is_queued(
                        name, queued
                    ):  # check again: it may have been started or removed
                        restore = self._restore(name, queued, register)
                        loading.append(self._slots.begin(name, restore))
                await asyncio.gather(*loading)
            finally:
                for task in loading:
                    task.cancel()

    def _is_queued(self, name: str, queued: _QueuedRestore) -> bool:
        """Return whether a model is still queued.

        It is not if it was unregistered or replaced, if it is lazy, or while it is being restored.
        """
        return self._queued.get(name) is queued and not queued.is_lazy and queued.task is None

    # ── lazy models, and models that requests wait for ──────────────────────────────────────────────

    def mark_lazy(self, may: Callable[[Entry], bool]) -> None:
        """Mark models as lazy if `may` returns True for them. They are restored on their first request."""
        for queued in self._queued.values():
            queued.is_lazy = queued.error is None and may(queued.entry)

    def lazy_entries(self) -> list[Entry]:
        """Return the lazy models, in order."""
        return [queued.entry for queued in self._queued.values() if queued.is_lazy]

    def expected_entries(self) -> list[Entry]:
        """Return the models that are lazy, queued, or being restored, in order."""
        return [queued.entry for queued in self._queued.values() if queued.is_expected]

    def specs(self) -> list[messages.ModelSpec]:
        """Return the declarations of the models that are lazy, queued, or being restored."""
        return [entry.spec for entry in self.expected_entries()]

    def declared(self) -> dict[str, CurrentDeclaration]:
        """Return the declarations of the lazy models, by name."""
        found = {}
        for name, queued in self._queued.items():
            if queued.is_lazy:
                queued.declared = queued.declared or CurrentDeclaration(queued.entry)
                found[name] = queued.declared
        return found

    def is_lazy(self, name: str) -> bool:
        """Return whether a model is waiting for its first request."""
        queued = self._queued.get(name)
        return queued is not None and queued.is_lazy

    def is_expected(self, name: str) -> bool:
        """Return whether a model is lazy, queued, or being restored."""
        queued = self._queued.get(name)
        return queued is not None and queued.is_expected

    def awaitable_names(self) -> PendingModels:
        """Return the names of the models that requests may wait for."""
        lazy: list[str] = []
        restoring: list[str] = []
        for name, queued in self._queued.items():
            if self.is_expected(name):
                (lazy if queued.is_lazy or queued.requested else restoring).append(name)
        return PendingModels(lazy, restoring)

    def restore_now(self, name: str) -> None:
        """Restore a lazy or queued model now. Ignore other names."""
        queued = self._queued.get(name)
        if queued is None or queued.urgent or self._stopped:
            return
        if not queued.is_lazy and (queued.error is not None or queued.task is not None):
            return
        is_lazy, queued.is_lazy = queued.is_lazy, False
        queued.requested = queued.requested or is_lazy
        if self._register is not None:  # otherwise `run` starts it
            queued.urgent = True
            self._spawn(self._restore_asked(name, queued, self._register))
        if is_lazy:
            self.changes.notify()

    def on_request(self, name: str) -> None:
        """Restore a model now, because a request is waiting for it."""
        self.restore_now(name)
        if not self.is_expected(name):  # it may have been removed
            self._spawn(self.on_unavailable(name))

    async def restore_and_wait(self, name: str) -> None:
        """Restore a model now, and wait a few seconds until it is restored or has failed."""
        if not self.is_expected(name) or self._stopped:
            return

        self.restore_now(name)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.until_attempted(name), _RESTORE_WAIT_S)

    async def until_attempted(self, name: str) -> None:
        """Wait until a model is neither queued nor being restored. Return immediately if it is lazy."""
        while True:
            change = self.changes.next
            if not self.is_restoring(name):
                return
            await change.wait()

    async def _restore_asked(self, name: str, queued: _QueuedRestore, register: Register) -> None:
        await self._asked_slots.until_free()
        await self._asked_slots.begin(name, self._restore(name, queued, register))

    def _spawn(self, doing: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._request_tasks.add(task)
        task.add_done_callback(self._request_tasks.discard)

    def stop(self) -> None:
        """Cancel the restores of requested models, and start no more of them."""
        self._stopped = True
        for task in self._request_tasks:
            task.cancel()

    # ── queries, outcomes and removal ────────────────────────────────────────────────────────────────

    def entries(self) -> list[Entry]:
        """Return the entries that the daemon has not tried to restore yet."""
        return [queued.entry for queued in self._queued.values() if queued.error is None]

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a persisted model that is not served, or None."""
        queued = self._queued.get(name)
        return None if queued is None else queued.entry

    def failures(self) -> dict[str, Entry]:
        """Return the entries that could not be restored, by name, except those being retried."""
        return {
            name: queued.entry
            for name, queued in self._queued.items()
            if not (queued.is_lazy or self.is_restoring(name))
        }

    def restored(self, name: str) -> None:
        """Record that a persisted model is now served."""
        queued = self._queued.get(name)
        if queued is not None:  # it may have been unregistered in the meantime
            self._count(name, queued)
            self.changes.notify()

    def _count(self, name: str, queued: _QueuedRestore) -> None:
        self._emit(kinds.RESTORED, queued, numbers={"instances": queued.entry.spec.instances})
        self._queued.pop(name, None)
        self.outcomes["restored"] += 1

    async def _restore(self, name: str, queued: _QueuedRestore, register: Register) -> None:
        if queued.task is not None or self._queued.get(name) is not queued:
            return  # it is being registered, or no longer needed
        queued.task = asyncio.ensure_future(register(queued.entry))
        queued.loading_since = time.time()
        try:
            await asyncio.wait([queued.task])
            if queued.task.cancelled():  # by `cancel`, whose caller removes it
                _log.info("restore cancelled", model=name)
                return
            queued.task.result()
        except asyncio.CancelledError:  # this task itself is cancelled
            queued.task.cancel()
            raise
        except RemoteFailure as failure:
            queued.error = failure.text
            self.outcomes["failed"] += 1
            self._emit(kinds.RESTORE_FAILED, queued, failure.text)
        except Exception as error:  # any error must not keep the others from being restored
            self.outcomes["failed"] += 1
            queued.error = f"internal error: {type(error).__name__}: {error}"
            _log.exception("internal error while restoring a model", model=name)
            self._emit(kinds.RESTORE_FAILED, queued, queued.error)
        else:
            self._count(name, queued)
        finally:
            queued.task, queued.urgent = None, False
            self.changes.notify()
        if queued.error is not None:
            await self.on_unavailable(name)

    def _emit(
        self,
        kind: kinds.EventKind,
        queued: _QueuedRestore,
        reason: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        spec = queued.entry.spec
        self._events.emit(
            kind, model=spec.name, version=spec.version, reason=reason, numbers=numbers
        )

    def is_restoring(self, name: str) -> bool:
        """Return whether a model is queued or being restored; False for a lazy one."""
        queued = self._queued.get(name)
        if queued is None or queued.is_lazy:
            return False
        return queued.error is None or queued.task is not None

    @property
    def pending(self) -> bool:
        """Whether any model is queued or being restored. Lazy models that were requested do not count."""
        return any(
            self.is_restoring(name) for name, queued in self._queued.items() if not queued.requested
        )

    @property
    def unfinished(self) -> str | None:
        """The first model that is queued or being restored, including requested lazy ones; None if there is none."""
        return next((name for name in self._queued if self.is_restoring(name)), None)

    @property
    def failed(self) -> bool:
        """Whether the restore of any model has failed."""
        return any(queued.error is not None for queued in self._queued.values())

    def knows(self, name: str) -> bool:
        """Return whether a model is persisted but not served."""
        return name in self._queued

    async def cancel(self, name: str) -> None:
        """Cancel a running restore of a model and wait until it is undone. The model stays persisted."""
        queued = self._queued.get(name)
        if queued is None:
            return
        if queued.task is not None:
            queued.task.cancel()
        while queued.task is not None:
            await self.changes.next.wait()

    def error(self, name: str) -> str | None:
        """Return why a model could not be restored; None if the model is unknown or queued."""
        return self._queued[name].error if name in self._queued else None

    def forget(self, name: str) -> bool:
        """Remove a model from this list. No restore of the model may be in progress. Return whether the list contained
        it.
        """
        was_known = self._queued.pop(name, None) is not None
        self.changes.notify()
        return was_known

    def infos(self, without: set[str], http_url: str = "") -> Iterator[messages.ModelInfo]:
        """Yield the status of all models whose names are not in `without`. Models may change during the iteration."""
        cpus = DaemonCpus.read()
        for name, queued in list(self._queued.items()):
            if name in without or self._queued.get(name) is not queued:
                continue
            state = (
                "suspended" if queued.is_lazy else "restoring" if queued.error is None else "failed"
            )
            known = info_of(queued.entry.spec, state, queued.entry.registered_at, cpus=cpus)
            url = f"{http_url}/v2/models/{name}" if http_url and queued.is_lazy else ""
            scaling = DEFERRED if queued.is_lazy else ""
            since = queued.loading_since if queued.task is not None else 0.0
            yield msgspec.structs.replace(
                known, error=queued.error, url=url, scaling=scaling, loading_since=since
            )
