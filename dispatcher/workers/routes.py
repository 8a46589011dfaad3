"""Routing table from proxies to workers, and the rules for assigning and rebalancing proxies.

Each worker should serve `lanes` proxies. A proxy is assigned to a worker that serves some proxies but fewer than
`lanes`, otherwise to the worker that serves the fewest. So standby workers stay free until another worker exits.
When a worker exits, its proxies are reassigned at once. When its replacement is ready, overloaded workers give it
their surplus proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence


class Routes:
    """Maps each proxy of one registration to the name of its worker.

    Args:
        lanes: Returns how many proxies each worker should currently serve.
    """

    def __init__(self, lanes: Callable[[], int] = lambda: 1) -> None:
        self._lanes = lanes
        self._worker_of: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of attached proxies."""
        return len(self._worker_of)

    def table(self) -> dict[str, str]:
        """Return the worker of each proxy, "" for a proxy without one."""
        return dict(self._worker_of)

    def adopt(self, table: Mapping[str, str]) -> None:
        """Restore the routes from before an upgrade."""
        self._worker_of.update(table)

    def lanes_of(self, worker: str) -> int:
        """Return the number of proxies that a worker serves."""
        return sum(name == worker for name in self._worker_of.values())

    def worker_of(self, proxy: str) -> str | None:
        """Return the worker that serves a proxy, or None."""
        return self._worker_of.get(proxy)

    def assign(self, proxy: str, ready: Sequence[str]) -> str:
        """Assign `proxy` to one of the ready workers and return its name."""
        self.forget(proxy)
        worker = min(ready, key=self._burden)
        self._worker_of[proxy] = worker
        return worker

    def _burden(self, worker: str) -> tuple[int, int]:
        count = self.lanes_of(worker)
        return (0, -count) if 0 < count < self._lanes() else (1, count)

    def rest(self, proxy: str) -> None:
        """Keep a proxy attached without a worker, because its model is suspended."""
        self._worker_of[proxy] = ""

    def rest_all_of(self, workers: Collection[str]) -> None:
        """Detach the proxies of these workers from their workers. The proxies stay attached."""
        for proxy, worker in self._worker_of.items():
            if worker in workers:
                self.rest(proxy)

    def forget(self, proxy: str) -> None:
        """Remove the route of a proxy that has exited or is about to be reassigned."""
        self._worker_of.pop(proxy, None)

    def clear(self) -> None:
        """Forget all proxies."""
        self._worker_of.clear()

    def too_many_for(self, idle: str, alike: Callable[[str], bool] = lambda _: True) -> str | None:
        """Return the worker that should give a proxy to `idle`, or None if no worker has too many.

        `alike`: Returns whether a worker serves the same version as `idle`.
        """
        givers = {name for name in self._worker_of.values() if name and alike(name)}
        if not givers or self.lanes_of(idle) >= self._lanes():
            return None
        busiest = max(givers, key=self.lanes_of)
        return busiest if self.lanes_of(busiest) > self._lanes() else None
