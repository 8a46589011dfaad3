"""The rules of the memory budget, as pure functions: which models may load, and which others are suspended to make
room.

- Claims are considered in order of arrival. A claim that fits into the free memory is granted.
- Otherwise idle models that may be suspended are suspended, the least recently used first, until the claim fits. If it
  would not fit even then, none is suspended and the claim waits.
- Later claims may overtake a waiting one for `PATIENCE_S`. After that, all freed memory is reserved for it. So a claim
  of any size is granted eventually, unless it would not fit even if every other model were suspended.
- Grants never exceed the budget. If a loaded model grows beyond it, idle models are suspended.

`plan` applies these rules once. `scaling/memory_budget.py` calls it with measurements, and carries the plan out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

#: How long a waiting claim may be overtaken by later ones.
PATIENCE_S = 5.0
#: How long a model must have been idle before it is suspended for a claim younger than `PATIENCE_S`. A pause between two
#: requests of one client should not count as idle.
QUIET_S = 0.2
#: Minimum estimate for a worker of unknown size: an interpreter and a few libraries.
MIN_ESTIMATE = 64 << 20
#: Share of the budget that caps the estimate based on other models, and is used if no other size is known.
_USUAL_SHARE = 0.25
#: Maximum number of model names in one sentence.
_MAX_NAMED = 5
#: The resource name of host memory. All other resources are GPUs.
MEMORY = "memory"

#: Bytes by resource: "memory", and GPUs as devices name them.
Amounts = Mapping[str, int]


class Size(NamedTuple):
    """Memory of one worker in bytes: host memory, and memory on each GPU that it uses."""

    memory: int = 0
    gpu: int = 0

    def at_least(self, other: Size) -> Size:
        """Return the element-wise maximum of two sizes."""
        return Size(max(self.memory, other.memory), max(self.gpu, other.gpu))


class KnownSize(msgspec.Struct, frozen=True):
    """Size of a registration's workers at their last load. Persisted, and handed over in an upgrade.

    Attributes:
        registration: Identifies the registration among others of the same model name.
        memory: Bytes of host memory of one worker.
        gpu: Bytes of one worker on each of its GPUs.
        shared: Mappings that the workers shared: digest -> bytes.
        lived: Whether a worker has been observed from its load to its exit.
    """

    registration: str
    memory: int
    gpu: int = 0
    shared: dict[str, int] = {}
    lived: bool = False


class Claim(NamedTuple):
    """A model's claim to the memory that it needs to load.

    Attributes:
        key: Key of the claim.
        needs: Memory that it needs.
        since: When it was made, in seconds of a monotonic clock.
        of: Key of the holder that makes the claim; "" if the model holds no memory yet.
    """

    key: str
    needs: Amounts
    since: float
    of: str = ""


class MemoryHolder(NamedTuple):
    """A model that holds memory, because it has workers.

    Attributes:
        key: Key of the holder.
        frees: Memory that is freed when it is suspended.
        used_at: Time of its last request or load.
        idle: Whether it can be suspended now: suspending it is allowed, and it is running no requests.
        suspendable: Whether it may ever be suspended.
    """

    key: str
    frees: Amounts
    used_at: float
    idle: bool
    suspendable: bool = True


class MemoryPlan(NamedTuple):
    """Which claims to grant, and which models to suspend for the other claims.

    Attributes:
        granted: Keys of the granted claims.
        suspend: For each holder to suspend, the key of the claim that needs its memory; "" if the budget is exceeded.
    """

    granted: Sequence[str]
    suspend: Mapping[str, str]


def plan(
    claims: Sequence[Claim],
    holders: Collection[MemoryHolder],
    free: Amounts,
    coming: Amounts,
    now: float,
) -> MemoryPlan:
    """Decide which claims to grant and which models to suspend.

    Args:
        claims: Pending claims, oldest first.
        holders: Models that have workers and are not being suspended already.
        free: Unused part of each budget; negative if it is exceeded. Resources that are not listed are not bounded.
        coming: Memory that models being suspended will free.
        now: Current time by the clock of the claims.
    """
    left = _FreeMemory(free, coming)
    idle = sorted((one for one in holders if one.idle), key=lambda one: (one.used_at, one.key))
    suspend: dict[str, str] = {}

    def suspend_until_enough(
        lacking: Amounts, candidates: Iterable[MemoryHolder], key: str
    ) -> None:
        for one in candidates:
            if not any(lacks > left.soon(kind) for kind, lacks in lacking.items()):
                break
            if any(
                one.frees.get(kind, 0) > 0 and n > left.soon(kind) for kind, n in lacking.items()
            ):
                idle.remove(one)
                suspend[one.key] = key
                left.add_coming(one.frees)

    suspend_until_enough(dict.fromkeys(free, 0), list(idle), "")
    granted = []
    for claim in claims:
        needs = {kind: count for kind, count in claim.needs.items() if kind in free}
        if left.has(needs):
            left.take(needs)
            granted.append(claim.key)
            continue
        is_young = now - claim.since < PATIENCE_S
        ready = [one for one in idle if not is_young or now - one.used_at >= QUIET_S]
        others = [one for one in _suspendable_for(claim, holders) if one.key not in suspend]
        # Memory of busy models may be collected over time. If even that is not enough, suspend no model.
        if left.reaches(needs, ready) or (not is_young and left.reaches(needs, others)):
            suspend_until_enough(needs, ready, claim.key)
            left.reserve(needs)
    return MemoryPlan(granted, suspend)


def is_in_reach(
    claim: Claim, holders: Iterable[MemoryHolder], free: Amounts, coming: Amounts
) -> bool:
    """Return whether a claim would fit if all suspendable models were suspended. See `plan` for the arguments."""
    needs = {kind: count for kind, count in claim.needs.items() if kind in free}
    return _FreeMemory(free, coming).reaches(needs, _suspendable_for(claim, holders))


def shortage(claim: Claim, holders: Collection[MemoryHolder], *, is_in_reach: bool) -> str:
    """Return a sentence that says which models hold the memory that a claim needs, and what would help."""
    others = [
        one
        for one in holders
        if one.key != claim.of and any(one.frees.get(kind, 0) > 0 for kind in claim.needs)
    ]
    not_suspendable = _names(one.key for one in others if not one.suspendable)
    busy = _names(one.key for one in others if one.suspendable and not one.idle)
    reasons = []
    if not_suspendable:
        reasons.append(f"{not_suspendable} may never be suspended")
    if busy:
        reasons.append(f"{busy} {'are' if ',' in busy else 'is'} busy")
    if is_in_reach:
        return f"{' and '.join(reasons) or 'others are loading'}; try again later"
    ways = (
        "raise the budget, allow idle models to be suspended (suspend_any_idle_model = true, or instances=(0, 1) or lazy=True "
        "for one model), or declare their sizes (memory_request=)"
    )
    return (
        f"{' and '.join(reasons) or 'no model can free as much'}, so waiting does not help: {ways}"
    )


def _names(keys: Iterable[str]) -> str:
    """Return the model names in these keys as text, such as "a, b, 3 more"."""
    names = sorted({key.partition("#")[0] for key in keys})
    more = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    return ", ".join([*names[:_MAX_NAMED], *more])


def _suspendable_for(claim: Claim, holders: Iterable[MemoryHolder]) -> list[MemoryHolder]:
    """Return the models that may be suspended for a claim, now or later: all suspendable models except the one that
    made the claim.
    """
    return [one for one in holders if one.idle or (one.suspendable and one.key != claim.of)]


class _FreeMemory:
    """The remaining budget during planning: memory that is free now, and memory that suspended models will free."""

    def __init__(self, free: Amounts, coming: Amounts) -> None:
        self._free = dict(free)
        self._coming = {kind: coming.get(kind, 0) for kind in free}

    def soon(self, kind: str) -> int:
        return self._free[kind] + self._coming[kind]

    def has(self, needs: Amounts) -> bool:
        return all(count <= 0 or count <= self._free[kind] for kind, count in needs.items())

    def reaches(self, needs: Amounts, suspended: Collection[MemoryHolder]) -> bool:
        """Return whether the memory would suffice if these models were suspended, too."""
        return all(
            count <= 0
            or count <= self.soon(kind) + sum(max(0, one.frees.get(kind, 0)) for one in suspended)
            for kind, count in needs.items()
        )

    def take(self, needs: Amounts) -> None:
        for kind, count in needs.items():
            self._free[kind] -= count

    def add_coming(self, frees: Amounts) -> None:
        for kind, count in frees.items():
            if kind in self._coming:
                self._coming[kind] += max(0, count)

    def reserve(self, needs: Amounts) -> None:
        """Set memory aside so that later claims cannot get it: free memory first, then memory that is about to be
        freed.
        """
        for kind, count in needs.items():
            now = min(max(0, self._free[kind]), count)
            self._free[kind] -= now
            self._coming[kind] -= min(self._coming[kind], count - now)


def estimate(known: Collection[int], payload: int, budget: int) -> int:
    """Return a deliberately high estimate of a worker's memory, for a model that was never loaded.

    Args:
        known: Bytes per worker of the other models.
        payload: Bytes of the pickled callable. While it loads, they are in memory twice.
        budget: The budget of all models in bytes. The estimate never exceeds it.
    """
    usual = min(max(known, default=budget), round(budget * _USUAL_SHARE))
    return min(budget, max(MIN_ESTIMATE, usual, 2 * payload))


def added(*amounts: Amounts) -> dict[str, int]:
    """Add up several amounts, resource by resource."""
    total: dict[str, int] = {}
    for one in amounts:
        for kind, count in one.items():
            total[kind] = total.get(kind, 0) + count
    return total


def size_text(count: float) -> str:
    """Return a number of bytes as text, such as "512 MiB"."""
    mib = count / (1 << 20)
    return f"{mib / 1024:,.2f} GiB" if abs(mib) >= 10240 else f"{mib:,.0f} MiB"


def resource_text(kind: str) -> str:
    """Return the name of a resource as it appears in messages, such as "memory"."""
    return kind if kind == MEMORY else f"memory of GPU {kind}"


def setting_text(kind: str) -> str:
    """Return the name of the setting that limits a resource."""
    return "memory_budget" if kind == MEMORY else f"gpu_memory_budget of GPU {kind}"


def amounts_text(amounts: Amounts) -> str:
    """Return amounts as text, such as "512 MiB of memory"."""
    texts = [
        f"{size_text(count)} of {resource_text(kind)}" for kind, count in amounts.items() if count
    ]
    return " and ".join(texts) or "no memory"
