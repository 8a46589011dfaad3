"""`Balancer`: the loop of `pytriton-daemon fleet balance`, which keeps HAProxy's configuration up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from pytriton.exceptions import PyTritonBadParameterError, PyTritonError
from pytriton.fleet.balancer.configuration import (
    KEEP_ALIVE_S,
    BalancerSettings,
    Files,
    check_node,
    render,
)
from pytriton.fleet.balancer.dns import Names
from pytriton.fleet.balancer.haproxy import HAProxy
from pytriton.fleet.balancer.layout import Node, update_nodes
from pytriton.fleet.placement_status import NodeStatus

#: Grace period for a request that is sent just before its connection expires.
_LATE_S = 2.0
_logger = logging.getLogger("pytriton.fleet.balancer")


class Balancer:
    """Updates HAProxy's configuration when the nodes or their models change.

    Args:
        haproxy: the HAProxy process, which is started on the first poll
        settings: listening addresses and other settings
        look: function that returns the state of all nodes
        applied: function called once all requests are routed according to the latest poll
        clock: function like time.monotonic
        names: resolver for nodes given by name
    """

    def __init__(
        self,
        haproxy: HAProxy,
        settings: BalancerSettings,
        look: Callable[[], Iterable[NodeStatus]],
        applied: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        names: Names | None = None,
    ) -> None:
        self._haproxy = haproxy
        self._settings = settings
        self._look = look
        self._applied = applied
        self._clock = clock
        self._names = Names(clock=clock) if names is None else names
        self._changed_at = 0.0
        self._seen: list[Node] = []
        self._nodes: list[Node] = []
        self._files: Files | None = None
        self._wrong: list[str] = []

    def follow(self, report: Callable[[str], None] = lambda _: None) -> bool:
        """Poll the nodes once and update HAProxy. Return whether the configuration has changed.

        Args:
            report: called once for each node or model that is left out

        Raises:
            PyTritonError: HAProxy rejects its new configuration, or no node can be polled. HAProxy keeps its previous
                configuration in both cases.
        """
        wrong: list[str] = []
        self._seen = update_nodes(self._seen, self._look(), wrong.append)
        self._nodes = self._usable(self._seen, wrong.append)
        for text in wrong:
            if text not in self._wrong:
                report(text)
        self._wrong = wrong
        files = render(self._nodes, self._settings, str(self._haproxy.folder))
        same = files == self._files and self._haproxy.pid is not None
        if not same:
            self._haproxy.use(files)
            self._files = files
            self._changed_at = self._clock()
        if self._old_workers_are_idle():
            self._applied()
        return not same

    def _usable(self, nodes: Iterable[Node], report: Callable[[str], None]) -> list[Node]:
        found = []
        for one in nodes:
            try:
                check_node(one, self._settings)
                found.append(self._names.resolved(one))
            except PyTritonBadParameterError as error:  # noqa: PERF203
                report(f"{one.name} is left out: {error}")
        return found

    def _old_workers_are_idle(self) -> bool:
        """Return True if old HAProxy workers can no longer receive requests.

        They have exited, or the idle connections of their clients have expired.
        """
        waited = self._clock() - self._changed_at
        return waited > KEEP_ALIVE_S + _LATE_S or len(self._haproxy.workers()) <= 1

    def run(self, stop: threading.Event, interval_s: float, report: Callable[[str], None]) -> None:
        """Poll every `interval_s` until `stop` is set; report and retry failures.

        Errors do not end the loop, because HAProxy, which stops with this process, can keep serving during failures
        of nodes or of the disk.
        """
        reported = ""
        while not stop.is_set():
            try:
                if self.follow(report):
                    models = {model for one in self._nodes for model in one.models}
                    report(f"{len(self._nodes)} nodes, {len(models)} models")
                reported = ""
            except Exception as error:
                text = str(error)
                if not isinstance(error, PyTritonError):
                    text = f"{type(error).__name__}: {error}; HAProxy keeps its configuration"
                    _logger.debug("polling the nodes failed", exc_info=True)
                if text != reported:
                    report(text)
                reported = text
            stop.wait(interval_s)
