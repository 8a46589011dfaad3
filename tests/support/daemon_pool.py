"""Daemons that a test process keeps and lends to one module after another.

Starting a daemon and the fork server of its first model costs half a second of CPU time and two seconds of waiting. A
borrower must leave no model, worker, proxy or shared memory behind; the pool checks that when the daemon comes back. If
it is no longer the same daemon with its first tritonserver, it is stopped and replaced by a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pytriton.exceptions import PyTritonError
from support.real_daemon import RunningDaemon, eventually

#: Settings, by name.
_Settings = frozenset[tuple[str, Any]]


class DaemonPool:
    """Idle daemons, one for each set of settings.

    Args:
        gone_s: how long the leftovers of a model may take to disappear
    """

    def __init__(self, gone_s: float = 30.0) -> None:
        self._gone_s = gone_s
        self._kept: dict[_Settings, _Kept] = {}

    @contextlib.contextmanager
    def lend(self, **settings: Any) -> Iterator[RunningDaemon]:
        """Lend a daemon with these hashable settings.

        It has no model, and `said` starts with the loan; its events, its metrics and the numbers of workers continue. At the
        end, remaining models are unregistered, and anything left after that is a failure.
        """
        wanted = frozenset(settings.items())
        kept = self._kept.pop(wanted, None) or _Kept(**settings)
        try:
            yield kept.daemon
            kept.empty(self._gone_s)
        except BaseException as error:
            kept.end(error)
            raise
        if kept.is_as_new() and wanted not in self._kept:
            self._kept[wanted] = kept
        else:
            kept.end()

    def close(self) -> None:
        """Stop all daemons; fail if one leaves anything behind."""
        with contextlib.ExitStack() as ending:
            while self._kept:
                ending.callback(self._kept.popitem()[1].end)


class _Kept:
    """A daemon of the pool, and its initial state."""

    def __init__(self, **settings: Any) -> None:
        self.daemon = RunningDaemon.start(**settings)
        self._server = self.daemon.client.status().server
        self._regions = self.daemon.regions()

    def empty(self, gone_s: float) -> None:
        """Unregister all models, and fail if anything of them is left."""
        daemon = self.daemon
        if daemon.process.poll() is not None:
            return
        with contextlib.suppress(PyTritonError):  # a broken daemon is not lent again
            names = [model.name for model in daemon.client.models()]
            with ThreadPoolExecutor(max(1, len(names))) as together:
                list(together.map(daemon.client.unregister, names))
        if daemon.client.status().models or daemon.client.status().server != self._server:
            return

        def left() -> list[Any]:
            new = set(daemon.regions()) - set(self._regions)
            return [*daemon.workers(), *daemon.stubs(), *sorted(new)]

        eventually(lambda: not left(), lambda: f"nothing left of models: {left()}", gone_s)

    def is_as_new(self) -> bool:
        """Return whether the daemon can be lent again."""
        if self.daemon.process.poll() is not None:
            return False
        status = self.daemon.client.status()
        is_same = status.pid == self.daemon.process.pid and status.server == self._server
        if not is_same or status.state != "ready" or status.models or status.problems:
            return False
        self.daemon.forget_said()
        return True

    def end(self, error: BaseException | None = None) -> None:
        """Stop the daemon; fail if it leaves anything behind."""
        self.daemon.__exit__(None, error, None)
