"""The sharing of a machine that has not enough instances for all models: a pure function.

Every model first gets its least. Then one instance after the other goes to the model that has the fewest by its weight,
as long as it wants more and the machine has what one more takes. So no model gets more than its share while another one
wants its own, and what one does not want is there for the others. Of equals, the one goes first that has the instance
already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Of all CPUs; a model whose instances keep these busy gains nothing by more of them.
_FULL = 0.95
#: Of all CPUs; by so much an instance that is there may exceed what is left: measurements go up and down.
_STAYS = 0.1
#: Of sums of fractions.
_ROUNDING = 1e-6


class Cost(NamedTuple):
    """The measured use of one instance of a model; 0 is not known yet.

    Attributes:
        cpus: while it has work
        memory: bytes of its own
        gpu_memory: bytes on its GPU
    """

    cpus: float = 0.0
    memory: int = 0
    gpu_memory: int = 0


class Want(NamedTuple):
    """The instances that a model has and wants.

    Attributes:
        model: its name
        now: instances that it has
        wanted: those that it should have by its load
        least: those that it has in any case
        load: the instances that it keeps busy
        weight: how many it gets beside another one of weight 1
        cost: of each
        gpus: the GPU of each instance, in turn; empty: none
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
        """Return the CPUs that so many instances keep busy together: those without work take none."""
        return min(float(instances), self.load) * self.cost.cpus

    def gpu(self, instance: int) -> str | None:
        """Return the GPU of an instance, if it has one."""
        return self.gpus[instance % len(self.gpus)] if self.gpus else None


class Room(NamedTuple):
    """The resources of a machine, or of the part of it that this process may use.

    Attributes:
        cpus: all that there are: what is on a CPU shares it with others
        memory: bytes that are free now; None: not known
        gpu_memory: bytes that are free now, of each GPU that is known
    """

    cpus: float
    memory: int | None = None
    gpu_memory: Mapping[str, int] = {}


class Grant(NamedTuple):
    """The instances that a model gets; `limit` names the resource that it lacks for more, "" if none."""

    instances: int
    limit: str = ""


def share_out(wants: Sequence[Want], room: Room) -> dict[str, Grant]:
    """Return what each model gets.

    No model loses instances because the machine has become full by others' doing: only those that it does not want any
    more, or that another one lacks for its share.
    """
    left = _Left(wants, room)
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


class _Left:
    """The rest of a machine while it is given out, instance by instance.

    What the instances that run have is given out anew. It is more than is there when others have taken from it; then
    those instances stay, for nothing is won by ending them, but none is added.
    """

    def __init__(self, wants: Sequence[Want], room: Room) -> None:
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
        """One more instance of a model is there."""
        self._cpus -= want.cpus(instance + 1) - want.cpus(instance)
        if self._memory is not None:
            self._memory -= want.cost.memory
        gpu = want.gpu(instance)
        if gpu in self._gpu_memory:
            self._gpu_memory[gpu] -= want.cost.gpu_memory

    def lacks(self, want: Want, instance: int) -> str:
        """Return what there is not enough of for one more instance of a model, "" if nothing."""
        cost, gpu = want.cost, want.gpu(instance)
        more = want.cpus(instance + 1) - want.cpus(instance)
        there = instance < want.now
        full = not there and instance * cost.cpus >= self._all_cpus * _FULL
        if full or more > self._cpus + self._all_cpus * (_STAYS if there else 0) + _ROUNDING:
            return (
                f"CPUs: an instance keeps {cost.cpus:.1f} of them busy, and of {self._all_cpus:g} "
                f"{max(0.0, self._cpus):.1f} are left"
            )
        if self._memory is not None and cost.memory > self._memory:
            return f"memory: an instance takes {_size(cost.memory)}, and {_size(self._memory)} are left"
        if gpu in self._gpu_memory and cost.gpu_memory > self._gpu_memory[gpu]:
            left = self._gpu_memory[gpu]
            return f"memory of GPU {gpu}: an instance takes {_size(cost.gpu_memory)}, and {_size(left)} are left"
        return ""


def _size(count: int) -> str:
    return f"{max(0, count) / (1 << 20):,.0f} MiB"
