"""After a start: the models that the daemon served when it last ran are registered again, several at once.

They begin in the order of registration, as many as load_slots.py allows; one that a request waits for begins at once.
Those that rest are registered when somebody asks for them. tritonserver's front tells of requests, and has them wait,
for all of them (core/awaited.h).
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
from pytriton.dispatcher.models.declared import Declared
from pytriton.dispatcher.models.load_slots import LoadSlots
from pytriton.dispatcher.models.model_info import info_of
from pytriton.dispatcher.models.persistence.state_dir import Content, Entry
from pytriton.dispatcher.runtime.change_signal import ChangeSignal
from pytriton.dispatcher.server.frontend import Awaited
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.telemetry.events.explain import RESTS

_log = structlog.get_logger(__name__)

#: So many that requests wait for are registered at a time, beside all others.
_MAX_CONCURRENT_ASKED = 4

Register = Callable[[Entry], Awaitable[object]]


@dataclass
class _Kept:
    """A kept registration that is not served.

    `error`: why it could not be; None while it waits its turn. `rests`: it has none before somebody asks for it.
    `asked`: somebody has, and it rested. `urgent`: a request waits for it, so it need not wait its turn. `task`:
    registers it just now, since `loading_since` (seconds since the epoch).
    """

    entry: Entry
    error: str | None = None
    rests: bool = False
    asked: bool = False
    urgent: bool = False
    loading_since: float = 0.0
    task: asyncio.Future[object] | None = None
    declared: Declared | None = None


class Restorer:
    """The kept registrations that are not served (yet), in order.

    Args:
        content: of the state directory
        events: takes what becomes of them
        slots: bounds how many are registered at once

    Attributes:
        problems: a sentence about each file that could not be read.
        news: one more is restored, could not be, is given up, or is asked for.
        gone: is told the name of one that requests may wait for, and that is neither served nor restored.
        outcomes: how many were "restored", and how many tries "failed".
    """

    def __init__(
        self, content: Content, events: Events = LOG_ONLY, slots: LoadSlots | None = None
    ) -> None:
        self._events = events
        self._slots = slots or LoadSlots()
        self._asked_slots = LoadSlots(self._slots.until_released, _MAX_CONCURRENT_ASKED)
        self.problems = content.problems
        self._kept = {entry.spec.name: _Kept(entry) for entry in content.entries}
        self._running = asyncio.Lock()
        self._register: Register | None = None
        self._stopped = False
        self._asked: set[asyncio.Task[None]] = set()
        self.gone: Callable[[str], Coroutine[object, object, None]] = _tell_nobody
        self.news = ChangeSignal()
        self.outcomes: Counter[str] = Counter()
        for problem in self.problems:
            _log.error(problem)

    async def run(self, register: Register) -> None:
        """Register them, beginning in order. What cannot be registered stays here, with the reason."""
        async with self._running:
            loading: list[asyncio.Task[None]] = []
            self._register = register
            try:
                for name, kept in list(self._kept.items()):
                    if self._is_queued(name, kept):
                        await self._slots.until_free()
                    if self._is_queued(name, kept):  # still
                        restore = self._restore(name, kept, register)
                        loading.append(self._slots.begin(name, restore))
                await asyncio.gather(*loading)
            finally:
                for task in loading:
                    task.cancel()

    def _is_queued(self, name: str, kept: _Kept) -> bool:
        """Whether one is still to be registered: not unregistered, replaced, resting, or being registered."""
        return self._kept.get(name) is kept and not kept.rests and kept.task is None

    # ── those that rest ──────────────────────────────────────────────────────────────────────────

    def rest(self, may: Callable[[Entry], bool]) -> None:
        """Have those that `may` wait until somebody asks for them."""
        for kept in self._kept.values():
            kept.rests = kept.error is None and may(kept.entry)

    def resting(self) -> list[Entry]:
        """Return those that rest, in order."""
        return [kept.entry for kept in self._kept.values() if kept.rests]

    def declared(self) -> dict[str, Declared]:
        """Return the declarations of those that rest, by name."""
        found = {}
        for name, kept in self._kept.items():
            if kept.rests:
                kept.declared = kept.declared or Declared(kept.entry)
                found[name] = kept.declared
        return found

    def rests(self, name: str) -> bool:
        """Whether a model waits until somebody asks for it."""
        kept = self._kept.get(name)
        return kept is not None and kept.rests

    def comes(self, name: str) -> bool:
        """Whether a model rests, is being restored, or still to be."""
        return self.rests(name) or self.waits(name)

    def awaited(self) -> Awaited:
        """Return the names that requests may wait for."""
        rest: list[str] = []
        come: list[str] = []
        for name, kept in self._kept.items():
            if self.comes(name):
                (rest if kept.rests or kept.asked else come).append(name)
        return Awaited(rest, come)

    def ask_for(self, name: str) -> None:
        """Have one that rests, or waits its turn, registered now; nothing happens if it is no such one."""
        kept = self._kept.get(name)
        if kept is None or kept.urgent or self._stopped:
            return
        if not kept.rests and (kept.error is not None or kept.task is not None):
            return
        rests, kept.rests = kept.rests, False
        kept.asked = kept.asked or rests
        if self._register is not None:  # else `run` does it
            kept.urgent = True
            self._spawn(self._restore_asked(name, kept, self._register))
        if rests:
            self.news.tell()

    def asked(self, name: str) -> None:
        """Note that a request waits for a model."""
        self.ask_for(name)
        if not self.comes(name):  # any more
            self._spawn(self.gone(name))

    async def bring(self, name: str, limit_s: float) -> None:
        """Have one that is not served yet registered; return when it is, or could not be, at most `limit_s` later."""
        if not self.comes(name) or self._stopped:
            return

        self.ask_for(name)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.until_settled(name), limit_s)

    async def until_settled(self, name: str) -> None:
        """Return when a model is neither being restored nor still to be; at once if it rests."""
        while True:
            news = self.news.next
            if not self.waits(name):
                return
            await news.wait()

    async def _restore_asked(self, name: str, kept: _Kept, register: Register) -> None:
        await self._asked_slots.until_free()
        await self._asked_slots.begin(name, self._restore(name, kept, register))

    def _spawn(self, doing: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def stop(self) -> None:
        """End the registrations under way of those that were asked for; no other one begins."""
        self._stopped = True
        for task in self._asked:
            task.cancel()

    # ── what is known of all ─────────────────────────────────────────────────────────────────────

    def entries(self) -> list[Entry]:
        """Return those that have not been tried."""
        return [kept.entry for kept in self._kept.values() if kept.error is None]

    def entry(self, name: str) -> Entry | None:
        """Return a kept model that is not served (yet)."""
        kept = self._kept.get(name)
        return None if kept is None else kept.entry

    def failures(self) -> dict[str, Entry]:
        """Return those that could not be restored, by name, but for those that are tried again just now."""
        return {
            name: kept.entry
            for name, kept in self._kept.items()
            if not (kept.rests or self.waits(name))
        }

    def restored(self, name: str) -> None:
        """A kept model is served."""
        kept = self._kept.get(name)
        if kept is not None:  # nobody has unregistered it meanwhile
            self._count(name, kept)
            self.news.tell()

    def _count(self, name: str, kept: _Kept) -> None:
        self._tell(kinds.RESTORED, kept, numbers={"instances": kept.entry.spec.instances})
        self._kept.pop(name, None)
        self.outcomes["restored"] += 1

    async def _restore(self, name: str, kept: _Kept, register: Register) -> None:
        if kept.task is not None or self._kept.get(name) is not kept:
            return  # it is registered just now, or not to be any more
        kept.task = asyncio.ensure_future(register(kept.entry))
        kept.loading_since = time.time()
        try:
            await asyncio.wait([kept.task])
            if kept.task.cancelled():  # by `cancel`, whose caller forgets it
                _log.info("restore cancelled", model=name)
                return
            kept.task.result()
        except asyncio.CancelledError:  # this is ended itself
            kept.task.cancel()
            raise
        except RemoteFailure as failure:
            kept.error = failure.text
            self.outcomes["failed"] += 1
            self._tell(kinds.NOT_RESTORED, kept, failure.text)
        except Exception as error:  # whatever it is, the others are restored
            self.outcomes["failed"] += 1
            kept.error = f"a fault of the daemon: {type(error).__name__}: {error}"
            _log.exception("a fault of the daemon", model=name)
            self._tell(kinds.NOT_RESTORED, kept, kept.error)
        else:
            self._count(name, kept)
        finally:
            kept.task, kept.urgent = None, False
            self.news.tell()
        if kept.error is not None:
            await self.gone(name)

    def _tell(
        self,
        kind: kinds.Kind,
        kept: _Kept,
        reason: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        spec = kept.entry.spec
        self._events.tell(
            kind, model=spec.name, version=spec.version, reason=reason, numbers=numbers
        )

    def waits(self, name: str) -> bool:
        """Whether a model is being restored, or still to be; not one that rests."""
        kept = self._kept.get(name)
        if kept is None or kept.rests:
            return False
        return kept.error is None or kept.task is not None

    @property
    def pending(self) -> bool:
        """Whether a model is being restored, or still to be, though nobody asks for it."""
        return any(self.waits(name) for name, kept in self._kept.items() if not kept.asked)

    @property
    def under_way(self) -> str | None:
        """Return the first model that is being restored, or still to be, whether or not somebody asks for it."""
        return next((name for name in self._kept if self.waits(name)), None)

    @property
    def failed(self) -> bool:
        """Whether a model could not be restored."""
        return any(kept.error is not None for kept in self._kept.values())

    def knows(self, name: str) -> bool:
        """Whether a model is kept and not served (yet)."""
        return name in self._kept

    async def cancel(self, name: str) -> None:
        """Cancel a model's restore, if one is running, and wait until it is undone; the model stays known."""
        kept = self._kept.get(name)
        if kept is None:
            return
        if kept.task is not None:
            kept.task.cancel()
        while kept.task is not None:
            await self.news.next.wait()

    def error(self, name: str) -> str | None:
        """Return why a model could not be restored; None if it is not here, or waits its turn."""
        return self._kept[name].error if name in self._kept else None

    def forget(self, name: str) -> bool:
        """Do not restore a model, which is not being restored just now; whether it was here."""
        there = self._kept.pop(name, None) is not None
        self.news.tell()
        return there

    def infos(self, without: set[str], http_url: str = "") -> Iterator[messages.ModelInfo]:
        """Yield what status shows of those that are not among `without`."""
        for name, kept in self._kept.items():
            if name in without:
                continue
            state = "asleep" if kept.rests else "restoring" if kept.error is None else "failed"
            known = info_of(kept.entry.spec, state, kept.entry.registered_at)
            url = f"{http_url}/v2/models/{name}" if http_url and kept.rests else ""
            scaling = RESTS if kept.rests else ""
            since = kept.loading_since if kept.task is not None else 0.0
            yield msgspec.structs.replace(
                known, error=kept.error, url=url, scaling=scaling, loading_since=since
            )


async def _tell_nobody(name: str) -> None:
    """Do nothing: nobody waits for a model."""
