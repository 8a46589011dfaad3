"""Which worker serves which proxy: data, and the two choices that are made about it.

A proxy gets the worker that serves the fewest proxies, so that with all workers up each has one. When a
worker ends, its proxy is sent to another at once; when the replacement is up, one is sent back to it.
"""

from __future__ import annotations

from collections.abc import Sequence


class Routes:
    """The proxies of one registration, each with the name of its worker."""

    def __init__(self) -> None:
        self._worker_of: dict[str, str] = {}

    def __len__(self) -> int:
        """How many proxies are attached."""
        return len(self._worker_of)

    def lanes_of(self, worker: str) -> int:
        """How many proxies a worker serves."""
        return sum(name == worker for name in self._worker_of.values())

    def worker_of(self, proxy: str) -> str | None:
        """Return the worker that serves a proxy, None if none does."""
        return self._worker_of.get(proxy)

    def assign(self, proxy: str, ready: Sequence[str]) -> str:
        """Return which of the ready workers serves `proxy` from now on: the one with the fewest."""
        self.forget(proxy)
        worker = min(ready, key=self.lanes_of)
        self._worker_of[proxy] = worker
        return worker

    def forget(self, proxy: str) -> None:
        """A proxy has gone, or is about to get another worker."""
        self._worker_of.pop(proxy, None)

    def clear(self) -> None:
        """All proxies are gone."""
        self._worker_of.clear()

    def too_many_for(self, idle: str) -> str | None:
        """Return the worker that should give a proxy to `idle`; None if there is nothing to give."""
        if not self._worker_of or self.lanes_of(idle):
            return None
        busiest = max(set(self._worker_of.values()), key=self.lanes_of)
        return busiest if self.lanes_of(busiest) > 1 else None
