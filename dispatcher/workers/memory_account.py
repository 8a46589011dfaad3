"""Memory accounts: how much of the memory budgets each pool's workers hold, and the pool's claims for more.

acquire ──▶ pending claim ──▶ granted: the estimated size of its workers ──▶ loaded: their measured size
                 └──▶ refused, or not granted in time
begin_stop ──▶ stopping ──▶ finish_stop: the memory is free again

A pool acquires memory before it starts workers, and waits until its claim is granted. `scaling/memory_budget.py`
measures workers, records their sizes in the accounts, and grants or refuses claims by the rules of
`scaling/memory_policy.py`. Without a budget, all claims are granted at once.

The size of a worker is the declared size or the one measured after the last load, whichever is larger, and at least
what its workers hold now. Until it is known, it is estimated (`memory_policy.estimate`). Known sizes survive a restart
of the daemon (`KnownSize`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.scaling.memory_policy import (
    MEMORY,
    MIN_ESTIMATE,
    Amounts,
    Claim,
    KnownSize,
    Size,
    added,
    amounts_text,
    estimate,
    setting_text,
    size_text,
)
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.worker import instance_of, slot_count

_T = TypeVar("_T")
#: Maximum share of a budget that is estimated for all workers of a model of unknown size.
_MAX_ESTIMATED_SHARE = 0.5
#: Allowance for growth during the first requests, until a worker has been observed from its load to its exit.
_GROWTH_FACTOR, _GROWTH_BYTES = 1.05, 4 << 20


class Account:
    """The memory account of one pool.

    Attributes:
        spec: The model's declaration, with the current number of instances.
        bounded: Whether a budget applies to the pool.
        registration: Identifies the registration among others of the same model name, also after a daemon restart.
        granted: Number of workers that it has memory for.
        extra: Number of additional workers that it has memory for, each of which is about to replace another one.
        exclusive: Bytes of shared mappings that no other model's workers use, as measured by `MemoryBudget`.
        known: Size of a worker when the model was last loaded; None if it never was.
        shared: Mappings that its workers shared when the model was last loaded: digest -> bytes.
    """

    def __init__(
        self,
        accounts: MemoryAccounts,
        spec: messages.ModelSpec,
        payload: int = 0,
        *,
        bounded: bool = False,
        registration: str = "",
        background: bool = False,
        events: Events = LOG_ONLY,
    ) -> None:
        self.spec = spec
        self.bounded = bounded
        self.registration = registration
        self._is_background = background
        self.granted = self.extra = self.exclusive = 0
        self._stopping: list[Amounts] = []
        self._accounts = accounts
        self._payload = payload
        self._events = events
        self.known: Size | None = None
        self.shared: dict[str, int] = {}
        self._peak = Size()
        #: Whether a worker has served since the pool last had none, and whether one was observed from load to exit.
        self._has_served = self._lived = False
        #: Whether to use a low estimate while the size is unknown.
        self._uses_low_estimate = False

    # ── sizes ────────────────────────────────────────────────────────────────────────────────────

    @property
    def worker_size(self) -> Size:
        """The declared or measured size of one worker; an estimate if neither is known."""
        known = self._known_size
        memory = self._estimate(MEMORY, self._payload) if not known.memory else 0
        gpu = self._estimate(self._gpus(0)[0]) if not known.gpu and self._gpus(0) else 0
        return self._minimum_size.at_least(Size(memory, gpu))

    @property
    def _known_size(self) -> Size:
        """The larger of the declared size and the one measured after loading; 0 if neither is known."""
        declared = Size(self.spec.memory_request or 0, self.spec.gpu_memory_request or 0)
        return declared.at_least(self.known or Size())

    @property
    def is_estimated(self) -> bool:
        """Whether the size of a worker is neither declared nor measured."""
        known = self._known_size
        return not known.memory or (not known.gpu and bool(self._gpus(0)))

    @property
    def is_changing(self) -> bool:
        """Whether the pool may soon use less memory: workers are stopping, a size is estimated, or the pool may scale
        down.
        """
        autoscale = self.spec.autoscale
        may_shrink = autoscale is not None and self.granted > max(1, autoscale.least)
        is_guess = self.granted > 0 and self.is_estimated
        return bool(self._stopping or self.extra) or is_guess or may_shrink

    @property
    def _minimum_size(self) -> Size:
        """A lower bound on a worker's size, even while it is loading: the largest of the declared and all measured
        sizes.
        """
        peak = self._peak
        if self.spec.memory_request is None and peak.memory and not self._lived:
            peak = peak._replace(memory=round(peak.memory * _GROWTH_FACTOR) + _GROWTH_BYTES)
        return self._known_size.at_least(peak)

    def _estimate(self, kind: str, payload: int = 0) -> int:
        """Estimate the size of one worker, limiting the sum of all workers to a share of the budget."""
        limit = self._accounts.limits.get(kind, 0)
        most = round(limit * _MAX_ESTIMATED_SHARE) // max(1, slot_count(self.spec))
        if self._uses_low_estimate:
            return min(most, max(MIN_ESTIMATE, 2 * payload))
        return min(most, estimate(self._accounts.other_sizes(self, kind), payload, limit))

    def lower_estimate(self) -> None:
        """Use a lower estimate for a model of unknown size, because the usual estimate can never be granted."""
        self._uses_low_estimate = True

    @property
    def worker_bytes(self) -> int | None:
        """The memory of one worker in bytes; None without a budget."""
        return self.worker_size.memory if self.bounded else None

    @property
    def used(self) -> Amounts:
        """The memory used by or granted to all workers, including workers that are stopping."""
        unmapped = {MEMORY: self._unmapped_bytes() if self.granted else 0}
        extra = [self.one_worker] * self.extra
        return added(self._size_of_slots(0, self.granted), unmapped, *extra, *self._stopping)

    @property
    def one_worker(self) -> Amounts:
        """The size of the worker in slot 0, by resource."""
        return self._size_of_slots(0, 1)

    def needs(self, count: int) -> Amounts:
        """Return the additional memory needed for a total of `count` workers."""
        unmapped = {MEMORY: 0 if self.granted else self._unmapped_bytes()}
        return added(self._size_of_slots(self.granted, count), unmapped)

    def frees(self, staying: int) -> Amounts:
        """Return the memory that is freed when only `staying` workers remain."""
        return added(
            self._size_of_slots(staying, self.granted), {MEMORY: 0 if staying else self.exclusive}
        )

    def _unmapped_bytes(self) -> int:
        """Return the number of bytes of shared weights that no worker has mapped yet. The first worker to load will
        map them.
        """
        mapped = self._accounts.mapped
        return sum(size for digest, size in self.shared.items() if digest not in mapped)

    def _size_of_slots(self, first: int, end: int, each: Size | None = None) -> dict[str, int]:
        each, total = each or self.worker_size, {MEMORY: 0}
        for slot in range(first, end):
            total[MEMORY] += each.memory
            for gpu in self._gpus(slot):
                total[gpu] = total.get(gpu, 0) + each.gpu
        return total

    def _gpus(self, slot: int) -> list[str]:
        devices = self.spec.devices
        if not devices:
            return []
        device = devices[instance_of(self.spec, slot) % len(devices)]
        names = [name.strip() for name in (device or "").split(",") if name.strip()]
        return [self._accounts.gpus.get(name, name) for name in names]

    def record_size(self, size: Size) -> None:
        """Record the measured size of a worker."""
        self._peak = self._peak.at_least(size)

    def record_loaded(self, now: Size | None = None) -> None:
        """Record that a worker is serving, so that its measured size replaces the estimate.

        Args:
            now: Size of the largest serving worker.
        """
        if not self._peak.memory:
            return
        if not self._has_served and now is not None and any(self.shared.values()):
            # The worker that created the shared weights held them twice while loading; the others do not.
            self._peak = self._peak._replace(memory=now.memory)
        self._has_served = True
        if self.known is None:
            self.known = self._peak
            self._accounts.remember_size(self)

    @property
    def size(self) -> KnownSize | None:
        """The size of a worker, to be persisted; None if it is unknown."""
        if self.known is None:
            return None
        return KnownSize(self.registration, *self.known, dict(self.shared), self._lived)

    def restore_size(self, size: KnownSize) -> None:
        """Restore the size that was known before the daemon restarted. If it exceeds the budget, discard it.

        A size that exceeds the budget is measured again: a restart must not refuse a model that was served before.
        """
        self.known, self.shared = Size(size.memory, size.gpu), dict(size.shared)
        self._lived = size.lived
        if self._exceeded(slot_count(self.spec)):
            self.known, self.shared, self._lived = None, {}, False

    # ── claims ───────────────────────────────────────────────────────────────────────────────────

    def check(self, spec: messages.ModelSpec, count: int) -> None:
        """Check that `count` workers would fit into the budget if it were empty.

        Raises:
            RemoteFailure: The workers can never fit.
        """
        if not self.bounded:
            return
        self.spec = spec
        shared = sum(self.shared.values())
        for kind, needed in self._exceeded(count).items():
            limit = self._accounts.limits[kind]
            each = self._minimum_size.memory if kind == MEMORY else self._minimum_size.gpu
            what = size_text(needed) if count == 1 else f"{count} x {size_text(each)}"
            if count > 1 and shared and kind == MEMORY:
                what += f", plus {size_text(shared)} that they share"
            text = f"model {spec.name} needs {what}, but {setting_text(kind)} is {size_text(limit)} for all models"
            self._report_refusal(text, needed, limit)
            raise RemoteFailure(ErrorKind.INVALID, text)

    def _exceeded(self, count: int) -> Amounts:
        """Return the minimum memory that `count` workers need, for each budget that is too small for them."""
        limits, shared = self._accounts.limits, sum(self.shared.values())
        needs = added(self._size_of_slots(0, count, self._minimum_size), {MEMORY: shared})
        return {kind: n for kind, n in needs.items() if kind in limits and n > limits[kind]}

    async def acquire(
        self, spec: messages.ModelSpec, timeout_s: float, *, is_resume: bool = False
    ) -> None:
        """Wait until memory has been granted for all workers of `spec`, including those that are already running.

        Set `is_resume` if requests are waiting for the model.

        Raises:
            RemoteFailure: The memory was not free in time, or can never be granted.
        """
        count = slot_count(spec)
        self.check(spec, count)
        if not self.bounded or count <= self.granted:
            self.granted = max(self.granted, count)
            return
        if not self.granted:
            self._uses_low_estimate = False
        is_background = self._is_background and not self._has_served and not is_resume
        before, waiting = self.granted, PendingClaim(self, count)
        try:
            await self._wait(waiting, timeout_s, is_background=is_background)
        except asyncio.CancelledError:
            if waiting.done.done():
                self.granted = min(self.granted, before)
            raise

    async def load_extra(self, load: Callable[[], Awaitable[_T]], timeout_s: float) -> _T:
        """Wait for memory for one additional worker, then call `load`. `release_extra` releases that memory.

        Raises:
            RemoteFailure: The memory was not free in time. Exceptions of `load` propagate.
        """
        if not self.bounded:
            return await load()
        waiting = PendingClaim(self, 0)
        try:
            await self._wait(waiting, timeout_s)
            return await load()
        except BaseException:
            if waiting.done.done():
                self.release_extra()
            raise

    def release_extra(self) -> None:
        """Release the memory of a worker whose replacement was started alongside it."""
        if self.extra:
            self.extra -= 1
            self._accounts.changes.notify()

    def reduce_claims(self, count: int) -> None:
        """Lower pending claims to a total of `count` workers."""
        for one in self._accounts.waiting:
            if one.account is self:
                one.count = min(one.count, count)

    def granted_of(self, count: int) -> int:
        """Return how many of `count` workers have been granted memory."""
        return min(count, self.granted) if self.bounded else count

    @property
    def is_scarce(self) -> bool:
        """Whether memory is too scarce for optional uses such as prestarted workers."""
        return self.bounded and self._accounts.is_scarce

    async def _wait(
        self, waiting: PendingClaim, timeout_s: float, *, is_background: bool = False
    ) -> None:
        """Wait until a claim is granted. If it is a background claim, restart the timeout whenever any other claim is
        granted.
        """
        accounts, clock = self._accounts, asyncio.get_running_loop().time
        waiting.is_background = is_background
        accounts.waiting.append(waiting)
        accounts.changes.notify()
        try:
            left_s = timeout_s
            while not waiting.done.done() and left_s > 0:
                await asyncio.wait([waiting.done], timeout=left_s)
                since = max(waiting.since, accounts.last_grant) if is_background else waiting.since
                left_s = since + timeout_s - clock()
        finally:
            if waiting in accounts.waiting:
                accounts.waiting.remove(waiting)
            accounts.changes.notify()
        if not waiting.done.done():
            raise self._shortage_failure(waiting)
        waiting.done.result()

    def refuse(self, waiting: PendingClaim) -> None:
        """Refuse a claim that can never be granted, without waiting for its timeout."""
        self._accounts.waiting.remove(waiting)
        waiting.done.set_exception(self._shortage_failure(waiting))

    def begin_stop(self, staying: int) -> Amounts:
        """Mark all but `staying` workers as stopping. Once they have exited, pass the result to `finish_stop`."""
        leaving = self._size_of_slots(staying, self.granted)
        self.granted = min(self.granted, staying)
        self._stopping.append(leaving)
        if not self.granted and self._peak.memory:
            # Lower the known size only gradually: this time there may have been no demanding requests.
            known = self.known or Size()
            self.known = self._peak.at_least(Size(known.memory * 9 // 10, known.gpu * 9 // 10))
            self._lived = True
            self._accounts.remember_size(self)
        return leaving

    def finish_stop(self, leaving: Amounts) -> None:
        """Release the memory of workers that have exited."""
        self._stopping = [one for one in self._stopping if one is not leaving]
        if not self.granted and not self._stopping:
            self._peak, self._has_served = Size(), False
        self._accounts.changes.notify()

    def withdraw(self, why: str) -> None:
        """Refuse all pending claims of a pool that is being stopped."""
        for one in [one for one in self._accounts.waiting if one.account is self]:
            self._accounts.waiting.remove(one)
            if not one.done.done():
                one.done.set_exception(RemoteFailure(ErrorKind.UNAVAILABLE, why))

    def close(self) -> None:
        """Close the account of a pool that has stopped."""
        if self in self._accounts.open_accounts:
            self._accounts.open_accounts.remove(self)
        self._accounts.changes.notify()

    # ── events and error texts ───────────────────────────────────────────────────────────────────

    def report_waiting(self, needs: Amounts, free: Amounts, why: str) -> None:
        """Emit an event for a claim that is waiting for memory."""
        self._accounts.waits += 1
        available = amounts_text({kind: max(0, free[kind]) for kind in needs if kind in free})
        self._events.emit(
            kinds.WAITING_FOR_MEMORY,
            reason=f"it needs {amounts_text(needs)}, and {available} is free; {why}",
            numbers={"needs": needs.get(MEMORY, 0), "free": free.get(MEMORY, 0)},
        )

    def _shortage_failure(self, waiting: PendingClaim) -> RemoteFailure:
        needs, waited_s = waiting.needs(), asyncio.get_running_loop().time() - waiting.since
        name, limits, used = self.spec.name, self._accounts.limits, self._accounts.used()
        kind, needed, free = MEMORY, needs.get(MEMORY, 0), 0
        for one, lacking in needs.items():
            if one in limits and lacking > limits[one] - used[one]:
                kind, needed, free = one, lacking, max(0, limits[one] - used[one])
        text = (
            f"model {name} needs {size_text(needed)} of {setting_text(kind)}, but only {size_text(free)} of "
            f"{size_text(limits.get(kind, 0))} were free for {waited_s:.0f} s: "
            f"{waiting.shortage or 'all other models are busy or may not be suspended; try again later'}"
        )
        self._report_refusal(text, needed, limits.get(kind, 0))
        return RemoteFailure(ErrorKind.UNAVAILABLE, text)

    def _report_refusal(self, why: str, needed: int, limit: int) -> None:
        self._accounts.refusals += 1
        self._events.emit(
            kinds.INSUFFICIENT_MEMORY, reason=why, numbers={"needs": needed, "budget": limit}
        )


# ── A pool's claim for the memory of more workers, until it is granted, refused or withdrawn ──


class PendingClaim:
    """A pending claim.

    Attributes:
        account: The account that makes the claim.
        count: Total number of workers that need memory; 0 for one temporary additional worker.
        since: When the claim was made.
        done: Resolves when the claim is granted.
        is_reported: Whether the wait has been reported as an event.
        is_deferred: Whether the claim was considered but could not be granted yet.
        is_background: Whether the claim may wait for a long time, because no client is waiting for it.
        checked_at: When it was last checked whether the claim can ever be granted.
        shortage: A sentence about the models that hold the memory, and what would help; "" until the first check.
    """

    def __init__(self, account: Account, count: int) -> None:
        loop = asyncio.get_running_loop()
        self.account = account
        self.count = count
        self.since = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.is_reported = self.is_deferred = self.is_background = False
        self.checked_at = 0.0
        self.shortage = ""

    def needs(self) -> Amounts:
        """Return the additional memory that the claim needs."""
        return self.account.needs(self.count) if self.count else self.account.one_worker

    def grant(self) -> None:
        """Reserve the memory in the account and resume the waiting caller."""
        account = self.account
        if self.count:
            account.granted = max(account.granted, self.count)
        else:
            account.extra += 1
        self.done.set_result(None)


# ── The memory accounts of all pools: what their workers use of the memory budgets, and the pending claims ──

#: Maximum number of model names whose size is remembered.
_MAX_SIZES = 10_000


class MemoryAccounts:
    """The memory accounts of all pools.

    Args:
        limits: The budgets in bytes, by resource. Other resources are not bounded.
        gpus: Alternative names of GPUs, such as UUIDs -> name in `limits`.

    Attributes:
        mapped: Shared mappings of all workers: digest -> bytes. Each counts once.
        waiting: Pending claims, oldest first.
        changes: Notified when memory is claimed or returned.
        waits, refusals: Number of claims that had to wait, and of those that were refused.
        suspended: Number of times that a model was suspended for another one.
        last_grant: Time of the last grant.
        sizes: Known sizes of models by name, persisted for the next start of the daemon.
    """

    def __init__(
        self, limits: Amounts | None = None, gpus: Mapping[str, str] | None = None
    ) -> None:
        self.limits: dict[str, int] = dict(limits or {})
        self.gpus: dict[str, str] = dict(gpus or {})
        self.mapped: dict[str, int] = {}
        self.waiting: list[PendingClaim] = []
        self.changes = ChangeSignal()
        self.waits = self.refusals = self.suspended = 0
        self.last_grant = 0.0
        self.open_accounts: list[Account] = []
        self.sizes: dict[str, KnownSize] = {}

    def open(
        self,
        spec: messages.ModelSpec,
        *,
        payload: int = 0,
        hosted: bool = False,
        registration: str = "",
        background: bool = False,
        events: Events = LOG_ONLY,
    ) -> Account:
        """Open and return the account of a new pool.

        Args:
            spec: The pool's model.
            registration: Identifies the registration among others of the same model name, also after a daemon restart.
            payload: Size of a worker's pickled callable in bytes.
            background: Whether the first load may wait while other claims are granted, because no client is waiting for
                it.
            hosted: Whether the workers are threads of the registrant, whose memory does not count.
            events: Receives the events about the model's memory.
        """
        account = Account(
            self,
            spec,
            payload,
            bounded=bool(self.limits) and not hosted,
            registration=registration,
            background=background,
            events=events,
        )
        if account.bounded:
            self.open_accounts.append(account)
            size = self.sizes.get(spec.name)
            if size is not None and size.registration == registration:
                account.restore_size(size)
        return account

    def remember_size(self, account: Account) -> None:
        """Remember a model's size, unless a newer account has the same name. If there are too many sizes, drop the oldest."""
        name, size = account.spec.name, account.size
        newest = [one for one in self.open_accounts if one.spec.name == name][-1:]
        if size is None or newest != [account]:
            return
        self.sizes.pop(name, None)
        self.sizes[name] = size
        while len(self.sizes) > _MAX_SIZES:
            del self.sizes[next(iter(self.sizes))]

    async def until_deferred(
        self, loading: asyncio.Task[bool] | asyncio.Task[None], model: str
    ) -> None:
        """Wait until `loading` is done or is waiting for memory. In both cases, the next load can start."""
        if not self.limits:
            await asyncio.wait([loading])
            return
        waits = asyncio.ensure_future(self._until_model_waits(model))
        try:
            await asyncio.wait([loading, waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()

    async def _until_model_waits(self, model: str) -> None:
        while True:
            change = self.changes.next
            if any(one.is_deferred and one.account.spec.name == model for one in self.waiting):
                return
            await change.wait()

    def used(self) -> dict[str, int]:
        """Return the memory used by or granted to all workers, by resource."""
        shared = {MEMORY: sum(self.mapped.values())}
        used = (one.used for one in self.open_accounts)
        return added(dict.fromkeys(self.limits, 0), shared, *used)

    def claims(self) -> list[Claim]:
        """Return the pending claims."""
        return [Claim(str(id(one)), one.needs(), one.since) for one in self.waiting]

    def grant(self, key: str) -> None:
        """Grant a pending claim by its key."""
        for one in self.waiting:
            if str(id(one)) == key:
                one.grant()
                self.last_grant = asyncio.get_running_loop().time()
                self.waiting.remove(one)
                return

    @property
    def is_scarce(self) -> bool:
        """Whether memory is too scarce for optional uses such as prestarted workers."""
        if self.waiting or not self.limits:
            return bool(self.waiting)
        return self.used()[MEMORY] + MIN_ESTIMATE > self.limits.get(MEMORY, sys.maxsize)

    def other_sizes(self, account: Account, kind: str) -> list[int]:
        """Return the known worker sizes of all other accounts, including the model's previous registration."""
        others = [one.known for one in self.open_accounts if one is not account and one.known]
        sizes = (one.memory if kind == MEMORY else one.gpu for one in others)
        return [size for size in sizes if size]
