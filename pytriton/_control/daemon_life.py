"""The end of the daemon, and its next version: what a client can ask for of the daemon itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytriton._control.daemon_view import DaemonView
from pytriton._protocol import messages
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError

if TYPE_CHECKING:
    from pytriton._register.hosting import Host


class DaemonLife(DaemonView):
    """The methods of `DaemonClient` by which the daemon ends, or becomes another version of itself."""

    def shutdown(self) -> None:
        """Stop the daemon in order, as SIGTERM does; returns when it has begun to."""
        self._ask(messages.Shutdown(), messages.Done)

    def drain(
        self, settle_s: float = 5.0, timeout_s: float | None = None, stop: bool = True
    ) -> None:
        """Have the daemon leave, because its machine is to go: no request and no stream fails.

        At once it says that it is not ready, over HTTP, gRPC and to those who balance, and refuses registrations. It
        serves on for `settle_s`, answers what is under way then, and ends with exit code 0, so that no service manager
        starts it again. To be said again with other times.

        Args:
            settle_s: seconds that requests are still taken, until every balancer has noticed
            timeout_s: seconds that requests and streams under way then get; default: the setting `grace_period_s`
            stop: False: it does not end, and this returns when it may be stopped; else this returns at once
        """
        if stop:
            self.expect_end()
        self._ask(messages.Drain(settle_s, timeout_s, stop), messages.Done)

    def upgrade(self, python: str | None = None, wait_s: float = 30.0) -> None:
        """Have the daemon become the version of pytriton-daemon that is installed now; returns when it is.

        Models serve on, in the same workers: no request and no stream fails. What changes models waits for a second.

        Args:
            python: interpreter of another environment that has the next version; default: the daemon's own
            wait_s: for so long, changes of models that are under way may be finished

        Raises:
            PyTritonDaemonError: the daemon is still the version that it was, and serves on; or it has started
                afresh. Says why.
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
        """The daemon is about to be stopped, as it should be: no warnings of models that go with it."""
        for host in self._hosts():
            host.expected = True

    def _hosts(self) -> list[Host]:
        """Return what runs in threads of this process by this client."""
        hosting = sys.modules.get("pytriton._register.hosting")  # not there: nothing does
        hosts = [] if hosting is None else hosting.hosts()
        return [host for host in hosts if host.serves_by(self._connection)]
