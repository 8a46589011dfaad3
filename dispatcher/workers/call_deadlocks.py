"""Detection of call deadlocks: workers whose calls to other models wait for each other in a circle.

Proxies tell of calls that have waited for a while. A worker is stuck when it waits for a model all of whose
workers are stuck: the largest such set is what is left when all others have been taken away. That is
exact for callables that need the answers of all their calls. The proxy that reports last of a circle learns of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence


class Waiting:
    """The waits that proxies have reported: which worker waits for which models."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, int, str], list[str]] = {}

    def tell(self, worker: str, process: int, models: Sequence[str], proxy: str = "") -> None:
        """Note that a worker waits for these models, by calls of `proxy`, one of that process."""
        self._models[worker, process, proxy] = list(models)
        self._models = {
            key: waits
            for key, waits in self._models.items()
            if waits and os.path.exists(f"/proc/{key[1]}")  # a proxy's calls end with it
        }

    def stuck(self, worker: str, workers_of: Callable[[str], Sequence[str]]) -> list[str]:
        """Return the models that this worker waits for in vain."""
        waits: dict[str, set[str]] = {}
        for (name, *_), models in self._models.items():
            waits.setdefault(name, set()).update(models)
        workers = {model: workers_of(model) for models in waits.values() for model in models}
        stuck = set(waits)

        def in_vain(model: str) -> bool:
            return bool(workers[model]) and stuck.issuperset(workers[model])

        while True:
            still = {name for name in stuck if any(in_vain(model) for model in waits[name])}
            if still == stuck:
                return sorted(filter(in_vain, waits[worker])) if worker in stuck else []
            stuck = still
