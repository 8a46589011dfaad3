"""The autoscaler: a loop that samples the load of models, decides, and scales them.

    gauges of workers  ──▶ samples ──▶ elastic/policy.py: how many instances each model should have
    tritonserver's queue ─┘       ──▶ elastic/machine_share.py: how many fit on the machine ──▶ BackgroundChanges.follow_load

It reads shared memory and /proc, and queries tritonserver's metrics while a model is busy; no batch waits for it. Each
decision is emitted as an event with its figures, and shown by `status`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from pytriton._protocol import linux, messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.lanes.stats_page import NOTHING, Counts
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.scaling.policy import (
    Cost,
    Decision,
    Grant,
    MachineResources,
    Sample,
    Want,
    Window,
    decide,
    share_out,
)
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.metrics.process_memory import memory_of
from pytriton.dispatcher.workers.worker_process import usable_cpus

_log = structlog.get_logger(__name__)

#: The initiator of its changes in events.
_WHO = "autoscaling"
#: Interval between samples.
_TICK_S = 0.5
#: Share of the available memory that is kept free.
_RESERVE = 0.05
#: Weight of a new measurement of an instance's cost in the moving average.
_SMOOTHING = 0.2
#: Minimum busy time in a sample to measure the cost of an instance.
_MIN_WORK_S = 0.05
#: Back-off after a failed change, doubled after each further failure.
_BACKOFF_S = 10.0
_MAX_BACKOFF_S = 300.0
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ResourceUse(NamedTuple):
    """The resources used by a model's worker processes: total CPU seconds so far, average bytes of memory per process."""

    cpu_s: float
    memory: int


class _Followed:
    """One autoscaled registration, with its samples and measured cost."""

    def __init__(self, registration: Registration, rules: messages.Autoscale) -> None:
        self.registration = registration
        self.rules = rules
        self.window = Window(max(rules.up_after_s, rules.down_after_s) + 2 * _TICK_S)
        self.cost = Cost()
        self.decision: Decision | None = None
        self.grant = Grant(registration.spec.instances)
        self.changing: asyncio.Task[None] | None = None
        self.pause_s = 0.0
        self.paused_until = float("-inf")
        self._slept = False
        self.idle = True  #: whether the last sample had no requests
        self._before: tuple[float, Counts, ResourceUse] | None = None

    def look(self, at: float, counts: Counts, taken: ResourceUse, queued: int = 0) -> None:
        """Add a sample of the load since the last call; `queued` requests are waiting in tritonserver."""
        before, self._before = self._before, (at, counts, taken)
        if before is None or at <= before[0]:
            return
        then, former, took = before
        if self.registration.pool.suspension.now or self._slept:
            self.window.changed_at = at
        self._slept = self.registration.pool.suspension.now
        elapsed = at - then
        ready = len(self.registration.pool.ready_workers())
        worked_s = max(0, counts.busy_ns - former.busy_ns) / 1e9
        if self.rules.concurrency > 1:
            worked_s = max(0, counts.call_ns - former.call_ns) / 1e9 / self.rules.concurrency
        waited_s = max(0, counts.wait_ns - former.wait_ns) / 1e9
        busy = worked_s / elapsed
        sample = Sample(
            at,
            elapsed,
            ready,
            min(busy, float(ready)) if self.rules.concurrency == 1 else busy,
            waited_s / elapsed + queued,
            max(0, counts.requests - former.requests),
            max(0, counts.calls - former.calls),
            waited_s,
            worked_s,
        )
        self.idle = sample.idle
        self.window.add(sample)
        self._weigh(worked_s, max(0.0, taken.cpu_s - took.cpu_s), taken.memory)

    def _weigh(self, worked_s: float, cpu_s: float, memory: int) -> None:
        cpus = self.cost.cpus
        if worked_s >= _MIN_WORK_S:
            cpus += (cpu_s / worked_s - cpus) * (_SMOOTHING if cpus else 1.0)
        self.cost = Cost(cpus, memory or self.cost.memory)

    def want(self, at: float) -> Want:
        """Decide how many instances it wants, and return that with its current state."""
        spec = self.registration.spec
        now = wanted = self.registration.instances
        load = 0.0
        if self.window.since(float("-inf")):
            self.decision = decide(self.rules, self.window, now)
            load = self.decision.load
            if self.changing is None and at >= self.paused_until:
                wanted = self.decision.instances
        if not wanted and not self.may_sleep:
            wanted = now
        least = min(max(1, self.rules.least), wanted)
        return Want(spec.name, now, wanted, least, load, self.rules.weight, self.cost)

    @property
    def may_sleep(self) -> bool:
        """Whether it is not resuming and runs no batch, including batches that the gauges have not counted yet."""
        pool = self.registration.pool
        return not pool.suspension.resuming and not pool.busy

    def idle_s(self, at: float) -> float:
        """Return the time since its last request, in seconds."""
        since = self.window.idle_since
        return 0.0 if since is None else at - since

    def text(self) -> str:
        """Describe its current scaling for users."""
        rules, registration = self.rules, self.registration
        text = f"{rules.least} to {rules.most} instances, now {registration.instances}"
        if registration.pool.suspension.suspended:
            return f"{text}, {registration.pool.suspension.text()}; a request resumes it"
        if self.decision is not None:
            text += f", load {self.decision.load:.1f}"
        if self.grant.limit:
            text += f"; limited by {self.grant.limit}"
        elif self.decision is not None and self.decision.load > rules.most * rules.target:
            text += "; its load needs more than its maximum"
        return text


