"""Opens the management server if it is configured; only then are its modules imported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from pytriton._host.ports import PortError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.messages.answers import Status
from pytriton._protocol.messages.events import Event, Explanation
from pytriton._protocol.messages.requests import Requests
from pytriton.dispatcher.runtime.upgrade_snapshot import SentSeries
from pytriton.dispatcher.telemetry.http.otlp import OtlpExport
from pytriton.dispatcher.telemetry.http.server_thread import CertificateError
from pytriton.dispatcher.telemetry.metrics.snapshot import Snapshots

if TYPE_CHECKING:
    from pytriton.dispatcher.telemetry.http.management_server import ManagementServer

_log = structlog.get_logger(__name__)


class Management:
    """The management server of a daemon, if configured; for the arguments see `ManagementServer`.

    Attributes:
        urls: the addresses that it listens on.
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        figures: Snapshots,
        status: Callable[[], Status],
        requests: Callable[[str], Requests],
        explain: Callable[[str], Awaitable[Explanation]],
        events: Callable[[bool], Sequence[Event]],
    ) -> None:
        self.urls: list[str] = []
        self._otlp = OtlpExport(figures.scraped)
        figures.exports = lambda: dict(self._otlp.outcomes)
        self._arguments = (config, rundir, figures, status, requests, explain, events)
        self._server: ManagementServer | None = None

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of its listening sockets."""
        return [] if self._server is None else self._server.descriptors

    @property
    def beginnings(self) -> SentSeries | None:
        """The start times of the series sent by OTLP; None if none are sent."""
        return self._otlp.hand_over()

    def open(
        self, adopted: Sequence[int] = (), beginnings: SentSeries | None = None
    ) -> ExitCode | None:
        """Start serving and sending metrics; return the daemon's exit code on failure.

        Args:
            adopted: descriptors of the listening sockets of the version that was upgraded from
            beginnings: start times of the series that it has sent
        """
        self._otlp.open(beginnings)
        config = self._arguments[0]
        if config.management_address is None and config.management_unix_socket is None:
            return None
        from pytriton.dispatcher.telemetry.http.management_server import ManagementServer

        server = ManagementServer(*self._arguments)
        try:
            server.start(adopted)
        except (PortError, CertificateError) as error:
            _log.error(
                "cannot listen", management_address=config.management_address, reason=str(error)
            )
            return ExitCode.PORT_IN_USE if isinstance(error, PortError) else ExitCode.USAGE
        self._server = server
        self.urls += server.urls
        return None

    async def close(self) -> None:
        """Stop serving and sending."""
        await self._otlp.close()
        if self._server is not None:
            await self._server.stop()
