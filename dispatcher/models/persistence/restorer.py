"""Restore of persisted registrations after a start: several at a time, in the order of registration.

load_slots.py limits how many are loaded at once; a model that a request waits for is restored immediately. Lazy models
are restored on first request. tritonserver's frontend reports such requests and holds them until the model is ready
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
from pytriton.dispatcher.models.declaration import CurrentDeclaration
from pytriton.dispatcher.models.load_slots import LoadSlots
from pytriton.dispatcher.models.model_info import info_of
from pytriton.dispatcher.models.persistence.state_dir import Content, Entry
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.server.frontend import PendingModels
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.telemetry.events.explain import DEFERRED

_log = structlog.get_logger(__name__)

#: Maximum number of restores for models that requests wait for, in addition to all others.
_MAX_CONCURRENT_ASKED = 4

Register = Callable[[Entry], Awaitable[object]]


@dataclass
class _QueuedRestore:
    """A persisted registration that is not served.

    `error`: why the restore failed; None while it is queued. `is_lazy`: not restored before the first request. `asked`:
    it was lazy and has been requested. `urgent`: a request waits for it, so it is not queued. `task`: the restore under
    way, since `loading_since` (seconds since the epoch).
    """

    entry: Entry
    error: str | None = None
    is_lazy: bool = False
    asked: bool = False
    urgent: bool = False
    loading_since: float = 0.0
    task: asyncio.Future[object] | None = None
    declared: CurrentDeclaration | None = None


class Restorer:
    """The persisted registrations that are not served (yet), in order.

    Args:
        content: of the state directory
        events: receives the outcomes
        slots: limits how many are registered at once

    Attributes:
        problems: a sentence about each unreadable file.
        changes: notified when a model is restored, fails, is cancelled or is requested.
        gone: called with the name of a model that requests may wait for and that is now neither served nor restoring.
        outcomes: the number of models "restored", and of attempts "failed".
    """

    def __init__(
        self, content: Content, events: Events = LOG_ONLY, slots: LoadSlots | None = None
    ) -> None:
        self._events = events
        self._slots = slots or LoadSlots()
        self._asked_slots = LoadSlots(self._slots.until_released, _MAX_CONCURRENT_ASKED)
        self.problems = content.problems
        self._kept = {entry.spec.name: _QueuedRestore(entry) for entry in content.entries}
        self._running = asyncio.Lock()
        self._register: Register | None = None
        self._stopped = False
        self._asked: set[asyncio.Task[None]] = set()
        self.gone: Callable[[str], Coroutine[object, object, None]] = _ignore
        self.changes = ChangeSignal()
        self.outcomes: Counter[str] = Counter()
        for problem in self.problems:
            _log.error(problem)

    async def run(self, register: Register) -> None:
        """Restore the models in order. Those that fail stay here with the reason."""
        async with self._running:
            loading: list[asyncio.Task[None]] = []
            self._register = register
            try:
                for name, kept in list(self._kept.items()):
                    if self._is_queued(name, kept):
                        await self._slots.until_free()
                    if self._is_queued(
                        name, kept
                    ):  # check again: it may have been started or removed
                        restore = self._restore(name, kept, register)
                        loading.append(self._slots.begin(name, restore))
                await asyncio.gather(*loading)
            finally:
                for task in loading:
                    task.cancel()

    def _is_queued(self, name: str, kept: _QueuedRestore) -> bool:
        """Return whether a model is still queued: not unregistered, replaced, lazy, or being restored."""
        return self._kept.get(name) is kept and not kept.is_lazy and kept.task is None

    # ── those that rest ──────────────────────────────────────────────────────────────────────────

    def mark_lazy(self, may: Callable[[Entry], bool]) -> None:
        """Mark the models for which `may` returns True as lazy: they wait for the first request."""
        for kept in self._kept.values():
            kept.is_lazy = kept.error is None and may(kept.entry)

    def lazy_entries(self) -> list[Entry]:
        """Return the lazy models, in order."""
        return [kept.entry for kept in self._kept.values() if kept.is_lazy]

    def declared(self) -> dict[str, CurrentDeclaration]:
        """Return the declarations of the lazy models, by name."""
        found = {}
        for name, kept in self._kept.items():
            if kept.is_lazy:
                kept.declared = kept.declared or CurrentDeclaration(kept.entry)
                found[name] = kept.declared
        return found

    def is_lazy(self, name: str) -> bool:
        """Return whether a model waits for its first request."""
        kept = self._kept.get(name)
        return kept is not None and kept.is_lazy

    def comes(self, name: str) -> bool:
        """Return whether a model is lazy, queued, or being restored."""
        return self.is_lazy(name) or self.waits(name)

    def awaited(self) -> PendingModels:
        """Return the names that requests may wait for."""
        rest: list[str] = []
        come: list[str] = []
        for name, kept in self._kept.items():
            if self.comes(name):
                (rest if kept.is_lazy or kept.asked else come).append(name)
        return PendingModels(rest, come)

    def ask_for(self, name: str) -> None:
        """Restore a lazy or queued model now; ignore other names."""
        kept = self._kept.get(name)
        if kept is None or kept.urgent or self._stopped:
            return
        if not kept.is_lazy and (kept.error is not None or kept.task is not None):
            return
        is_lazy, kept.is_lazy = kept.is_lazy, False
        kept.asked = kept.asked or is_lazy
        if self._register is not None:  # otherwise `run` starts it
            kept.urgent = True
            self._spawn(self._restore_asked(name, kept, self._register))
        if is_lazy:
            self.changes.notify()

    def asked(self, name: str) -> None:
        """Record that a request waits for a model."""
        self.ask_for(name)
        if not self.comes(name):  # it may have been removed
            self._spawn(self.gone(name))

    async def bring(self, name: str, limit_s: float) -> None:
        """Restore a model now, and wait up to `limit_s` until it is restored or has failed."""
        if not self.comes(name) or self._stopped:
            return

        self.ask_for(name)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.until_settled(name), limit_s)

    async def until_settled(self, name: str) -> None:
        """Wait until a model is neither queued nor being restored. Returns at once for a lazy one."""
        while True:
            change = self.changes.next
            if not self.waits(name):
                return
            await change.wait()

    async def _restore_asked(self, name: str, kept: _QueuedRestore, register: Register) -> None:
        await self._asked_slots.until_free()
        await self._asked_slots.begin(name, self._restore(name, kept, register))

    def _spawn(self, doing: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def stop(self) -> None:
        """Cancel the restores of requested models, and start no more."""
        self._stopped = True
        for task in self._asked:
            task.cancel()

    # ── what is known of all ─────────────────────────────────────────────────────────────────────

    def entries(self) -> list[Entry]:
        """Return the entries that have not been tried yet."""
        return [kept.entry for kept in self._kept.values() if kept.error is None]

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a model that is not served (yet), or None."""
        kept = self._kept.get(name)
        return None if kept is None else kept.entry

    def failures(self) -> dict[str, Entry]:
        """Return the entries that could not be restored, by name, without those that are being retried."""
        return {
            name: kept.entry
            for name, kept in self._kept.items()
            if not (kept.is_lazy or self.waits(name))
        }

    def restored(self, name: str) -> None:
        """Record that a persisted model is served."""
        kept = self._kept.get(name)
        if kept is not None:  # it may have been unregistered in the meantime
            self._count(name, kept)
            self.changes.notify()

    def _count(self, name: str, kept: _QueuedRestore) -> None:
        self._emit(kinds.RESTORED, kept, numbers={"instances": kept.entry.spec.instances})
        self._kept.pop(name, None)
        self.outcomes["restored"] += 1

    async def _restore(self, name: str, kept: _QueuedRestore, register: Register) -> None:
        if kept.task is not None or self._kept.get(name) is not kept:
            return  # it is being registered, or no longer needed
        kept.task = asyncio.ensure_future(register(kept.entry))
        kept.loading_since = time.time()
        try:
            await asyncio.wait([kept.task])
            if kept.task.cancelled():  # by `cancel`, whose caller removes it
                _log.info("restore cancelled", model=name)
                return
            kept.task.result()
        except asyncio.CancelledError:  # this task itself is cancelled
            kept.task.cancel()
            raise
        except RemoteFailure as failure:
            kept.error = failure.text
            self.outcomes["failed"] += 1
            self._emit(kinds.RESTORE_FAILED, kept, failure.text)
        except Exception as error:  # any error must not keep the others from being restored
            self.outcomes["failed"] += 1
            kept.error = f"internal error: {type(error).__name__}: {error}"
            _log.exception("internal error while restoring a model", model=name)
            self._emit(kinds.RESTORE_FAILED, kept, kept.error)
        else:
            self._count(name, kept)
        finally:
            kept.task, kept.urgent = None, False
            self.changes.notify()
        if kept.error is not None:
            await self.gone(name)

    def _emit(
        self,
        kind: kinds.EventKind,
        kept: _QueuedRestore,
        reason: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        spec = kept.entry.spec
        self._events.emit(
            kind, model=spec.name, version=spec.version, reason=reason, numbers=numbers
        )

    def waits(self, name: str) -> bool:
        """Return whether a model is queued or being restored; False for a lazy one."""
        kept = self._kept.get(name)
        if kept is None or kept.is_lazy:
            return False
        return kept.error is None or kept.task is not None

    @property
    def pending(self) -> bool:
        """Return whether any model is queued or being restored, apart from lazy ones that were requested."""
        return any(self.waits(name) for name, kept in self._kept.items() if not kept.asked)

    @property
    def under_way(self) -> str | None:
        """Return the first model that is queued or being restored, including lazy ones that were requested."""
        return next((name for name in self._kept if self.waits(name)), None)

    @property
    def failed(self) -> bool:
        """Return whether any model could not be restored."""
        return any(kept.error is not None for kept in self._kept.values())

    def knows(self, name: str) -> bool:
        """Return whether a model is persisted and not served (yet)."""
        return name in self._kept

    async def cancel(self, name: str) -> None:
        """Cancel a model's restore, if one is running, and wait until it is undone. The model stays known."""
        kept = self._kept.get(name)
        if kept is None:
            return
        if kept.task is not None:
            kept.task.cancel()
        while kept.task is not None:
            await self.changes.next.wait()

    def error(self, name: str) -> str | None:
        """Return why a model could not be restored; None if it is unknown or queued."""
        return self._kept[name].error if name in self._kept else None

    def forget(self, name: str) -> bool:
        """Remove a model that is not being restored. Return whether it was here."""
        there = self._kept.pop(name, None) is not None
        self.changes.notify()
        return there

    def infos(self, without: set[str], http_url: str = "") -> Iterator[messages.ModelInfo]:
        """Yield the status of all models whose names are not in `without`."""
        for name, kept in self._kept.items():
            if name in without:
                continue
            state = "suspended" if kept.is_lazy else "restoring" if kept.error is None else "failed"
            known = info_of(kept.entry.spec, state, kept.entry.registered_at)
            url = f"{http_url}/v2/models/{name}" if http_url and kept.is_lazy else ""
            scaling = DEFERRED if kept.is_lazy else ""
            since = kept.loading_since if kept.task is not None else 0.0
            yield msgspec.structs.replace(
                known, error=kept.error, url=url, scaling=scaling, loading_since=since
            )


async def _ignore(name: str) -> None:
    """Do nothing: no request waits for a model."""
