"""Starts the management server and the OTLP export if they are configured. Otherwise their modules are not even
imported.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from pytriton._host.ports import PortError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.messages.client import Event, Explanation, Requests, Status
from pytriton.dispatcher.telemetry.http.otlp import OtlpExport
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import MetricsCollector
from pytriton.dispatcher.upgrade.snapshot import SentSeries

if TYPE_CHECKING:
    from pytriton.dispatcher.telemetry.http.management_server import ManagementServer

_log = structlog.get_logger(__name__)


class Management:
    """The management server and the OTLP export of a daemon. For the arguments, see `ManagementServer`.

    Attributes:
        urls: URLs on which the server listens
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        metrics: MetricsCollector,
        status: Callable[[], Status],
        requests: Callable[[str], Requests],
        explain: Callable[[str], Awaitable[Explanation]],
        events: Callable[[bool], Sequence[Event]],
    ) -> None:
        self.urls: list[str] = []
        self._config = config
        self._otlp = OtlpExport(metrics.scrape, metrics.otlp_exports)
        self._arguments = (config, rundir, metrics, status, requests, explain, events)
        self._server: ManagementServer | None = None

    @property
    def descriptors(self) -> list[int]:
        """Descriptors of the listening sockets, for the next version of the daemon."""
        return [] if self._server is None else self._server.descriptors

    @property
    def start_times(self) -> SentSeries | None:
        """Start times of the series sent by OTLP, for the next version of the daemon; None if none are sent."""
        return self._otlp.hand_over()

    def open(
        self, adopted: Sequence[int] = (), start_times: SentSeries | None = None
    ) -> ExitCode | None:
        """Start the server and the export, if configured; return an exit code for the daemon on failure.

        Args:
            adopted: descriptors of the previous version's listening sockets; empty without an upgrade
            start_times: start times of the series sent by the previous version
        """
        self._otlp.open(start_times)
        config = self._config
        if config.management_address is None and config.management_unix_socket is None:
            return None
        from pytriton.dispatcher.telemetry.http.management_server import ManagementServer

        server = ManagementServer(*self._arguments)
        try:
            server.start(
                tls_context(config), adopted
            )  # read the certificate before anything listens
        except (PortError, CertificateError) as error:
            _log.error(
                "management server cannot listen",
                management_address=config.management_address,
                reason=str(error),
            )
            return ExitCode.PORT_IN_USE if isinstance(error, PortError) else ExitCode.USAGE
        self._server = server
        self.urls += server.urls
        return None

    async def close(self) -> None:
        """Stop the server and the export."""
        await self._otlp.close()
        if self._server is not None:
            await self._server.stop()


#: Ciphers for TLS 1.2, the same as in the native frontend (`proxy_backend/frontend/net/tls.c`).
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class CertificateError(Exception):
    """Raised if a certificate or its key cannot be used. The message says why."""


def tls_context(config: DaemonConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the management server; None if it does not use TLS.

    Raises:
        CertificateError: a file is unreadable or invalid, or certificate and key do not match
    """
    certificate, key = config.management_certificate, config.management_key
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ciphers(_CIPHERS)
    try:
        # The empty password makes an encrypted key fail; OpenSSL would otherwise prompt on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            why = "they are not a matching certificate and key (PEM), or the key is encrypted"
        text = f"management_certificate = {certificate}, management_key = {key}: {why}"
        raise CertificateError(text) from error
    return context
