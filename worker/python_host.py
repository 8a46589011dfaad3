"""What `pb_utils` needs of a worker: where log lines, metrics and calls to other models go."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.ipc.lane import MetricUpdate
from pytriton.pb_utils import host


class WorkerHost(host.Host):
    """The host in a worker. Log lines go to its standard error, which the daemon reads with their levels.

    Changes of metrics are kept until there is somebody to give them to.
    """

    def __init__(self, model_name: str, model_dir: str | None) -> None:
        self.model_name = model_name
        self.model_dir = model_dir
        self._updates: list[MetricUpdate] = []
        self._listener: Callable[[], None] | None = None

    def metric(self, update: MetricUpdate) -> None:
        self._updates.append(update)
        if self._listener is not None:
            self._listener()

    def on_metric(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after every change, in the thread of who made it."""
        self._listener = listener

    def take_metrics(self, most: int) -> list[MetricUpdate]:
        """Return the oldest changes, at most so many, which are forgotten here."""
        taken, self._updates[:most] = self._updates[:most], []
        return taken
