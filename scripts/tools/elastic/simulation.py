"""A simulated machine: requests queue, instances load and serve, and the daemon's own policies decide.

The decisions come from `pytriton.dispatcher.scaling`; everything else is simulated here.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from elastic.shapes import Shape, arrivals
from pytriton._protocol.messages import Autoscale
from pytriton.dispatcher.scaling.memory_policy import MEMORY, Claim, MemoryHolder, plan
from pytriton.dispatcher.scaling.policy import (
    Cost,
    MachineResources,
    Sample,
    Want,
    Window,
    decide,
    share_out,
)

_DECISION_INTERVAL_S = 0.5
#: Duration of the exit of an instance.
_EXIT_S = 0.1
#: CPUs of the machine: more than any model needs.
_CPUS = 1e6


class Settings(NamedTuple):
    """The settings of a simulation.

    Attributes:
        rules: of every model; a fixed number of instances if `least` equals `most`
        service_s: mean duration of a request
        load_s: duration of the load of an instance
        memory: bytes of an instance
        budget: bytes for all models together, for which idle models are suspended; None: no limit
    """

    rules: Autoscale
    service_s: float = 0.1
    load_s: float = 1.0
    memory: int = 0
    budget: int | None = None


class Tick(NamedTuple):
    """The state of a model at a decision."""

    at: float
    rate: float
    instances: int
    waiting: int


class Model:
    """A queue in front of some instances."""

    def __init__(self, name: str, rules: Autoscale) -> None:
        self.name = name
        self.window = Window(max(rules.down_after_s, rules.up_after_s) + 1)
        self.instances = rules.least
        self.loading = 0
        self.exiting = 0  # instances that still hold their memory
        self.busy = 0
        self.queue: deque[float] = deque()
        self.latencies: list[float] = []
        self.ticks: list[Tick] = []
        self.changes = 0
        self.instance_s = 0.0
        self.arrived = 0
        self.used_at = 0.0
        self.waits_for_memory_since: float | None = None
        self._busy_s = self._queued_s = 0.0
        self._started = 0
        self._accounted_at = self._sampled_at = 0.0

    def account(self, at: float) -> None:
        """Add up the times since the last call."""
        elapsed = at - self._accounted_at
        self._busy_s += self.busy * elapsed
        self._queued_s += len(self.queue) * elapsed
        self.instance_s += (self.instances + self.loading) * elapsed
        self._accounted_at = at

    def sample(self, at: float) -> Sample:
        """Return the sums since the last sample, and start new ones."""
        self.account(at)
        elapsed = at - self._sampled_at
        sample = Sample(
            at, elapsed, self.instances, self._busy_s / elapsed, self._queued_s / elapsed,
            self._started, self._started, self._queued_s, self._busy_s,
        )  # fmt: skip
        self.ticks.append(Tick(at, self.arrived / elapsed, self.instances, len(self.queue)))
        self._busy_s = self._queued_s = 0.0
        self._started = self.arrived = 0
        self._sampled_at = at
        return sample

    @property
    def is_idle(self) -> bool:
        """Whether the model can be suspended."""
        return not (self.busy or self.queue or self.loading)

    def start_request(self) -> float | None:
        """Start the oldest waiting request if an instance is free; return the time when it arrived."""
        if not self.queue or self.busy >= self.instances:
            return None
        self.busy += 1
        self._started += 1
        return self.queue.popleft()


class Machine:
    """All models, and the events in the order of time."""

    def __init__(self, shape: Shape, settings: Settings, seed: int = 1) -> None:
        self.models = {name: Model(name, settings.rules) for name in shape.rates}
        self.peak_memory = 0
        self._shape = shape
        self._settings = settings
        self._seed = seed
        self._chance = random.Random(seed)
        self._serial = itertools.count()
        self._events: list[tuple[float, int, str, str, float]] = []

    def run(self) -> Mapping[str, Model]:
        """Simulate the whole shape; return the models with their statistics."""
        coming = iter(arrivals(self._shape, self._seed))
        following = next(coming, None)
        self._schedule(_DECISION_INTERVAL_S, "decide", "")
        while self._events[0][0] <= self._shape.seconds:
            if following is not None and following[0] <= self._events[0][0]:
                at, name = following
                following = next(coming, None)
                self._arrive(at, self.models[name])
                continue
            at, _, kind, name, value = heapq.heappop(self._events)
            if kind == "decide":
                self._decide(at)
                self._schedule(at + _DECISION_INTERVAL_S, "decide", "")
            elif kind == "loaded":
                self._loaded(at, self.models[name])
            elif kind == "exited":
                self.models[name].exiting -= int(value)
            else:
                self._done(at, self.models[name], value)
            if any(one.waits_for_memory_since is not None for one in self.models.values()):
                self._grant_memory(at)
        return self.models

    def _schedule(self, at: float, kind: str, name: str, value: float = 0.0) -> None:
        heapq.heappush(self._events, (at, next(self._serial), kind, name, value))

    def _arrive(self, at: float, model: Model) -> None:
        model.account(at)
        model.arrived += 1
        model.queue.append(at)
        model.used_at = at
        if model.instances + model.loading == 0:  # suspended: this request resumes the model
            if model.waits_for_memory_since is None:
                model.waits_for_memory_since = at
            self._grant_memory(at)
        self._serve(at, model)

    def _grant_memory(self, at: float) -> None:
        """Load the models that wait for memory, as far as the budget allows, and suspend idle ones for them."""
        size, budget = self._settings.memory, self._settings.budget
        waiting = [
            (one.waits_for_memory_since, one.name)
            for one in self.models.values()
            if one.waits_for_memory_since is not None
        ]
        waiting.sort()
        granted, suspended = [name for _, name in waiting], []
        if budget is not None:
            claims = [Claim(name, {MEMORY: size}, since) for since, name in waiting]
            holders = [
                MemoryHolder(one.name, {MEMORY: one.instances * size}, one.used_at, one.is_idle)
                for one in self.models.values()
                if one.instances + one.loading
            ]
            exiting = self._exiting()
            free = {MEMORY: budget - self._taken() - exiting}
            found = plan(claims, holders, free, {MEMORY: exiting}, at)
            granted, suspended = list(found.granted), list(found.suspend)
        for name in granted:
            self.models[name].waits_for_memory_since = None
            self._scale(at, self.models[name], 1)
        for name in suspended:
            model = self.models[name]
            model.exiting += model.instances
            self._schedule(at + _EXIT_S, "exited", name, model.instances)
            self._scale(at, model, 0)

    def _taken(self) -> int:
        count = sum(one.instances + one.loading for one in self.models.values())
        return count * self._settings.memory

    def _exiting(self) -> int:
        return sum(one.exiting for one in self.models.values()) * self._settings.memory

    def _serve(self, at: float, model: Model) -> None:
        while (arrived_at := model.start_request()) is not None:
            duration = self._chance.expovariate(1 / self._settings.service_s)
            self._schedule(at + duration, "done", model.name, arrived_at)

    def _done(self, at: float, model: Model, arrived_at: float) -> None:
        model.account(at)
        model.busy -= 1
        model.used_at = at
        model.latencies.append(at - arrived_at)
        self._serve(at, model)

    def _loaded(self, at: float, model: Model) -> None:
        if model.loading:
            model.account(at)
            model.loading -= 1
            model.instances += 1
            model.window.changed_at = at
            self._serve(at, model)

    def _scale(self, at: float, model: Model, instances: int) -> None:
        current = model.instances + model.loading
        if instances == current:
            return
        model.account(at)
        model.changes += 1
        model.window.changed_at = at
        for _ in range(instances - current):
            model.loading += 1
            self._schedule(at + self._settings.load_s, "loaded", model.name)
        model.instances -= max(0, current - instances)  # busy ones finish their requests

    def _decide(self, at: float) -> None:
        rules, cost = self._settings.rules, Cost(memory=self._settings.memory)
        wants = []
        for model in self.models.values():
            model.window.add(model.sample(at))
            now = model.instances + model.loading
            wanted, load = now, 0.0
            if not model.loading:
                decision = decide(rules, model.window, now)
                wanted, load = decision.instances, decision.load
            least = min(max(rules.least, min(now, 1)), wanted)
            wants.append(Want(model.name, now, wanted, least, load, 1.0, cost))
        used = self._taken() + self._exiting()
        self.peak_memory = max(self.peak_memory, used)
        budget = self._settings.budget
        room = MachineResources(_CPUS, None if budget is None else budget - used)
        for name, grant in share_out(wants, room).items():
            self._scale(at, self.models[name], grant.instances)
