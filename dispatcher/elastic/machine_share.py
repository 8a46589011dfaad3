"""Fair sharing of a machine that does not have resources for all instances that models want. A pure function.

Every model first gets its minimum. Then instances are handed out one at a time to the model with the fewest instances
relative to its weight, as long as it wants more and the machine has the resources. So no model gets more than its fair
share while another one wants its own, and unwanted shares go to the others. On a tie, a model that already has the
instance goes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Share of all CPUs. A model whose instances keep this much busy gains nothing from more instances.
_FULL = 0.95
#: Share of all CPUs by which an existing instance may exceed the rest, as measurements fluctuate.
_KEEP_TOLERANCE = 0.1
#: Tolerance for rounding errors in sums of fractions.
_ROUNDING = 1e-6


class Cost(NamedTuple):
    """The measured resources of one instance of a model; 0 if not known yet.

    Attributes:
        cpus: CPUs that it uses while it is busy.
        memory: Bytes of private host memory.
        gpu_memory: Bytes on its GPU.
    """

    cpus: float = 0.0
    memory: int = 0
    gpu_memory: int = 0


class Want(NamedTuple):
    """The instances that a model has and wants.

    Attributes:
        model: Name of the model.
        now: Current number of instances.
        wanted: Number of instances that its load needs.
        least: Minimum number of instances.
        load: Number of instances that it keeps busy.
        weight: Its share relative to a model of weight 1.
        cost: Resources of each instance.
        gpus: GPUs of the instances, used in turn; empty if it uses none.
    """

    model: str
    now: int
    wanted: int
    least: int = 1
    load: float = 0.0
    weight: float = 1.0
    cost: Cost = Cost()
    gpus: Sequence[str] = ()

    def cpus(self, instances: int) -> float:
        """Return the CPUs used by this many instances. Idle instances use none."""
        return min(float(instances), self.load) * self.cost.cpus

    def gpu(self, instance: int) -> str | None:
        """Return the GPU of an instance, or None."""
        return self.gpus[instance % len(self.gpus)] if self.gpus else None


class MachineResources(NamedTuple):
    """The resources of a machine, or of the part of it that this process may use.

    Attributes:
        cpus: Total number of CPUs, busy or not, as processes share them.
        memory: Bytes of host memory that are free now; None if unknown.
        gpu_memory: Bytes that are free now on each known GPU.
    """

    cpus: float
    memory: int | None = None
    gpu_memory: Mapping[str, int] = {}


class Grant(NamedTuple):
    """The number of instances that a model gets; `limit` describes the resource that prevents more, "" if none does."""

    instances: int
    limit: str = ""


def share_out(wants: Sequence[Want], room: MachineResources) -> dict[str, Grant]:
    """Return the grant of each model.

    A model does not lose instances only because other processes fill the machine. It loses those that it no longer
    wants, and those that another model needs for its fair share.
    """
    left = _FreeResources(wants, room)
    had = {want.model: want.now for want in wants}
    granted = {want.model: min(want.least, want.wanted) for want in wants}
    limits = dict.fromkeys(granted, "")
    for want in wants:
        for instance in range(granted[want.model]):
            left.take(want, instance)
    open_ = {want.model: want for want in wants if granted[want.model] < want.wanted}
    while open_:
        want = min(
            open_.values(),
            key=lambda one: (
                granted[one.model] / one.weight,
                granted[one.model] >= had[one.model],
                one.model,
            ),
        )
        name = want.model
        limits[name] = left.lacks(want, granted[name])
        if limits[name]:
            del open_[name]
            continue
        left.take(want, granted[name])
        granted[name] += 1
        if granted[name] == want.wanted:
            del open_[name]
    return {name: Grant(count, limits[name]) for name, count in granted.items()}


class _FreeResources:
    """The remaining resources of a machine while instances are handed out.

    The resources of running instances are handed out again. If other processes use resources too, the sum may exceed
    what the machine has. Then running instances stay, as stopping them gains nothing, but none is added.
    """

    def __init__(self, wants: Sequence[Want], room: MachineResources) -> None:
        self._all_cpus = self._cpus = room.cpus
        self._memory = None if room.memory is None else max(0, room.memory)
        self._gpu_memory = {gpu: max(0, free) for gpu, free in room.gpu_memory.items()}
        for want in wants:
            if self._memory is not None:
                self._memory += want.now * want.cost.memory
            for instance in range(want.now):
                gpu = want.gpu(instance)
                if gpu in self._gpu_memory:
                    self._gpu_memory[gpu] += want.cost.gpu_memory

    def take(self, want: Want, instance: int) -> None:
        """Take the resources of one more instance of a model."""
        self._cpus -= want.cpus(instance + 1) - want.cpus(instance)
        if self._memory is not None:
            self._memory -= want.cost.memory
        gpu = want.gpu(instance)
        if gpu in self._gpu_memory:
            self._gpu_memory[gpu] -= want.cost.gpu_memory

    def lacks(self, want: Want, instance: int) -> str:
        """Describe the resource that is insufficient for one more instance of a model; "" if none is."""
        cost, gpu = want.cost, want.gpu(instance)
        more = want.cpus(instance + 1) - want.cpus(instance)
        there = instance < want.now
        full = not there and instance * cost.cpus >= self._all_cpus * _FULL
        spare = self._all_cpus * (_KEEP_TOLERANCE if there else 0)
        if full or more > self._cpus + spare + _ROUNDING:
            return (
                f"CPUs: an instance uses {cost.cpus:.1f}, and {max(0.0, self._cpus):.1f} of {self._all_cpus:g} "
                "are left"
            )
        if self._memory is not None and cost.memory > self._memory:
            return f"memory: an instance takes {_size(cost.memory)}, and {_size(self._memory)} are left"
        if gpu in self._gpu_memory and cost.gpu_memory > self._gpu_memory[gpu]:
            left = self._gpu_memory[gpu]
            return f"memory of GPU {gpu}: an instance takes {_size(cost.gpu_memory)}, and {_size(left)} are left"
        return ""


def _size(count: int) -> str:
    return f"{max(0, count) / (1 << 20):,.0f} MiB"
