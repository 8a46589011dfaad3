"""Detects when calls between models deadlock because workers are waiting for each other in a cycle.

Proxies report calls that have been waiting for a while. A worker is stuck if it is waiting for a model that has only
stuck workers. The largest such set is found by repeatedly removing workers that are not stuck. This is exact for
callables that need the responses of all their calls. The last proxy in the cycle to report its calls is notified of the
deadlock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence


class PendingCalls:
    """The pending calls reported by proxies: which worker is waiting for which models."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, int, str], list[str]] = {}

    def record(self, worker: str, process: int, models: Sequence[str], proxy: str = "") -> None:
        """Record that a worker is waiting for `models`, in calls reported by `proxy` in the given process."""
        self._models[worker, process, proxy] = list(models)
        self._models = {
            key: waits
            for key, waits in self._models.items()
            if waits and os.path.exists(f"/proc/{key[1]}")  # a proxy's calls end with its process
        }

    def stuck(self, worker: str, workers_of: Callable[[str], Sequence[str]]) -> list[str]:
        """Return the models that this worker is waiting for in vain, because they can never respond, sorted by name."""
        waits: dict[str, set[str]] = {}
        for (name, *_), models in self._models.items():
            waits.setdefault(name, set()).update(models)
        workers = {model: workers_of(model) for models in waits.values() for model in models}
        stuck = set(waits)

        def never_responds(model: str) -> bool:
            return bool(workers[model]) and stuck.issuperset(workers[model])

        while True:
            still = {name for name in stuck if any(never_responds(model) for model in waits[name])}
            if still == stuck:
                return sorted(filter(never_responds, waits[worker])) if worker in stuck else []
            stuck = still
