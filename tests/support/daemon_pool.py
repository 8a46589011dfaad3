"""Daemons that a process of the tests keeps, and lends to one module after another.

A daemon and the fork server of its first model cost half a second of CPU time and two seconds of waiting. Whoever
borrows one leaves no model, worker, proxy and shared memory behind: that is looked at when it comes back. Whether it is
still the daemon that was lent, with its first tritonserver, is looked at, too: if not, it ends, and another one starts.
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
    """The daemons that nobody has at the moment, one for all that ask for the same settings.

    Args:
        gone_s: how long what a model had may take to go
    """

    def __init__(self, gone_s: float = 30.0) -> None:
        self._gone_s = gone_s
        self._kept: dict[_Settings, _Kept] = {}

    @contextlib.contextmanager
    def lend(self, **settings: Any) -> Iterator[RunningDaemon]:
        """Lend a daemon with these settings, which have to be hashable.

        It has no model, and `said` tells nothing of former borrowers; its events, its figures and the numbers in the
        names of workers go on. Models that are there in the end are unregistered; what is left then is a failure.
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
        """End all of them; fails when one leaves anything behind."""
        with contextlib.ExitStack() as ending:
            while self._kept:
                ending.callback(self._kept.popitem()[1].end)


class _Kept:
    """One of them, and what it was like in the beginning."""

    def __init__(self, **settings: Any) -> None:
        self.daemon = RunningDaemon.start(**settings)
        self._server = self.daemon.client.status().server
        self._regions = self.daemon.regions()

    def empty(self, gone_s: float) -> None:
        """Unregister all models, and fail where anything of them is left."""
        daemon = self.daemon
        if daemon.process.poll() is not None:
            return
        with contextlib.suppress(PyTritonError):  # one that is broken; it is not lent again
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
        """Whether somebody else may have it."""
        if self.daemon.process.poll() is not None:
            return False
        status = self.daemon.client.status()
        is_same = status.pid == self.daemon.process.pid and status.server == self._server
        if not is_same or status.state != "ready" or status.models or status.problems:
            return False
        self.daemon.forget_said()
        return True

    def end(self, error: BaseException | None = None) -> None:
        """End it; fails when it leaves anything behind."""
        self.daemon.__exit__(None if error is None else type(error), error, None)
