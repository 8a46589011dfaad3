"""The loop that keeps the workers of all models within the budgets: it measures, and has models sleep for others.

    workers' memory ──▶ accounts ──▶ elastic/memory.py: who may load, who sleeps ──▶ grants, adaptations.put_to_sleep

Without a budget it does nothing. A step takes no time: it reads /proc and gauges, and whatever takes long, the end of a
model's workers, goes on beside it. So nobody waits for somebody else's load.
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
from pytriton._protocol.files.shared_entries import Entry
from pytriton.dispatcher.elastic.memory import (
    MEMORY,
    Amounts,
    Claim,
    Holder,
    Size,
    added,
    amounts_text,
    hindrance,
    is_in_reach,
    plan,
    resource_text,
)
from pytriton.dispatcher.elastic.sharing import Room
from pytriton.dispatcher.models.admission import why_it_cannot_sleep
from pytriton.dispatcher.models.persistence.size_store import SizeStore
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.telemetry.metrics import nvidia_smi
from pytriton.dispatcher.telemetry.metrics.gpu_memory import GpuMemory
from pytriton.dispatcher.telemetry.metrics.process_memory import memory_of
from pytriton.dispatcher.workers.memory_accounts import MemoryAccounts
from pytriton.dispatcher.workers.memory_claim import Waiting

_log = structlog.get_logger(__name__)

#: From one look to the next, with somebody waiting and without.
_HURRIED_S, _TICK_S = 0.05, 0.5
#: A model that was loaded and has not answered yet is left alone for so long: what it was loaded for comes now.
_SETTLED_S = 1.0
#: Whether a model that waits is worth an event: after so long.
_TELL_AFTER_S = 0.25
#: Who asks for what will never be there, as far as is known, waits for so long: somebody may be ending.
_HOPES_S = 0.5
#: Who asks for what those that may sleep do not have, and nobody ends, is refused after so long.
_HOPELESS_S = 5.0
#: What is known of sizes is kept so often, if it has changed.
_KEEP_S = 5.0
#: Between two looks at GPUs, which take some time of a CPU.
_GPU_S = 1.0
#: Begins the keys of parked workers among those of models.
_PARKED = "parked "

#: Tells the memory of its own that each of some processes has, and of GPUs.
MemoryOf = Callable[[int], Size]


class _Use:
    """The use of one model, as far as it was seen.

    Attributes:
        at: when something was last asked of it, or it was loaded
        loaded_at: when a worker of it was first seen to serve; None while none does
    """

    def __init__(self, now: float) -> None:
        self.at = now
        self.loaded_at: float | None = None
        self._mark: object = None

    def look(self, registration: Registration, now: float) -> bool:
        """See whether it is used; return whether nothing is under way."""
        pool = registration.pool
        answered = pool.at_rest()
        mark = (answered, pool.can_serve)
        if answered is None or mark != self._mark:
            self.at = now
        self._mark = mark
        if not pool.can_serve:
            self.loaded_at = None
        elif self.loaded_at is None:
            self.loaded_at = now
        return answered is not None and self._is_settled(answered, now)

    def _is_settled(self, answered: int, now: float) -> bool:
        return answered > 0 or self.loaded_at is None or now - self.loaded_at >= _SETTLED_S


class MemoryBudget:
    """Keeps the accounts' figures true, and decides who gets room.

    Args:
        registry: the models, and the accounts of their pools
        kept: has what is known of sizes, for the next start
        any_may_sleep: also models that have not said that they may
        shared: tells what workers have in common, by digest

    Attributes:
        memory: tells what a process has
        gpu: bytes of GPUs by process, as far as they are known
    """

    def __init__(
        self,
        registry: Registry,
        kept: SizeStore,
        *,
        any_may_sleep: bool = False,
        shared: Callable[[], Mapping[str, Entry]] = dict,
    ) -> None:
        self.memory: MemoryOf = self._memory_of
        self.gpu: Mapping[int, int] = {}
        self._shared = shared
        self._kept = kept
        self._registry = registry
        self._accounts = registry.accounts
        self._parking = registry.parking
        self._any_may_sleep = any_may_sleep
        self._uses: dict[str, _Use] = {}
        #: What those give back that fall asleep at the moment.
        self._falling: dict[str, Amounts] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look and decide, whenever something has changed, and again and again."""
        if not self._accounts.limits:
            return
        if any(kind != MEMORY for kind in self._accounts.limits):
            looking = asyncio.get_running_loop().create_task(self._look_at_gpus())
            self._tasks.add(looking)
        self._tasks.add(asyncio.get_running_loop().create_task(self._keep_on()))
        try:
            while True:
                news = self._accounts.news.next
                pause_s = _TICK_S
                try:
                    self.step()
                    pause_s = _HURRIED_S if self._accounts.waiting else _TICK_S
                except Exception:
                    _log.exception("a fault of the daemon: nobody got memory")
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), pause_s)
        finally:
            for task in self._tasks:
                task.cancel()

    def step(self) -> None:
        """Do it once."""
        now = asyncio.get_running_loop().time()
        self._measure()
        free = self.free()
        holders = list(self._holders(now))
        coming = added(*self._falling.values())
        self._judge(holders, free, coming, now)
        planned = plan(self._claims(), holders, free, coming, now)
        waiting = {str(id(one)): one for one in self._accounts.waiting}
        for key in planned.granted:
            self._accounts.grant(key)
        self._put_off()
        gives = {one.key: one.gives for one in holders}
        for key, claim in planned.sleep.items():
            for_whom = waiting[claim].account.spec.name if claim else ""
            self._have_sleep(key, gives[key], for_whom, now)
        for key, one in waiting.items():
            if key not in planned.granted and not one.told and now - one.since >= _TELL_AFTER_S:
                one.told = True
                self._tell_waits(one, free, [k for k, c in planned.sleep.items() if c == key])

    async def _keep_on(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            sizes = dict(self._accounts.sizes)
            if self._kept.lacks(sizes):
                await asyncio.to_thread(self._kept.write, sizes)

    def close(self) -> None:
        """Keep what is known of sizes; all models have ended."""
        if self._accounts.limits and self._kept.lacks(self._accounts.sizes):
            self._kept.write(self._accounts.sizes)

    def _put_off(self) -> None:
        """Tell those who wait for a load that it waits for room."""
        new = [one for one in self._accounts.waiting if not one.put_off]
        for one in new:
            one.put_off = True
        if new:
            self._accounts.news.tell()

    def _claims(self) -> list[Claim]:
        keys = {one.pool.account: key for key, one in self._registry.keys.items()}
        return [
            claim._replace(of=keys.get(one.account, ""))
            for claim, one in zip(self._accounts.claims(), self._accounts.waiting)
        ]

    def _judge(self, holders: Sequence[Holder], free: Amounts, coming: Amounts, now: float) -> None:
        """See who waits for what there will never be: an estimate becomes less, and all else is refused."""
        for claim, one in zip(self._claims(), list(self._accounts.waiting)):
            if now - max(one.since, one.judged_at) < _HOPES_S:
                continue
            one.judged_at, in_reach = now, is_in_reach(claim, holders, free, coming)
            one.hindrance = hindrance(claim, holders, is_in_reach=in_reach)
            if in_reach:
                continue
            if one.account.is_estimated:
                one.account.ask_for_less()
            if now - one.since >= _HOPELESS_S and not one.patient and not self._may_change(one):
                one.account.refuse(one)

    def _may_change(self, waiting: Waiting) -> bool:
        """Whether others may soon have less, though they do not sleep."""
        others = [one for one in self._accounts.open_accounts if one is not waiting.account]
        ending = any(one.state == "stopping" for one in self._registry.keys.values())
        return ending or bool(self._falling) or any(one.is_changing for one in others)

    # ── figures ──────────────────────────────────────────────────────────────────────────────────

    def free(self) -> dict[str, int]:
        """Return what nobody has of the budgets; below 0: some have grown beyond them."""
        used = self.used()
        return {kind: limit - used[kind] for kind, limit in self._accounts.limits.items()}

    def used(self) -> dict[str, int]:
        """Return what all workers have, or have been granted, and what they share."""
        used = self._accounts.used()
        used[MEMORY] = used.get(MEMORY, 0)
        used[MEMORY] += sum(self.memory(worker.pid).memory for worker in self._parking.workers())
        return used

    def room(self, machine: Room) -> Room:
        """Return the room for more instances: of the machine, and of the budgets with all others asleep that may."""
        if not self._accounts.limits:
            return machine
        now = asyncio.get_running_loop().time()
        free = added(self.free(), *(one.gives for one in self._holders(now) if one.idle))
        memory = machine.memory
        if MEMORY in self._accounts.limits:
            memory = free[MEMORY] if memory is None else min(memory, free[MEMORY])
        gpus = {kind: free[kind] for kind in self._accounts.limits if kind != MEMORY}
        return machine._replace(memory=memory, gpu_memory={**machine.gpu_memory, **gpus})

    def infos(self) -> list[messages.MemoryInfo]:
        """Return what status shows."""
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
        for registration in self._registry.keys.values():
            account = registration.pool.account
            if not account.bounded:
                continue
            pool = registration.pool
            pids = {one.pid for one in pool.infos() if one.pid is not None}
            sizes = {pid: self.memory(pid) for pid in pids}
            for size in sizes.values():
                account.seen(size)
            holders = {
                digest: {one.pid for one in entry.holders} for digest, entry in entries.items()
            }
            own = {digest: entries[digest].size for digest in entries if holders[digest] & pids}
            account.alone = sum(own[digest] for digest in own if holders[digest] <= pids)
            serving = [worker.pid for worker in map(pool.worker, pool.ready_workers()) if worker]
            if serving:
                account.shared = own
                account.loaded(max(sizes.get(pid, Size()) for pid in serving))

    # ── who may sleep ────────────────────────────────────────────────────────────────────────────

    def _holders(self, now: float) -> Iterator[Holder]:
        waits = {one.account for one in self._accounts.waiting}
        for number, (account, worker) in enumerate(self._parking.items()):
            if account not in waits:
                size = self.memory(worker.pid).memory
                yield Holder(f"{_PARKED}{worker.name}", {MEMORY: size}, number - 1e9, True)
        uses: dict[str, _Use] = {}
        for key, registration in self._registry.keys.items():
            use = uses[key] = self._uses.get(key) or _Use(now)
            at_rest = use.look(registration, now)
            if key in self._falling or not registration.pool.account.granted:
                continue
            willing = self._is_willing(registration.spec)
            idle = at_rest and willing and self._may_sleep_now(registration)
            yield Holder(key, registration.pool.gives, use.at, idle, willing)
        self._uses = uses

    def _is_willing(self, spec: messages.ModelSpec) -> bool:
        says_so = spec.lazy or (spec.autoscale is not None and spec.autoscale.least == 0)
        return (says_so or self._any_may_sleep) and not why_it_cannot_sleep(spec)

    def _may_sleep_now(self, registration: Registration) -> bool:
        pool = registration.pool
        return (
            not pool.sleep.asleep
            and (pool.can_serve or pool.is_hopeless)
            and not (pool.sleep.waking and not pool.is_hopeless)
            and self._registry.adaptations.is_at_rest(registration)
        )

    # ── carrying it out ──────────────────────────────────────────────────────────────────────────

    def _have_sleep(self, key: str, gives: Amounts, for_whom: str, now: float) -> None:
        self._falling[key] = gives
        why = f"model {for_whom} needs its memory" if for_whom else "the budget is exceeded"
        if key.startswith(_PARKED):
            doing = self._parking.drop_named(key[len(_PARKED) :])
        else:
            doing = self._put_to_sleep(self._registry.keys[key], gives, why, now)
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(partial(self._slept, key))

    async def _put_to_sleep(
        self, registration: Registration, gives: Amounts, why: str, now: float
    ) -> None:
        idle_s = max(0.0, now - self._uses[registration.key].at)
        why = (
            f"{why}: it gives {amounts_text(gives)}, and nothing was asked of it for {idle_s:.1f} s"
        )
        if await self._registry.adaptations.put_to_sleep(registration, idle_s, why):
            self._accounts.slept += 1

    def _slept(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._falling.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a model did not fall asleep", registration=key, exc_info=task.exception())
        self._accounts.news.tell()

    def _tell_waits(self, one: Waiting, free: Mapping[str, int], victims: list[str]) -> None:
        names = [key.partition("#")[0] for key in victims if not key.startswith(_PARKED)]
        why = (
            f"{', '.join(names)} sleeps for it"
            if names
            else "others end, or none that may sleep is idle"
        )
        one.account.tell_waits(one.needs(), free, why)

    async def _look_at_gpus(self) -> None:
        nvml = GpuMemory()
        while True:
            self.gpu = await asyncio.get_running_loop().run_in_executor(None, nvml.most)
            await asyncio.sleep(_GPU_S)

    def _memory_of(self, pid: int) -> Size:
        """Return what a process has of its own."""
        seen = memory_of(pid)
        own = 0 if seen is None else max(0, seen.resident - seen.shared)
        return Size(own, self.gpu.get(pid, 0))


def accounts_of(config: DaemonConfig, kept: SizeStore) -> MemoryAccounts:
    """Return the accounts of a daemon's models, with its budgets, and with what is known of sizes."""
    limits: dict[str, int] = {}
    names: dict[str, str] = {}
    if config.memory_budget is not None:
        limits[MEMORY] = budget_of(config.memory_budget, linux.total_memory())
    if config.gpu_memory_budget is not None:
        found = nvidia_smi.gpus()
        for gpu in found:
            limits[gpu.number] = budget_of(config.gpu_memory_budget, gpu.total)
            names[gpu.uuid] = gpu.number
        if not found:
            _log.warning(
                "gpu_memory_budget bounds nothing: nvidia-smi, which tells the GPUs, is not there or names none"
            )
    accounts = MemoryAccounts(limits, names)
    if limits:
        accounts.sizes.update(kept.read())
    return accounts
