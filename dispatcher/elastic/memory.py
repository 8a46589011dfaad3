"""The decision who gets memory, and who sleeps for it, where a budget bounds what all workers take: pure functions.

Those who want to load are served in the order in which they came. If there is room for one, it gets that. If not, the
least recently used models sleep that are idle and may. What cannot be had at the moment is waited for: others may go
first, but not for longer than `PATIENCE_S`. From then on all that is given back is set aside for who has waited
longest, so that it gets its turn however large it is: unless it would not have enough with all asleep that ever may.

Never is more given than there is. What has grown beyond the budget by itself, a model after its load, has others sleep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

#: Who waits lets others go first for so long.
PATIENCE_S = 5.0
#: For so long a model has to have been quiet before it sleeps for another one, while that has patience: what is between
#: two requests of one client is not yet idle.
QUIET_S = 0.2
#: What a model is taken for that nothing is known of, if all others were smaller: an interpreter and a few libraries.
LEAST_ESTIMATE = 64 << 20
#: Of the budget, what such a model is taken to need at most; and if no other is known, at least.
_USUAL_SHARE = 0.25
#: Names of models in one sentence.
_MOST_NAMED = 5
#: The memory of the machine, among the resources; all others are GPUs.
MEMORY = "memory"

#: Bytes by resource: "memory", and GPUs as devices name them.
Amounts = Mapping[str, int]


class Size(NamedTuple):
    """The memory of one worker: of its own, and on each GPU that it uses."""

    memory: int = 0
    gpu: int = 0

    def at_least(self, other: Size) -> Size:
        """Return the larger of each."""
        return Size(max(self.memory, other.memory), max(self.gpu, other.gpu))


class Claim(NamedTuple):
    """The wish of a model to load.

    Attributes:
        key: of whoever claims
        needs: what it takes
        since: when it came, in seconds of a clock that only goes forward
        of: the key of the holder that claims more; "": of one that has nothing
    """

    key: str
    needs: Amounts
    since: float
    of: str = ""


class Holder(NamedTuple):
    """A model that has workers.

    Attributes:
        key: its own
        gives: what is free when it sleeps
        used_at: when something was last asked of it, or it was loaded
        idle: whether nothing is under way in it, and it may sleep
        willing: whether it may sleep at all, now or when it is idle
    """

    key: str
    gives: Amounts
    used_at: float
    idle: bool
    willing: bool = True


class Plan(NamedTuple):
    """The next steps: who may load now, and who sleeps, for whom.

    Attributes:
        granted: keys of claims
        sleep: key of a holder -> the key of the claim that it sleeps for; "": for what has grown beyond the budget
    """

    granted: Sequence[str]
    sleep: Mapping[str, str]


def plan(
    claims: Sequence[Claim],
    holders: Collection[Holder],
    free: Amounts,
    coming: Amounts,
    now: float,
) -> Plan:
    """Return who may load, and who sleeps.

    Args:
        claims: in the order in which they came
        holders: those that have workers and do not fall asleep already
        free: of the budgets, what nobody has; below 0: some have grown beyond it. Other resources are not bounded
        coming: what those give back that fall asleep at the moment
        now: by the clock of the claims
    """
    left = _Left(free, coming)
    idle = sorted((one for one in holders if one.idle), key=lambda one: (one.used_at, one.key))
    sleep: dict[str, str] = {}

    def have_sleep(lacking: Amounts, candidates: Iterable[Holder], key: str) -> None:
        for one in candidates:
            if not any(lacks > left.soon(kind) for kind, lacks in lacking.items()):
                break
            if any(
                one.gives.get(kind, 0) > 0 and n > left.soon(kind) for kind, n in lacking.items()
            ):
                idle.remove(one)
                sleep[one.key] = key
                left.comes(one.gives)

    have_sleep(dict.fromkeys(free, 0), list(idle), "")
    granted = []
    for claim in claims:
        needs = {kind: count for kind, count in claim.needs.items() if kind in free}
        if left.has(needs):
            left.take(needs)
            granted.append(claim.key)
            continue
        patient = now - claim.since < PATIENCE_S
        ready = [one for one in idle if not patient or now - one.used_at >= QUIET_S]
        others = [one for one in _sleepers(claim, holders) if one.key not in sleep]
        # What busy ones have can be gathered; where that is not enough either, nobody loses anything.
        if left.reaches(needs, ready) or (not patient and left.reaches(needs, others)):
            have_sleep(needs, ready, claim.key)
            left.set_aside(needs)
    return Plan(granted, sleep)


def is_in_reach(claim: Claim, holders: Iterable[Holder], free: Amounts, coming: Amounts) -> bool:
    """Whether there is enough for a claim once all others sleep that ever may; see `plan`."""
    needs = {kind: count for kind, count in claim.needs.items() if kind in free}
    return _Left(free, coming).reaches(needs, _sleepers(claim, holders))


def hindrance(claim: Claim, holders: Collection[Holder], *, is_in_reach: bool) -> str:
    """Return who keeps a claim from its memory, and what would help, in words."""
    others = [
        one
        for one in holders
        if one.key != claim.of and any(one.gives.get(kind, 0) > 0 for kind in claim.needs)
    ]
    unwilling = _names(one.key for one in others if not one.willing)
    busy = _names(one.key for one in others if one.willing and not one.idle)
    told = []
    if unwilling:
        told.append(f"{unwilling} may never sleep")
    if busy:
        told.append(f"{busy} {'are' if ',' in busy else 'is'} busy")
    if is_in_reach:
        return f"{' and '.join(told) or 'others are loading'}; try again later"
    ways = (
        "raise the budget, let idle models sleep (any_may_sleep = true for all; instances=(0, 1) or lazy=True of one), "
        "or say what they need (memory=)"
    )
    return f"{' and '.join(told) or 'no model can give as much'}, so waiting does not help: {ways}"


def _names(keys: Iterable[str]) -> str:
    """Return the names of models by their keys, "a, b and 3 more"."""
    names = sorted({key.partition("#")[0] for key in keys})
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])


def _sleepers(claim: Claim, holders: Iterable[Holder]) -> list[Holder]:
    """Return those that may sleep for a claim at some time; whoever claims more does not do that for itself."""
    return [one for one in holders if one.idle or (one.willing and one.key != claim.of)]


class _Left:
    """The rest of a budget while it is given out: now, and when those sleep that are about to."""

    def __init__(self, free: Amounts, coming: Amounts) -> None:
        self._free = dict(free)
        self._coming = {kind: coming.get(kind, 0) for kind in free}

    def soon(self, kind: str) -> int:
        return self._free[kind] + self._coming[kind]

    def has(self, needs: Amounts) -> bool:
        return all(count <= 0 or count <= self._free[kind] for kind, count in needs.items())

    def reaches(self, needs: Amounts, sleepers: Collection[Holder]) -> bool:
        """Whether it is enough when these sleep, too."""
        return all(
            count <= 0
            or count <= self.soon(kind) + sum(max(0, one.gives.get(kind, 0)) for one in sleepers)
            for kind, count in needs.items()
        )

    def take(self, needs: Amounts) -> None:
        for kind, count in needs.items():
            self._free[kind] -= count

    def comes(self, gives: Amounts) -> None:
        for kind, count in gives.items():
            if kind in self._coming:
                self._coming[kind] += max(0, count)

    def set_aside(self, needs: Amounts) -> None:
        """Keep it from those that came later, as far as it is there: first what is free, then what comes."""
        for kind, count in needs.items():
            now = min(max(0, self._free[kind]), count)
            self._free[kind] -= now
            self._coming[kind] -= min(self._coming[kind], count - now)


def estimate(known: Collection[int], payload: int, budget: int) -> int:
    """Return what a worker of a model is taken to need that was never loaded: rather too much, for one load.

    Args:
        known: what workers of the other models take
        payload: bytes of its pickled callable, which are there twice while it loads
        budget: of all models: the estimate is not what keeps a model from being loaded
    """
    usual = min(max(known, default=budget), round(budget * _USUAL_SHARE))
    return min(budget, max(LEAST_ESTIMATE, usual, 2 * payload))


def added(*amounts: Amounts) -> dict[str, int]:
    """Return the sums by resource."""
    total: dict[str, int] = {}
    for one in amounts:
        for kind, count in one.items():
            total[kind] = total.get(kind, 0) + count
    return total


def size_text(count: float) -> str:
    """Return a number of bytes as messages have it."""
    mib = count / (1 << 20)
    return f"{mib / 1024:,.2f} GiB" if abs(mib) >= 10240 else f"{mib:,.0f} MiB"


def resource_text(kind: str) -> str:
    """Return what a resource is called in messages."""
    return kind if kind == MEMORY else f"memory of GPU {kind}"


def setting_text(kind: str) -> str:
    """Return the setting that bounds a resource, for messages."""
    return "memory_budget" if kind == MEMORY else f"gpu_memory_budget of GPU {kind}"


def amounts_text(amounts: Amounts) -> str:
    """Return amounts as messages have them, such as "512 MiB of memory"."""
    told = [
        f"{size_text(count)} of {resource_text(kind)}" for kind, count in amounts.items() if count
    ]
    return " and ".join(told) or "no memory"
