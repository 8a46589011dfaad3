"""The room of one pool's workers within the budgets of memory, and its claims for more.

a pool takes ──▶ waits ──▶ granted: what a worker is expected to need ──▶ loaded: what it was seen to need
its workers end ──▶ leaving ──▶ gone
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.elastic.known_size import KnownSize
from pytriton.dispatcher.elastic.memory import (
    LEAST_ESTIMATE,
    MEMORY,
    Amounts,
    Size,
    added,
    amounts_text,
    estimate,
    setting_text,
    size_text,
)
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.memory_claim import Waiting
from pytriton.dispatcher.workers.process import slots

if TYPE_CHECKING:
    from pytriton.dispatcher.workers.memory_accounts import MemoryAccounts

_T = TypeVar("_T")
#: The share of a budget that all workers of one model need at most, as long as nothing is known of them.
_MOST_ESTIMATED = 0.5
#: What a worker grows by with its first requests: until one has been seen from its load to its end.
_GROWS_BY, _GROWS = 1.05, 4 << 20


class Account:
    """The room of one pool's workers.

    Attributes:
        spec: the declaration, with the number of instances that it has by now
        bounded: whether a budget holds for it
        registration: tells it from others of its model's name, also after a restart of the daemon
        granted: workers that it has room for
        beside: workers more that it has room for, until they have taken the place of others
        alone: bytes of mappings that only its workers have: whoever measures puts it here
        known: what a worker took when it was last loaded; None before it ever was
        shared: what its workers had in common when it was last loaded, with others or not: digest -> bytes
    """

    def __init__(
        self,
        accounts: MemoryAccounts,
        spec: messages.ModelSpec,
        payload: int = 0,
        *,
        bounded: bool = False,
        registration: str = "",
        patient: bool = False,
        events: Events = LOG_ONLY,
    ) -> None:
        self.spec = spec
        self.bounded = bounded
        self.registration = registration
        self._patient = patient
        self.granted = self.beside = self.alone = 0
        self._leaving: list[Amounts] = []
        self._accounts = accounts
        self._payload = payload
        self._events = events
        self.known: Size | None = None
        self.shared: dict[str, int] = {}
        self._peak = Size()
        #: Whether a worker has served since the first was started; whether one has been seen from its load to its end.
        self._serves = self._lived = False
        #: Whether it is taken for small, as long as its size is only estimated.
        self._modest = False

    # ── figures ──────────────────────────────────────────────────────────────────────────────────

    @property
    def each(self) -> Size:
        """The size of one worker: declared, and seen, or an estimate while neither is known."""
        told = self._told
        memory = self._estimate(MEMORY, self._payload) if not told.memory else 0
        gpu = self._estimate(self._gpus(0)[0]) if not told.gpu and self._gpus(0) else 0
        return self._sure.at_least(Size(memory, gpu))

    @property
    def _told(self) -> Size:
        """The size that was declared, or known when a worker had loaded; 0 is neither."""
        declared = Size(self.spec.memory or 0, self.spec.gpu_memory or 0)
        return declared.at_least(self.known or Size())

    @property
    def is_estimated(self) -> bool:
        """Whether nobody has said or seen what a worker takes."""
        return not self._told.memory or (not self._told.gpu and bool(self._gpus(0)))

    @property
    def is_changing(self) -> bool:
        """Whether it may soon have less by itself: workers end, a size is only estimated, or there is less load."""
        autoscale = self.spec.autoscale
        may_shrink = autoscale is not None and self.granted > max(1, autoscale.least)
        is_guess = self.granted > 0 and self.is_estimated
        return bool(self._leaving or self.beside) or is_guess or may_shrink

    @property
    def _sure(self) -> Size:
        """The size that a worker has for certain, though it may still be loading."""
        peak = self._peak
        if self.spec.memory is None and peak.memory and not self._lived:
            peak = peak._replace(memory=round(peak.memory * _GROWS_BY) + _GROWS)
        return self._told.at_least(peak)

    def _estimate(self, kind: str, payload: int = 0) -> int:
        """Return what a worker is taken to need; all of them together never much of the budget."""
        limit = self._accounts.limits.get(kind, 0)
        most = round(limit * _MOST_ESTIMATED) // max(1, slots.count(self.spec))
        if self._modest:
            return min(most, max(LEAST_ESTIMATE, 2 * payload))
        return min(most, estimate(self._accounts.usual(self, kind), payload, limit))

    def ask_for_less(self) -> None:
        """Take a model for small that nothing is known of: as much as was estimated there will never be."""
        self._modest = True

    @property
    def worker_bytes(self) -> int | None:
        """The memory of one worker; None without a budget."""
        return self.each.memory if self.bounded else None

    @property
    def held(self) -> Amounts:
        """The size of all workers, as they have it or were granted it; those that are ending count."""
        coming = {MEMORY: self._not_mapped() if self.granted else 0}
        beside = [self.of_one] * self.beside
        return added(self._of_slots(0, self.granted), coming, *beside, *self._leaving)

    @property
    def of_one(self) -> Amounts:
        """The size of one worker on the device where that is largest."""
        return self._of_slots(0, 1)

    def needs(self, count: int) -> Amounts:
        """Return what it lacks for so many workers."""
        coming = {MEMORY: 0 if self.granted else self._not_mapped()}
        return added(self._of_slots(self.granted, count), coming)

    def gives(self, staying: int) -> Amounts:
        """Return what is free when only so many workers stay."""
        return added(self._of_slots(staying, self.granted), {MEMORY: 0 if staying else self.alone})

    def _not_mapped(self) -> int:
        """The weights that the workers share and nobody has at the moment: the first worker makes them."""
        mapped = self._accounts.mapped
        return sum(size for digest, size in self.shared.items() if digest not in mapped)

    def _of_slots(self, first: int, end: int, each: Size | None = None) -> dict[str, int]:
        each, total = each or self.each, {MEMORY: 0}
        for slot in range(first, end):
            total[MEMORY] += each.memory
            for gpu in self._gpus(slot):
                total[gpu] = total.get(gpu, 0) + each.gpu
        return total

    def _gpus(self, slot: int) -> list[str]:
        devices = self.spec.devices
        if not devices:
            return []
        device = devices[slots.instance_of(self.spec, slot) % len(devices)]
        names = [name.strip() for name in (device or "").split(",") if name.strip()]
        return [self._accounts.gpus.get(name, name) for name in names]

    def seen(self, size: Size) -> None:
        """Note what its largest worker has at the moment."""
        self._peak = self._peak.at_least(size)

    def loaded(self, now: Size | None = None) -> None:
        """Note that a worker serves: what was seen of it is more than an estimate from now on.

        Args:
            now: what the largest that serves has
        """
        if not self._peak.memory:
            return
        if not self._serves and now is not None and any(self.shared.values()):
            # One of them has made what they share, and had it twice meanwhile; the others do not.
            self._peak = self._peak._replace(memory=now.memory)
        self._serves = True
        if self.known is None:
            self.known = self._peak
            self._accounts.note(self)

    @property
    def size(self) -> KnownSize | None:
        """The known size of its workers, to be kept."""
        if self.known is None:
            return None
        return KnownSize(self.registration, *self.known, dict(self.shared), self._lived)

    def recall(self, size: KnownSize) -> None:
        """Take over what was known of it before the daemon was restarted, unless the budget is too small for that.

        So a restart refuses nothing that was served: it is learnt anew then.
        """
        self.known, self.shared = Size(size.memory, size.gpu), dict(size.shared)
        self._lived = size.lived
        if self._beyond(slots.count(self.spec)):
            self.known, self.shared, self._lived = None, {}, False

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def check(self, spec: messages.ModelSpec, count: int) -> None:
        """See that so many workers fit into the budget if nobody else has anything of it.

        Raises:
            RemoteFailure: they do not, ever.
        """
        if not self.bounded:
            return
        self.spec = spec
        shared = sum(self.shared.values())
        for kind, needed in self._beyond(count).items():
            limit = self._accounts.limits[kind]
            each = self._sure.memory if kind == MEMORY else self._sure.gpu
            what = size_text(needed) if count == 1 else f"{count} x {size_text(each)}"
            if count > 1 and shared and kind == MEMORY:
                what += f", and {size_text(shared)} that they share,"
            text = f"model {spec.name} takes {what} of {setting_text(kind)}, and all models have {size_text(limit)}"
            self._refused(text, needed, limit)
            raise RemoteFailure(ErrorKind.INVALID, text)

    def _beyond(self, count: int) -> Amounts:
        """Return what so many workers certainly take of those budgets that are too small for them."""
        limits, shared = self._accounts.limits, sum(self.shared.values())
        needs = added(self._of_slots(0, count, self._sure), {MEMORY: shared})
        return {kind: n for kind, n in needs.items() if kind in limits and n > limits[kind]}

    async def take(
        self, spec: messages.ModelSpec, timeout_s: float, *, is_wake: bool = False
    ) -> None:
        """Return when there is room for all workers of a declaration; those that it has room for count.

        `is_wake`: requests wait.

        Raises:
            RemoteFailure: there was none in time, or never will be.
        """
        count = slots.count(spec)
        self.check(spec, count)
        if not self.bounded or count <= self.granted:
            self.granted = max(self.granted, count)
            return
        if not self.granted:
            self._modest = False
        patient = self._patient and not self._serves and not is_wake
        before, waiting = self.granted, Waiting(self, count)
        try:
            await self._wait(waiting, timeout_s, patient=patient)
        except asyncio.CancelledError:
            if waiting.done.done():
                self.granted = min(self.granted, before)
            raise

    async def beside_others(self, load: Callable[[], Awaitable[_T]], timeout_s: float) -> _T:
        """Load when there is room for one more worker, until `give_beside`; raises likewise, and what that raises."""
        if not self.bounded:
            return await load()
        waiting = Waiting(self, 0)
        try:
            await self._wait(waiting, timeout_s)
            return await load()
        except BaseException:
            if waiting.done.done():
                self.give_beside()
            raise

    def give_beside(self) -> None:
        """Note that a worker has taken the place of another one."""
        if self.beside:
            self.beside -= 1
            self._accounts.news.tell()

    def want_less(self, count: int) -> None:
        """Lower what is waited for: it shall have so many workers."""
        for one in self._accounts.waiting:
            if one.account is self:
                one.count = min(one.count, count)

    def within(self, count: int) -> int:
        """Return how many of so many workers there is room for."""
        return min(count, self.granted) if self.bounded else count

    @property
    def crowded(self) -> bool:
        """Whether there is no memory for what is only convenient."""
        return self.bounded and self._accounts.crowded

    async def _wait(self, waiting: Waiting, timeout_s: float, *, patient: bool = False) -> None:
        """Wait for the grant; `patient`: so long after the last one of somebody else, and not from now on."""
        accounts, clock = self._accounts, asyncio.get_running_loop().time
        waiting.patient = patient
        accounts.waiting.append(waiting)
        accounts.news.tell()
        try:
            left_s = timeout_s
            while not waiting.done.done() and left_s > 0:
                await asyncio.wait([waiting.done], timeout=left_s)
                since = max(waiting.since, accounts.last_grant) if patient else waiting.since
                left_s = since + timeout_s - clock()
        finally:
            if waiting in accounts.waiting:
                accounts.waiting.remove(waiting)
            accounts.news.tell()
        if not waiting.done.done():
            raise self._no_room(waiting)
        waiting.done.result()

    def refuse(self, waiting: Waiting) -> None:
        """Refuse a claim of its own before its time is over: there will never be as much."""
        self._accounts.waiting.remove(waiting)
        waiting.done.set_exception(self._no_room(waiting))

    def leave(self, staying: int) -> Amounts:
        """All but so many workers are about to end; return what to give to `gone` when they have."""
        leaving = self._of_slots(staying, self.granted)
        self.granted = min(self.granted, staying)
        self._leaving.append(leaving)
        if not self.granted and self._peak.memory:
            # Not at once less than it was: this time nothing may have been asked of it that takes much.
            known = self.known or Size()
            self.known = self._peak.at_least(Size(known.memory * 9 // 10, known.gpu * 9 // 10))
            self._lived = True
            self._accounts.note(self)
        return leaving

    def gone(self, leaving: Amounts) -> None:
        """Note that these workers have ended."""
        self._leaving = [one for one in self._leaving if one is not leaving]
        if not self.granted and not self._leaving:
            self._peak, self._serves = Size(), False
        self._accounts.news.tell()

    def withdraw(self, why: str) -> None:
        """Refuse all claims: the pool is being ended."""
        for one in [one for one in self._accounts.waiting if one.account is self]:
            self._accounts.waiting.remove(one)
            if not one.done.done():
                one.done.set_exception(RemoteFailure(ErrorKind.UNAVAILABLE, why))

    def close(self) -> None:
        """Note that the pool has ended."""
        if self in self._accounts.open_accounts:
            self._accounts.open_accounts.remove(self)
        self._accounts.news.tell()

    # ── words ────────────────────────────────────────────────────────────────────────────────────

    def tell_waits(self, needs: Amounts, free: Amounts, why: str) -> None:
        """Tell that it waits for room."""
        self._accounts.waits += 1
        had = amounts_text({kind: max(0, free[kind]) for kind in needs if kind in free})
        self._events.tell(
            kinds.WAITS_FOR_MEMORY,
            reason=f"it needs {amounts_text(needs)}, and {had} is free; {why}",
            numbers={"needs": needs.get(MEMORY, 0), "free": free.get(MEMORY, 0)},
        )

    def _no_room(self, waiting: Waiting) -> RemoteFailure:
        needs, waited_s = waiting.needs(), asyncio.get_running_loop().time() - waiting.since
        name, limits, used = self.spec.name, self._accounts.limits, self._accounts.used()
        kind, needed, free = MEMORY, needs.get(MEMORY, 0), 0
        for one, lacking in needs.items():
            if one in limits and lacking > limits[one] - used[one]:
                kind, needed, free = one, lacking, max(0, limits[one] - used[one])
        text = (
            f"model {name} needs {size_text(needed)} of {setting_text(kind)}, and of {size_text(limits.get(kind, 0))} "
            f"{size_text(free)} were free for {waited_s:.0f} s: "
            f"{waiting.hindrance or 'all others are busy, or may not sleep; try again later'}"
        )
        self._refused(text, needed, limits.get(kind, 0))
        return RemoteFailure(ErrorKind.UNAVAILABLE, text)

    def _refused(self, why: str, needed: int, limit: int) -> None:
        self._accounts.refusals += 1
        self._events.tell(kinds.NO_MEMORY, reason=why, numbers={"needs": needed, "budget": limit})
