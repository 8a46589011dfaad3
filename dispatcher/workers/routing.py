"""The routes from proxies to workers: a table, and the two choices that depend on it.

A worker is meant to serve `lanes` proxies. A proxy gets a worker that serves some, but not yet so
many; else the one that serves the fewest: so spare workers stay free as long as no other has ended.
When a worker ends, its proxies are sent to others at once; when the replacement is up, it gets those
that others have too many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence


class Routes:
    """The proxies of one registration, each with the name of its worker.

    Args:
        lanes: returns how many proxies each worker is meant to serve by now
    """

    def __init__(self, lanes: Callable[[], int] = lambda: 1) -> None:
        self._lanes = lanes
        self._worker_of: dict[str, str] = {}

    def __len__(self) -> int:
        """How many proxies are attached."""
        return len(self._worker_of)

    def table(self) -> dict[str, str]:
        """Return each proxy with its worker; "" for one that has none."""
        return dict(self._worker_of)

    def adopt(self, table: Mapping[str, str]) -> None:
        """Go on with what a former version of this process has routed."""
        self._worker_of.update(table)

    def lanes_of(self, worker: str) -> int:
        """How many proxies a worker serves."""
        return sum(name == worker for name in self._worker_of.values())

    def worker_of(self, proxy: str) -> str | None:
        """Return the worker that serves a proxy, None if none does."""
        return self._worker_of.get(proxy)

    def assign(self, proxy: str, ready: Sequence[str]) -> str:
        """Return which of the ready workers serves `proxy` from now on."""
        self.forget(proxy)
        worker = min(ready, key=self._burden)
        self._worker_of[proxy] = worker
        return worker

    def _burden(self, worker: str) -> tuple[int, int]:
        count = self.lanes_of(worker)
        return (0, -count) if 0 < count < self._lanes() else (1, count)

    def rest(self, proxy: str) -> None:
        """Note a proxy that has no worker, as its model sleeps."""
        self._worker_of[proxy] = ""

    def rest_all_of(self, workers: Collection[str]) -> None:
        """Take the proxies of these workers off their routes; they stay attached."""
        for proxy, worker in self._worker_of.items():
            if worker in workers:
                self.rest(proxy)

    def forget(self, proxy: str) -> None:
        """Remove the route of a proxy that has gone, or is about to get another worker."""
        self._worker_of.pop(proxy, None)

    def clear(self) -> None:
        """Forget all proxies."""
        self._worker_of.clear()

    def too_many_for(self, idle: str, alike: Callable[[str], bool] = lambda _: True) -> str | None:
        """Return the worker that should give a proxy to `idle`; None if there is nothing to give.

        `alike`: whether a worker serves what `idle` does.
        """
        givers = {name for name in self._worker_of.values() if name and alike(name)}
        if not givers or self.lanes_of(idle) >= self._lanes():
            return None
        busiest = max(givers, key=self.lanes_of)
        return busiest if self.lanes_of(busiest) > self._lanes() else None
