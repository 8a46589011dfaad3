"""The memory budget: a loop that measures workers, grants claims for memory, and suspends idle models to make room.

    memory of workers ──▶ accounts ──▶ memory_policy.plan ──▶ grant claims
    (/proc, GPUs)                                         └─▶ suspend models (BackgroundChanges)

A pool claims memory for its workers before it starts them (`workers/memory_account.py`). The rules are pure functions
in `memory_policy.py`. This loop applies them twice a second, every 50 ms while a claim waits, and at once when an
account changes. In each step it

1. records the measured sizes of all workers in the accounts of their pools,
2. refuses claims that no suspension can satisfy, after a few seconds,
3. grants the claims for which there is memory, and
4. suspends idle models, in background tasks, so that no model waits for another one to stop.

Without a budget it does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.parsing import budget_of
from pytriton._protocol import linux, messages
from pytriton._protocol.files.shared_entries import SharedEntry
from pytriton.dispatcher.models.admission import why_it_cannot_suspend
from pytriton.dispatcher.models.persistence.size_store import SizeStore
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.scaling.memory_policy import (
    MEMORY,
    Amounts,
    Claim,
    MemoryHolder,
    Size,
    added,
    amounts_text,
    is_in_reach,
    plan,
    resource_text,
    shortage,
)
from pytriton.dispatcher.scaling.policy import MachineResources
from pytriton.dispatcher.telemetry.metrics import process_memory
from pytriton.dispatcher.telemetry.metrics.process_memory import GpuMemory, memory_of
from pytriton.dispatcher.workers.memory_account import MemoryAccounts, PendingClaim

_log = structlog.get_logger(__name__)

#: Interval between steps, with and without pending claims.
_PENDING_TICK_S, _TICK_S = 0.05, 0.5
#: How long a newly loaded model is not suspended before its first batch.
_LOADED_GRACE_S = 1.0
#: How long a claim must wait before an event reports it.
_REPORT_AFTER_S = 0.25
#: Interval between checks of whether a claim can ever be granted.
_CHECK_INTERVAL_S = 0.5
#: How long a claim that can never be granted waits before it is refused.
_REFUSE_AFTER_S = 5.0
#: Interval between writes of the known sizes, if they have changed.
_WRITE_INTERVAL_S = 5.0
#: Interval between measurements of GPU memory, which cost some CPU time.
_GPU_INTERVAL_S = 1.0
#: Prefix of the keys of prestarted workers, to distinguish them from the keys of models.
_PRESTARTED = "prestarted "

#: Returns the private host memory and the GPU memory of a process, by its pid.
MemoryOf = Callable[[int], Size]


class _ModelUse:
    """When a model was last used, and when it was loaded.

    Attributes:
        at: Time of its last request or load.
        loaded_at: When a worker was first observed to be serving; None while none is.
    """

    def __init__(self, now: float) -> None:
        self.at = now
        self.loaded_at: float | None = None
        self._mark: object = None

    def update(self, registration: Registration, now: float) -> bool:
        """Record whether the model is in use now. Return whether it is idle; a newly loaded model does not count as idle yet."""
        pool = registration.pool
        answered = pool.answered_if_idle()
        mark = (answered, pool.can_serve)
        if answered is None or mark != self._mark:
            self.at = now
        self._mark = mark
        if not pool.can_serve:
            self.loaded_at = None
        elif self.loaded_at is None:
            self.loaded_at = now
        if answered is None:
            return False
        return answered > 0 or self.loaded_at is None or now - self.loaded_at >= _LOADED_GRACE_S


class MemoryBudget:
    """The loop that updates memory accounts with measurements, and grants or refuses claims.

    Args:
        registry: The models and the accounts of their pools.
        size_store: Persistent store of known sizes.
        suspend_any_idle_model: Whether any idle model may be suspended, not only those that have opted in.
        shared: Returns the mappings that workers share, by digest.

    Attributes:
        memory: Measures the memory of a process.
        gpu: Bytes of GPU memory by pid, where known.
    """

    def __init__(
        self,
        registry: Registry,
        size_store: SizeStore,
        *,
        suspend_any_idle_model: bool = False,
        shared: Callable[[], Mapping[str, SharedEntry]] = dict,
    ) -> None:
        self.memory: MemoryOf = self._memory_of
        self.gpu: Mapping[int, int] = {}
        self._shared = shared
        self._size_store = size_store
        self._registry = registry
        self._accounts = registry.accounts
        self._prestarted = registry.prestarted
        self._suspend_any = suspend_any_idle_model
        self._uses: dict[str, _ModelUse] = {}
        #: Memory that will be freed by models that are being suspended, by key.
        self._suspending: dict[str, Amounts] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run a step periodically and whenever an account changes, until cancelled."""
        if not self._accounts.limits:
            return
        if any(kind != MEMORY for kind in self._accounts.limits):
            gpu_task = asyncio.get_running_loop().create_task(self._measure_gpus())
            self._tasks.add(gpu_task)
        self._tasks.add(asyncio.get_running_loop().create_task(self._persist_sizes()))
        try:
            while True:
                change = self._accounts.changes.next
                pause_s = _TICK_S
                try:
                    self.step()
                    pause_s = _PENDING_TICK_S if self._accounts.waiting else _TICK_S
                except Exception:
                    _log.exception("internal error in the memory budget; no memory was granted")
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(change.wait(), pause_s)
        finally:
            for task in self._tasks:
                task.cancel()

    def step(self) -> None:
        """Measure workers, grant claims and suspend models once."""
        now = asyncio.get_running_loop().time()
        self._measure()
        free = self.free()
        holders = list(self._holders(now))
        coming = added(*self._suspending.values())
        self._refuse_unreachable(holders, free, coming, now)
        planned = plan(self._claims(), holders, free, coming, now)
        waiting = {str(id(one)): one for one in self._accounts.waiting}
        for key in planned.granted:
            self._accounts.grant(key)
        self._mark_deferred()
        frees = {one.key: one.frees for one in holders}
        for key, claim in planned.suspend.items():
            for_whom = waiting[claim].account.spec.name if claim else ""
            self._start_suspension(key, frees[key], for_whom, now)
        for key, one in waiting.items():
            if (
                key not in planned.granted
                and not one.is_reported
                and now - one.since >= _REPORT_AFTER_S
            ):
                one.is_reported = True
                self._report_waiting(one, free, [k for k, c in planned.suspend.items() if c == key])

    async def _persist_sizes(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_INTERVAL_S)
            sizes = dict(self._accounts.sizes)
            if self._size_store.lacks(sizes):
                await asyncio.to_thread(self._size_store.write, sizes)

    def close(self) -> None:
        """Persist the known sizes. Called after all models have stopped."""
        if self._accounts.limits and self._size_store.lacks(self._accounts.sizes):
            self._size_store.write(self._accounts.sizes)

    def _mark_deferred(self) -> None:
        """Mark the claims that were not granted, and wake the tasks that are waiting in `until_deferred`."""
        new = [one for one in self._accounts.waiting if not one.is_deferred]
        for one in new:
            one.is_deferred = True
        if new:
            self._accounts.changes.notify()

    def _claims(self) -> list[Claim]:
        keys = {one.pool.account: key for key, one in self._registry.served.keys.items()}
        return [
            claim._replace(of=keys.get(one.account, ""))
            for claim, one in zip(self._accounts.claims(), self._accounts.waiting)
        ]

    def _refuse_unreachable(
        self, holders: Sequence[MemoryHolder], free: Amounts, coming: Amounts, now: float
    ) -> None:
        """Lower the estimates of claims that can never be granted; after some seconds, refuse the claims."""
        for claim, one in zip(self._claims(), list(self._accounts.waiting)):
            if now - max(one.since, one.checked_at) < _CHECK_INTERVAL_S:
                continue
            one.checked_at, in_reach = now, is_in_reach(claim, holders, free, coming)
            one.shortage = shortage(claim, holders, is_in_reach=in_reach)
            if in_reach:
                continue
            if one.account.is_estimated:
                one.account.lower_estimate()
            if (
                now - one.since >= _REFUSE_AFTER_S
                and not one.is_background
                and not self._may_change(one)
            ):
                one.account.refuse(one)

    def _may_change(self, waiting: PendingClaim) -> bool:
        """Return whether other models may soon free memory even if none is suspended for this claim."""
        others = [one for one in self._accounts.open_accounts if one is not waiting.account]
        ending = any(one.state == "stopping" for one in self._registry.served.keys.values())
        return ending or bool(self._suspending) or any(one.is_changing for one in others)

    # ── measurements ─────────────────────────────────────────────────────────────────────────────

    def free(self) -> dict[str, int]:
        """Return the unused part of each budget in bytes; negative if the budget is exceeded."""
        used = self.used()
        return {kind: limit - used[kind] for kind, limit in self._accounts.limits.items()}

    def used(self) -> dict[str, int]:
        """Return the memory used by or granted to all workers, including prestarted ones and shared mappings."""
        used = self._accounts.used()
        used[MEMORY] = used.get(MEMORY, 0)
        used[MEMORY] += sum(self.memory(worker.pid).memory for worker in self._prestarted.workers())
        return used

    def available(self, machine: MachineResources) -> MachineResources:
        """Return the machine's resources, limited to what the budgets would leave if all idle models were suspended."""
        if MEMORY not in self._accounts.limits:
            return machine
        now = asyncio.get_running_loop().time()
        free = added(self.free(), *(one.frees for one in self._holders(now) if one.idle))
        memory = free[MEMORY] if machine.memory is None else min(machine.memory, free[MEMORY])
        return machine._replace(memory=memory)

    def infos(self) -> list[messages.MemoryInfo]:
        """Return the budgets and their usage as shown by `status`."""
        used, claims = self.used() if self._accounts.limits else {}, self._accounts.claims()
        return [
            messages.MemoryInfo(
                resource=resource_text(kind),
                budget=limit,
                used=used[kind],
                waiting=sum(1 for one in claims if one.needs.get(kind, 0) > 0),
            )
            for kind, limit in self._accounts.limits.items()
        ]

    def _measure(self) -> None:
        accounts, entries = self._accounts, self._shared()
        accounts.mapped = {digest: entry.size for digest, entry in entries.items()}
        for registration in self._registry.served.keys.values():
            account = registration.pool.account
            if not account.bounded:
                continue
            pool = registration.pool
            pids = {one.pid for one in pool.infos() if one.pid is not None}
            sizes = {pid: self.memory(pid) for pid in pids}
            for size in sizes.values():
                account.record_size(size)
            holders = {
                digest: {one.pid for one in entry.holders} for digest, entry in entries.items()
            }
            own = {digest: entries[digest].size for digest in entries if holders[digest] & pids}
            account.exclusive = sum(own[digest] for digest in own if holders[digest] <= pids)
            serving = [worker.pid for worker in map(pool.worker, pool.ready_workers()) if worker]
            if serving:
                account.shared = own
                account.record_loaded(max(sizes.get(pid, Size()) for pid in serving))

    # ── candidates for suspension ─────────────────────────────────────────────────────────────────────

    def _holders(self, now: float) -> Iterator[MemoryHolder]:
        waits = {one.account for one in self._accounts.waiting}
        for number, (account, worker) in enumerate(self._prestarted.items()):
            if account not in waits:
                size = self.memory(worker.pid).memory
                yield MemoryHolder(
                    f"{_PRESTARTED}{worker.name}", {MEMORY: size}, number - 1e9, True
                )
        uses: dict[str, _ModelUse] = {}
        for key, registration in self._registry.served.keys.items():
            use = uses[key] = self._uses.get(key) or _ModelUse(now)
            is_idle = use.update(registration, now)
            if key in self._suspending or not registration.pool.account.granted:
                continue
            suspendable = self._is_suspendable(registration.spec)
            idle = is_idle and suspendable and self._may_suspend_now(registration)
            yield MemoryHolder(key, registration.pool.frees, use.at, idle, suspendable)
        self._uses = uses

    def _is_suspendable(self, spec: messages.ModelSpec) -> bool:
        opted_in = spec.lazy or (spec.autoscale is not None and spec.autoscale.least == 0)
        return (opted_in or self._suspend_any) and not why_it_cannot_suspend(spec)

    def _may_suspend_now(self, registration: Registration) -> bool:
        pool = registration.pool
        return (
            not pool.suspension.suspended
            and (pool.can_serve or pool.is_crash_looping)
            and not (pool.suspension.resuming and not pool.is_crash_looping)
            and self._registry.background_changes.is_quiescent(registration)
        )

    # ── suspending models ──────────────────────────────────────────────────────────────────

    def _start_suspension(self, key: str, frees: Amounts, for_whom: str, now: float) -> None:
        self._suspending[key] = frees
        why = f"model {for_whom} needs its memory" if for_whom else "the budget is exceeded"
        if key.startswith(_PRESTARTED):
            suspension = self._prestarted.drop_named(key[len(_PRESTARTED) :])
        else:
            suspension = self._suspend(self._registry.served.keys[key], frees, why, now)
        task = asyncio.get_running_loop().create_task(suspension)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish_suspension, key))

    async def _suspend(
        self, registration: Registration, frees: Amounts, why: str, now: float
    ) -> None:
        idle_s = max(0.0, now - self._uses[registration.key].at)
        why = f"{why}: this frees {amounts_text(frees)}, and it had no requests for {idle_s:.1f} s"
        if await self._registry.background_changes.suspend(registration, idle_s, why):
            self._accounts.suspended += 1

    def _finish_suspension(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._suspending.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            _log.error("could not suspend a model", registration=key, exc_info=task.exception())
        self._accounts.changes.notify()

    def _report_waiting(
        self, one: PendingClaim, free: Mapping[str, int], victims: list[str]
    ) -> None:
        names = [key.partition("#")[0] for key in victims if not key.startswith(_PRESTARTED)]
        why = (
            f"suspending {', '.join(names)} to free memory"
            if names
            else "other models are stopping, or no model that may be suspended is idle"
        )
        one.account.report_waiting(one.needs(), free, why)

    async def _measure_gpus(self) -> None:
        nvml = GpuMemory()
        while True:
            self.gpu = await asyncio.get_running_loop().run_in_executor(None, nvml.peak_by_process)
            await asyncio.sleep(_GPU_INTERVAL_S)

    def _memory_of(self, pid: int) -> Size:
        """Return the private memory of a process in bytes."""
        seen = memory_of(pid)
        own = 0 if seen is None else max(0, seen.resident - seen.shared)
        return Size(own, self.gpu.get(pid, 0))


def accounts_of(config: DaemonConfig, size_store: SizeStore) -> MemoryAccounts:
    """Create the daemon's memory accounts with the configured budgets and the persisted sizes."""
    limits: dict[str, int] = {}
    names: dict[str, str] = {}
    if config.memory_budget is not None:
        limits[MEMORY] = budget_of(config.memory_budget, linux.total_memory())
    if config.gpu_memory_budget is not None:
        found = process_memory.gpus()
        for gpu in found:
            limits[gpu.number] = budget_of(config.gpu_memory_budget, gpu.total)
            names[gpu.uuid] = gpu.number
        if not found:
            _log.warning(
                "gpu_memory_budget has no effect: nvidia-smi is not installed or lists no GPUs"
            )
    accounts = MemoryAccounts(limits, names)
    if limits:
        accounts.sizes.update(size_store.read())
    return accounts
