"""The methods of a client that stop, drain or upgrade the daemon."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytriton._control.daemon_view import DaemonView
from pytriton._protocol import messages
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError

if TYPE_CHECKING:
    from pytriton._register.thread_host import ThreadHost


class DaemonLife(DaemonView):
    """The methods of `DaemonClient` that stop, drain or upgrade the daemon."""

    def shutdown(self) -> None:
        """Stop the daemon gracefully, as SIGTERM does; return once the shutdown has begun."""
        self._ask(messages.Shutdown(), messages.Done)

    def drain(
        self, settle_s: float = 5.0, timeout_s: float | None = None, stop: bool = True
    ) -> None:
        """Drain the daemon before its host goes away, without failing requests or streams.

        The daemon immediately reports not ready over HTTP, gRPC and to load balancers, and refuses registrations. It
        keeps serving for `settle_s`, then finishes in-flight requests and exits with code 0, so that no service manager
        restarts it. Call this again to change the times.

        Args:
            settle_s: seconds during which new requests are still accepted, until every load balancer has noticed
            timeout_s: seconds that in-flight requests and streams then get; default: the setting `grace_period_s`
            stop: True: return at once, and let the daemon exit. False: the daemon does not exit; return when it can
                be stopped
        """
        if stop:
            self.expect_end()
        self._ask(messages.Drain(settle_s, timeout_s, stop), messages.Done)

    def upgrade(self, python: str | None = None, wait_s: float = 30.0) -> None:
        """Upgrade the running daemon to the installed version of pytriton-daemon; return when it is done.

        Models keep serving in the same workers: no request and no stream fails. Changes of models wait for about a
        second.

        Args:
            python: interpreter of another environment that has the next version; default: the daemon's own
            wait_s: seconds that changes of models in progress may take to finish

        Raises:
            PyTritonDaemonError: the daemon is still the old version and keeps serving, or it has been restarted
                instead. The text says why.
        """
        from pytriton._control.upgrade import NotUpgraded, upgrade

        def ask(message: messages.AnyMessage) -> messages.AnyMessage:
            if isinstance(message, messages.Upgrade):
                return self._ask(message, messages.Done)
            return self._ask(message, messages.EventList)

        try:
            gone = DaemonNotRunningError
            upgrade(ask, messages.Upgrade(python, wait_s), lambda error: isinstance(error, gone))
        except NotUpgraded as error:
            raise PyTritonDaemonError(str(error)) from None

    def expect_end(self) -> None:
        """Suppress the warnings about models that end with the daemon: it is about to be stopped on purpose."""
        for host in self._hosts():
            host.expected = True

    def _hosts(self) -> list[ThreadHost]:
        """Return the models that this client runs in threads of this process."""
        thread_host = sys.modules.get(
            "pytriton._register.thread_host"
        )  # not imported: there are none
        hosts = [] if thread_host is None else thread_host.hosts()
        return [host for host in hosts if host.serves_by(self._connection)]
