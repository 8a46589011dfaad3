"""A machine of simulated models: requests queue, instances load and serve, the daemon's policy decides.

Everything that is simulated is here; what decides is `pytriton.dispatcher.scaling`, as the daemon has it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

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
from simulation.shapes import Shape, arrivals


class Setting(NamedTuple):
    """The setting of a simulation.

    Attributes:
        rules: of every model; `least` equal to `most` is a fixed number
        service_s: what a request takes, on average
        load_s: what an instance takes to load
        cost: of an instance
        room: of the machine, with nothing on it
        tick_s: between two decisions
        budget: bytes that all models may take: idle ones are suspended for those that are asked; None: no limit
        end_s: what an instance takes to end
    """

    rules: Autoscale
    service_s: float = 0.1
    load_s: float = 1.0
    cost: Cost = Cost()
    room: MachineResources = MachineResources(1_000_000.0)
    tick_s: float = 0.5
    budget: int | None = None
    end_s: float = 0.1


class Tick(NamedTuple):
    """The state of a model at a moment."""

    at: float
    rate: float
    instances: int
    waiting: int


class Model:
    """A queue in front of some instances."""

    def __init__(self, name: str, rules: Autoscale) -> None:
        self.name = name
        self.window = Window(max(rules.down_after_s, rules.up_after_s) + 1)
        self.instances = 0
        self.loading = 0
        self.busy = 0
        self.queue: deque[float] = deque()
        self.latencies: list[float] = []
        self.ticks: list[Tick] = []
        self.changes = 0
        self.instance_s = 0.0
        self._work_s = self._waited_s = 0.0
        self._begun = 0
        self._looked_at = self._sampled_at = 0.0
        self.came = 0
        self.used_at = 0.0
        self.waits_since: float | None = None  # for memory
        self.ending = 0  # instances that still have theirs

    def look(self, at: float) -> None:
        """Add up what has been since it was last looked at."""
        since = at - self._looked_at
        self._work_s += self.busy * since
        self._waited_s += len(self.queue) * since
        self.instance_s += (self.instances + self.loading) * since
        self._looked_at = at

    def sample(self, at: float) -> Sample:
        """Return what has been since the last sample."""
        self.look(at)
        elapsed = at - self._sampled_at
        sample = Sample(
            at,
            elapsed,
            self.instances,
            self._work_s / elapsed,
            self._waited_s / elapsed,
            self._begun,
            self._begun,
            self._waited_s,
            self._work_s,
        )
        self.ticks.append(Tick(at, self.came / elapsed, self.instances, len(self.queue)))
        self._work_s = self._waited_s = 0.0
        self._begun = self.came = 0
        self._sampled_at = at
        return sample

    @property
    def is_idle(self) -> bool:
        """Whether it could be suspended."""
        return not (self.busy or self.queue or self.loading)

    def takes(self) -> bool:
        """Begin a request that waits, if an instance is free; whether it did."""
        if not self.queue or self.busy >= self.instances:
            return False
        self.busy += 1
        self._begun += 1
        return True


class Machine:
    """All models, and what happens to them in the order of time."""

    def __init__(self, shape: Shape, setting: Setting, seed: int = 1) -> None:
        self.models = {name: Model(name, setting.rules) for name in shape.rates}
        self.most_memory = 0
        self._shape = shape
        self._setting = setting
        self._dice = random.Random(seed)
        self._serial = itertools.count()
        self._events: list[tuple[float, int, str, str, float]] = []

    def run(self) -> Mapping[str, Model]:
        """Play the shape to its end; return the models with what became of them."""
        for model in self.models.values():
            model.instances = self._setting.rules.least
        coming = heapq.merge(*(self._arrivals(name) for name in self.models))
        following = next(coming, None)
        self._plan(self._setting.tick_s, "tick", "")
        while self._events and self._events[0][0] <= self._shape.seconds:
            if following is not None and following[0] <= self._events[0][0]:
                at, name = following
                following = next(coming, None)
                self._came(at, self.models[name])
                continue
            at, _, what, name, since = heapq.heappop(self._events)
            if what == "tick":
                self._decide(at)
                self._plan(at + self._setting.tick_s, "tick", "")
            elif what == "loaded":
                self._loaded(at, self.models[name])
            elif what == "ended":
                self.models[name].ending -= int(since)
            else:
                self._done(at, self.models[name], since)
            if any(one.waits_since is not None for one in self.models.values()):
                self._give_memory(at)
        return self.models

    def _arrivals(self, name: str) -> Iterator[tuple[float, str]]:
        dice = random.Random(f"{name} {self._dice.random()}")
        for at in arrivals(self._shape.rates[name], self._shape.most, self._shape.seconds, dice):
            yield at, name

    def _plan(self, at: float, what: str, name: str, since: float = 0.0) -> None:
        heapq.heappush(self._events, (at, next(self._serial), what, name, since))

    def _came(self, at: float, model: Model) -> None:
        model.look(at)
        model.came += 1
        model.queue.append(at)
        model.used_at = at
        if model.instances + model.loading == 0:  # it sleeps: this request resumes it
            if model.waits_since is None:
                model.waits_since = at
            self._give_memory(at)
        self._serve(at, model)

    def _give_memory(self, at: float) -> None:
        """Load the models that are asked, as far as the budget goes; idle ones are suspended for them."""
        setting = self._setting
        size = setting.cost.memory
        wait = [one for one in self.models.values() if one.waits_since is not None]
        wait.sort(key=lambda one: one.waits_since or 0.0)
        if setting.budget is None:
            granted, sleeping = [one.name for one in wait], []
        else:
            claims = [Claim(one.name, {MEMORY: size}, one.waits_since or 0.0) for one in wait]
            there = [one for one in self.models.values() if one.instances + one.loading]
            holders = [
                MemoryHolder(one.name, {MEMORY: one.instances * size}, one.used_at, one.is_idle)
                for one in there
            ]
            ending = sum(one.ending for one in self.models.values()) * size
            free = setting.budget - self._taken() - ending
            found = plan(claims, holders, {MEMORY: free}, {MEMORY: ending}, at)
            granted, sleeping = list(found.granted), list(found.suspend)
        for name in granted:
            self.models[name].waits_since = None
            self._change(at, self.models[name], 1)
        for name in sleeping:
            model = self.models[name]
            model.ending += model.instances
            self._plan(at + setting.end_s, "ended", name, model.instances)
            self._change(at, model, 0)

    def _taken(self) -> int:
        count = sum(one.instances + one.loading for one in self.models.values())
        return count * self._setting.cost.memory

    def _serve(self, at: float, model: Model) -> None:
        while model.takes():
            took = self._dice.expovariate(1 / self._setting.service_s)
            self._plan(at + took, "done", model.name, model.queue.popleft())

    def _done(self, at: float, model: Model, came_at: float) -> None:
        model.look(at)
        model.busy -= 1
        model.used_at = at
        model.latencies.append(at - came_at)
        self._serve(at, model)

    def _loaded(self, at: float, model: Model) -> None:
        if model.loading:
            model.look(at)
            model.loading -= 1
            model.instances += 1
            model.window.changed_at = at
            self._serve(at, model)

    def _change(self, at: float, model: Model, to: int) -> None:
        there = model.instances + model.loading
        if to == there:
            return
        model.look(at)
        model.changes += 1
        model.window.changed_at = at
        for _ in range(to - there):
            model.loading += 1
            self._plan(at + self._setting.load_s, "loaded", model.name)
        model.instances -= max(0, there - to)  # those that have work finish it

    def _decide(self, at: float) -> None:
        setting = self._setting
        wants = []
        for model in self.models.values():
            model.window.add(model.sample(at))
            now = model.instances + model.loading
            wanted, load = now, 0.0
            if not model.loading:
                decision = decide(setting.rules, model.window, now)
                wanted, load = decision.instances, decision.load
            least = min(max(setting.rules.least, min(now, 1)), wanted)
            wants.append(Want(model.name, now, wanted, least, load, 1.0, setting.cost))
        ending = sum(one.ending for one in self.models.values())
        taken = sum(want.now for want in wants) * setting.cost.memory
        self.most_memory = max(self.most_memory, taken + ending * setting.cost.memory)
        room = setting.room
        bounds = [one for one in (room.memory, setting.budget) if one is not None]
        if bounds:
            room = room._replace(memory=min(bounds) - taken - ending * setting.cost.memory)
        for name, grant in share_out(wants, room).items():
            self._change(at, self.models[name], grant.instances)
