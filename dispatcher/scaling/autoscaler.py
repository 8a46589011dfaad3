"""The autoscaler: a loop that samples the load of models and scales them.

    statistics pages ─────┬──▶ samples ──▶ policy.decide: how many instances each model should have
    tritonserver's queue ─┘           └──▶ policy.share_out: how many the machine has resources for ──▶ BackgroundChanges

It reads shared memory and /proc, and queries tritonserver's metrics while a model is busy. No batch waits for it. Each
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
from pytriton.dispatcher.runtime.tasks import until
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
    """Resources used by a model's worker processes: CPU seconds in total, and average bytes of memory per process."""

    cpu_s: float
    memory: int


class _ScaledModel:
    """An autoscaled registration, with its samples and the measured cost of an instance."""

    def __init__(self, registration: Registration, rules: messages.Autoscale) -> None:
        self.registration = registration
        self.rules = rules
        self.window = Window(max(rules.up_after_s, rules.down_after_s) + 2 * _TICK_S)
        self.cost = Cost()
        self.decision: Decision | None = None
        self.grant = Grant(registration.spec.instances)
        self.change_task: asyncio.Task[None] | None = None
        self.pause_s = 0.0
        self.retry_at = float("-inf")
        self._was_suspended = False
        self.is_idle = True  #: whether the last sample had no requests
        #: Whether this sample, and the last one, reuse an older measurement of the resources.
        self._reuses = self._reused = False
        self._before: tuple[float, Counts, ResourceUse] | None = None

    def add_sample(self, at: float, counts: Counts, use: ResourceUse, queued: int = 0) -> None:
        """Add a sample of the load since the last call. `queued` is the number of requests waiting in tritonserver."""
        reused, self._reused = self._reused, self._reuses
        before, self._before = self._before, (at, counts, use)
        if before is None or at <= before[0]:
            return
        then, former, former_use = before
        if self.registration.pool.suspension.in_effect or self._was_suspended:
            self.window.changed_at = at
        self._was_suspended = self.registration.pool.suspension.in_effect
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
        self.is_idle = sample.idle
        self.window.add(sample)
        # The CPU time since a reused measurement is that of the whole idle period, not of this sample.
        measured_s = 0.0 if reused else worked_s
        self._measure_cost(measured_s, max(0.0, use.cpu_s - former_use.cpu_s), use.memory)

    def use_while_idle(self, counts: Counts) -> ResourceUse | None:
        """Return the resources that the last sample found, if the model has been idle since; otherwise None.

        Reading them costs more than everything else about an idle model.
        """
        self._reuses = False
        if self._before is None or not self.is_idle:
            return None
        _, former, use = self._before
        self._reuses = counts == former
        return use if self._reuses else None

    def _measure_cost(self, worked_s: float, cpu_s: float, memory: int) -> None:
        cpus = self.cost.cpus
        if worked_s >= _MIN_WORK_S:
            cpus += (cpu_s / worked_s - cpus) * (_SMOOTHING if cpus else 1.0)
        self.cost = Cost(cpus, memory or self.cost.memory)

    def want(self, at: float) -> Want:
        """Return how many instances the model needs, how many it has, and the resources that one instance uses."""
        spec = self.registration.spec
        now = wanted = self.registration.instances
        load = 0.0
        if self.window.since(float("-inf")):
            self.decision = decide(self.rules, self.window, now)
            load = self.decision.load
            if self.change_task is None and at >= self.retry_at:
                wanted = self.decision.instances
        if not wanted and not self.may_suspend:
            wanted = now
        least = min(max(1, self.rules.least), wanted)
        return Want(spec.name, now, wanted, least, load, self.rules.weight, self.cost)

    @property
    def may_suspend(self) -> bool:
        """Whether the model can be suspended: it is not resuming, and no batch is running at the moment."""
        pool = self.registration.pool
        return not pool.suspension.resuming and not pool.busy

    def idle_s(self, at: float) -> float:
        """Return the time since the model's last request, in seconds."""
        since = self.window.idle_since
        return 0.0 if since is None else at - since

    def text(self) -> str:
        """Describe the current scaling of the model for users."""
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
    """The autoscaler of all models that are registered with `autoscale`.

    Args:
        registry: The models.
        resources: Returns the resources of the machine.
        queued: Returns the number of requests in tritonserver's queues, by model.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        resources: Callable[[], MachineResources],
        queued: Callable[[], Awaitable[Mapping[str, int]]],
    ) -> None:
        self.counts = self._counts
        self.resource_use = resource_use_of
        self.resources = resources
        self.queued = queued
        self._registry = registry
        self._models: dict[str, _ScaledModel] = {}
        self._known_changes: list[asyncio.Event] = []
        self._autoscaled: list[Registration] = []
        self._resuming: list[Registration] = []

    async def run(self) -> None:
        """Sample the load and scale models periodically while any is autoscaled or resuming, until cancelled."""
        registry = self._registry
        try:
            while True:
                await until(self._has_work, registry.changes, registry.scaling_changes)
                await asyncio.sleep(_TICK_S)
                try:
                    self.tick(await self._queued())
                except Exception:
                    _log.exception("internal error in the autoscaler; models were not scaled")
        finally:
            for one in self._models.values():
                if one.change_task is not None:
                    one.change_task.cancel()

    async def _queued(self) -> Mapping[str, int]:
        """Return the number of requests waiting in tritonserver, by model. Skip the query if all models are idle."""
        self._find_models()
        if not (self._resuming or any(not one.is_idle for one in self._models.values())):
            return {}
        queued = await self.queued()
        self._find_models()
        for one in self._resuming:
            one.pool.suspension.queued = queued.get(one.spec.name, 0)
            await one.pool.notify_waiters()
        return queued

    def _has_work(self) -> bool:
        """Return whether any model is autoscaled or resuming, or was autoscaled at the last tick."""
        self._find_models()
        return bool(self._autoscaled or self._resuming or self._models)

    def _find_models(self) -> None:
        """Find the autoscaled and the resuming models. Look at all models only after changes."""
        if not self._known_changes or any(one.is_set() for one in self._known_changes):
            registry = self._registry
            self._known_changes = [registry.changes.next, registry.scaling_changes.next]
            self._autoscaled = [one for one in registry.served if one.spec.autoscale is not None]
            self._resuming = list(registry.served)
        self._resuming = [one for one in self._resuming if one.pool.suspension.resuming]

    def tick(self, queued: Mapping[str, int]) -> None:
        """Sample the load and scale models once. `queued` counts the requests waiting in tritonserver, by model."""
        self._update_models()
        if not self._models:
            return
        now = asyncio.get_running_loop().time()
        for one in self._models.values():
            if not one.is_idle and one.registration.pool.can_serve:
                # A standby worker may serve while the model is suspended.
                one.registration.pool.resume()
            waiting = queued.get(one.registration.spec.name, 0)
            counts = self.counts(one.registration)
            use = one.use_while_idle(counts) or self.resource_use(one.registration)
            one.add_sample(now, counts, use, waiting)
        grants = share_out([one.want(now) for one in self._models.values()], self.resources())
        for one in self._models.values():
            self._apply(one, grants[one.registration.spec.name])

    def _update_models(self) -> None:
        """Update the list of autoscaled models: add newly served ones, remove those no longer served."""
        models: dict[str, _ScaledModel] = {}
        self._find_models()
        for registration in self._autoscaled:
            rules = registration.spec.autoscale
            if rules is None:
                continue
            known = self._models.get(registration.key)
            if known is None or known.rules != rules:
                known = _ScaledModel(registration, rules)
            if registration.ready:
                models[registration.key] = known
        self._models = models

    def _apply(self, one: _ScaledModel, grant: Grant) -> None:
        spec, now = one.registration.spec, one.registration.instances
        if grant.limit and not one.grant.limit:
            _log.warning("not enough resources to scale up", model=spec.name, why=grant.limit)
        one.grant = grant
        one.registration.scaling = one.text()
        if grant.instances == now or one.change_task is not None:
            return
        task = asyncio.get_running_loop().create_task(self._change(one, grant.instances))
        one.change_task = task

    async def _change(self, one: _ScaledModel, instances: int) -> None:
        registration, before = one.registration, one.registration.instances
        clock = asyncio.get_running_loop().time
        why = one.decision._replace(instances=instances).text(before) if one.decision else ""
        try:
            idle_s = one.idle_s(clock())
            background_changes = self._registry.background_changes
            changed = await background_changes.follow_load(registration, instances, idle_s=idle_s)
            if changed:
                one.pause_s = 0.0
            if changed and instances:  # the suspension has emitted its own event
                registration.events.emit(
                    kinds.SCALED,
                    who=_WHO,
                    reason=why,
                    numbers={"instances": instances, "before": before},
                )
        except RemoteFailure as failure:
            one.pause_s = min(_MAX_BACKOFF_S, 2 * one.pause_s or _BACKOFF_S)
            one.retry_at = clock() + one.pause_s
            registration.events.emit(
                kinds.SCALE_FAILED,
                who=_WHO,
                reason=f"{failure.text}; next attempt in {one.pause_s:.0f} s",
                numbers={"instances": instances, "before": before},
            )
        finally:
            one.window.changed_at = clock()
            one.change_task = None

    def _counts(self, registration: Registration) -> Counts:
        counters = self._registry.served.counter_registry.get(registration.spec.name)
        return counters.done().total if counters is not None else NOTHING


async def queued_at(url: Callable[[], str]) -> Mapping[str, int]:
    """Return the number of requests waiting in tritonserver's queues, by model."""
    from pytriton.dispatcher.telemetry.metrics import triton_metrics

    where = partial(triton_metrics.waiting_at, url())
    return await asyncio.get_running_loop().run_in_executor(None, where)


def resource_use_of(registration: Registration) -> ResourceUse:
    """Return the resources used by a model's worker processes."""
    pids = [info.pid for info in registration.pool.infos() if info.pid is not None]
    seen = [memory for memory in map(memory_of, pids) if memory is not None]
    own = sum(max(0, one.resident - one.shared) for one in seen)
    return ResourceUse(sum(map(_cpu_s, pids)), own // len(seen) if seen else 0)


def machine_resources() -> MachineResources:
    """Return the resources of the machine, within the limits that apply to the daemon."""
    free = linux.available_memory()
    return MachineResources(linux.usable_cpus(), int(free * (1 - _RESERVE)))


def _cpu_s(pid: int) -> float:
    try:
        fields = linux.stat_fields(f"/proc/{pid}/stat")
    except OSError:  # the process has exited
        return 0.0
    return (int(fields[14]) + int(fields[15])) / _CLOCK_TICKS_PER_S