class Autoscaler:
    """Scales all models with `autoscale` according to their load.

    Args:
        registry: The models.
        counts: Returns the work done by the workers of a model.
        taken: Returns the resources that they use.
        room: Returns the resources of the machine.
        queued: Returns the number of requests in tritonserver's queues, by model.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        counts: Callable[[Registration], Counts] | None = None,
        taken: Callable[[Registration], ResourceUse] | None = None,
        room: Callable[[], MachineResources] | None = None,
        queued: Callable[[], Awaitable[Mapping[str, int]]] | None = None,
    ) -> None:
        self.counts = counts or self._counts
        self.taken = taken or taken_by
        self.room = room or machine_room
        self.queued = queued
        self._registry = registry
        self._followed: dict[str, _Followed] = {}

    async def run(self) -> None:
        """Sample, decide and scale periodically until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                try:
                    self.tick(await self._queued())
                except Exception:
                    _log.exception("internal error in the autoscaler; models were not scaled")
        finally:
            for one in self._followed.values():
                if one.changing is not None:
                    one.changing.cancel()

    async def _queued(self) -> Mapping[str, int]:
        """Return the number of requests waiting in tritonserver, by model. Do not query it if all models are idle."""
        resuming = any(one.pool.suspension.resuming for one in self._registry)
        if self.queued is None or not (
            resuming or any(not one.idle for one in self._followed.values())
        ):
            return {}
        queued = await self.queued()
        for one in list(self._registry):  # a copy, as models may change during the loop
            if one.pool.suspension.resuming:
                one.pool.suspension.queued = queued.get(one.spec.name, 0)
                await one.pool.wake()
        return queued

    def tick(self, queued: Mapping[str, int]) -> None:
        """Sample, decide and scale once; `queued` is the number of requests waiting in tritonserver, by model."""
        self._update_followed()
        if not self._followed:
            return
        now = asyncio.get_running_loop().time()
        for one in self._followed.values():
            if (
                not one.idle and one.registration.pool.can_serve
            ):  # a standby worker may serve while it is suspended
                one.registration.pool.wake_up()
            waiting = queued.get(one.registration.spec.name, 0)
            one.look(now, self.counts(one.registration), self.taken(one.registration), waiting)
        grants = share_out([one.want(now) for one in self._followed.values()], self.room())
        for one in self._followed.values():
            self._use(one, grants[one.registration.spec.name])

    def _update_followed(self) -> None:
        """Follow the autoscaled models that are served now, and forget the others."""
        followed: dict[str, _Followed] = {}
        for registration in self._registry:
            rules = registration.spec.autoscale
            if rules is None:
                suspension = registration.pool.suspension
                registration.scaling = suspension.text() if suspension.suspended else ""
                continue
            known = self._followed.get(registration.key)
            if known is None or known.rules != rules:
                known = _Followed(registration, rules)
            if registration.ready:
                followed[registration.key] = known
        self._followed = followed

    def _use(self, one: _Followed, grant: Grant) -> None:
        spec, now = one.registration.spec, one.registration.instances
        if grant.limit and not one.grant.limit:
            _log.warning("not enough resources to scale up", model=spec.name, why=grant.limit)
        one.grant = grant
        one.registration.scaling = one.text()
        if grant.instances == now or one.changing is not None:
            return
        task = asyncio.get_running_loop().create_task(self._change(one, grant.instances))
        one.changing = task

    async def _change(self, one: _Followed, instances: int) -> None:
        registration, before = one.registration, one.registration.instances
        clock = asyncio.get_running_loop().time
        why = one.decision._replace(instances=instances).text(before) if one.decision else ""
        try:
            idle_s = one.idle_s(clock())
            adaptations = self._registry.adaptations
            changed = await adaptations.follow_load(registration, instances, idle_s=idle_s)
            if changed:
                one.pause_s = 0.0
            if changed and instances:  # being suspended has emitted its own event
                registration.events.emit(
                    kinds.SCALED,
                    who=_WHO,
                    reason=why,
                    numbers={"instances": instances, "before": before},
                )
        except RemoteFailure as failure:
            one.pause_s = min(_MAX_BACKOFF_S, 2 * one.pause_s or _BACKOFF_S)
            one.paused_until = clock() + one.pause_s
            registration.events.emit(
                kinds.SCALE_FAILED,
                who=_WHO,
                reason=f"{failure.text}; it is tried again in {one.pause_s:.0f} s",
                numbers={"instances": instances, "before": before},
            )
        finally:
            one.window.changed_at = clock()
            one.changing = None

    def _counts(self, registration: Registration) -> Counts:
        counters = self._registry.counter_registry.get(registration.spec.name)
        return counters.done().total if counters is not None else NOTHING


async def queued_at(url: Callable[[], str]) -> Mapping[str, int]:
    """Return the number of requests waiting in tritonserver's queues, by model, if it answers in time."""
    from pytriton.dispatcher.telemetry.metrics import triton_metrics

    where = partial(triton_metrics.waiting_at, url())
    return await asyncio.get_running_loop().run_in_executor(None, where)


def taken_by(registration: Registration) -> ResourceUse:
    """Return the resources used by a model's worker processes."""
    pids = [info.pid for info in registration.pool.infos() if info.pid is not None]
    seen = [memory for memory in map(memory_of, pids) if memory is not None]
    own = sum(max(0, one.resident - one.shared) for one in seen)
    return ResourceUse(sum(map(_cpu_s, pids)), own // len(seen) if seen else 0)


def machine_room() -> MachineResources:
    """Return the resources of this machine, or of the part of it that the daemon may use."""
    free = linux.available_memory()
    return MachineResources(usable_cpus(), int(free * (1 - _RESERVE)))


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # the process has exited
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S
