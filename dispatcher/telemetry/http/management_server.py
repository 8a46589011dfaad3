"""The management server: an HTTP server that runs in a thread and gets its data from the dispatcher's event loop.

scraper ──▶ aiohttp (thread "management") ──▶ dispatcher's loop: MetricsCollector ──▶ text, in a thread of the pool
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from aiohttp import web

from pytriton._host.log_files import tail
from pytriton._host.ports import listening, listening_at
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.messages.client import Event, Explanation, Requests, Status
from pytriton._protocol.messages.metrics import MetricsSnapshot
from pytriton._protocol.parameters import access_headers
from pytriton.dispatcher.telemetry.dashboard.routes import Endpoint, Page, Sources
from pytriton.dispatcher.telemetry.http import protobuf
from pytriton.dispatcher.telemetry.http.exposition import expose
from pytriton.dispatcher.telemetry.http.server_thread import BACKLOG, ServerThread
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import MetricsCollector

T = TypeVar("T")
_log = structlog.get_logger(__name__)

#: Timeout for data from the dispatcher's event loop, in seconds.
_SNAPSHOT_TIMEOUT_S = 5.0


class ManagementServer:
    """The HTTP server for operators.

    Args:
        config: settings with its addresses and access rules
        rundir: runtime directory, which contains the access token
        metrics: provides the metrics
        status: returns the daemon's status; this and the following are called in the dispatcher's event loop
        requests: returns samples of a model's requests
        explain: returns the diagnosis of a model
        events: returns the newest events, or (given True) only audit events

    Attributes:
        urls: URLs on which it listens
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
        #: Descriptors of the listening sockets.
        self.descriptors: list[int] = []
        self._config = config
        self._rundir = rundir
        self._status = status
        self._requests = requests
        self._explain = explain
        self._events = events
        self._metrics = metrics
        self._server: ServerThread | None = None

    def start(self, tls: ssl.SSLContext | None, adopted: Sequence[int] = ()) -> None:
        """Listen and start serving. Call this in the dispatcher's event loop.

        Args:
            tls: TLS context; None for HTTP
            adopted: descriptors of the previous version's listening sockets; empty without an upgrade

        Raises:
            PortError: the port is in use, or the path of the unix socket cannot be used
        """
        sockets = self._adopt(adopted) if adopted else self._listen()
        if not sockets:
            return
        self._loop = asyncio.get_running_loop()
        self._server = ServerThread(self.routes(), sockets, tls)
        _log.info("management server is listening", urls=self.urls)

    async def stop(self) -> None:
        """Stop serving; give requests in progress a limited time to finish."""
        if self._server is None:
            return
        await asyncio.to_thread(self._server.stop)
        if self._config.management_unix_socket is not None:
            Path(self._config.management_unix_socket).unlink(missing_ok=True)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the server: /metrics, and those of the dashboard."""
        page = Page(
            Sources(
                self.snapshot,
                self.status,
                log=lambda name, lines: tail(self._rundir.log_file(name), lines),
                requests=self.requests,
                explain=self.explain,
                events=self.events,
                is_owner=self._has_token,
                headers=lambda: access_headers(self._rundir.access_token()),
            )
        )
        return [web.get("/metrics", self._guarded(self._expose)), *page.routes(self._guarded)]

    async def snapshot(self) -> MetricsSnapshot:
        """Return a metrics snapshot from the dispatcher's event loop.

        Raises:
            asyncio.TimeoutError: the dispatcher did not answer in time
        """
        return await self._in_dispatcher(self._metrics.snapshot)

    async def status(self) -> Status:
        """Return the daemon's status. Raises asyncio.TimeoutError like `snapshot`."""

        async def read() -> Status:
            return self._status()

        return await self._in_dispatcher(read)

    async def requests(self, name: str) -> Requests | None:
        """Return samples of a model's requests; None if no worker serves it. Raises asyncio.TimeoutError like
        `snapshot`.
        """

        async def read() -> Requests | None:
            try:
                return self._requests(name)
            except RemoteFailure:
                return None

        return await self._in_dispatcher(read)

    async def explain(self, name: str) -> Explanation | None:
        """Return the diagnosis of a model; None if it is unknown. Raises asyncio.TimeoutError like `snapshot`."""

        async def read() -> Explanation | None:
            try:
                return await self._explain(name)
            except RemoteFailure:
                return None

        return await self._in_dispatcher(read)

    async def events(self, audit_only: bool) -> Sequence[Event]:
        """Return the newest events (or only audit events), oldest first. Raises asyncio.TimeoutError like `snapshot`."""

        async def read() -> Sequence[Event]:
            return self._events(audit_only)

        return await self._in_dispatcher(read)

    async def _in_dispatcher(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        future = asyncio.run_coroutine_threadsafe(read(), self._loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), _SNAPSHOT_TIMEOUT_S)

    async def _expose(self, request: web.Request) -> web.Response:
        try:
            scrape = await self._in_dispatcher(self._metrics.scrape)
        except asyncio.TimeoutError:
            text = f"the dispatcher did not answer within {_SNAPSHOT_TIMEOUT_S:g} s\n"
            return web.Response(text=text, status=503)
        accept = request.headers.get("accept", "")
        if protobuf.is_preferred(accept):
            body, content_type = (
                await asyncio.to_thread(protobuf.encode, scrape),
                protobuf.CONTENT_TYPE,
            )
        else:
            body, content_type = await asyncio.to_thread(expose, scrape, accept)
        return web.Response(body=body, headers={"content-type": content_type})

    def _guarded(self, answer: Endpoint) -> Endpoint:
        """Wrap an endpoint so that it requires the access token, if `management_require_token` is set."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if self._config.management_require_token and not await asyncio.to_thread(
                self._has_token, request.headers.get("authorization", "")
            ):
                text = "the access token is required: Authorization: Bearer …\n"
                return web.Response(text=text, status=401, headers={"www-authenticate": "Bearer"})
            return await answer(request)

        return guarded

    def _has_token(self, authorization: str) -> bool:
        try:
            token = self._rundir.access_token_file.read_text(encoding="utf-8").strip()
        except OSError:
            return False
        expected = f"Bearer {token}".encode()
        presented = authorization.encode("utf-8", "surrogateescape")
        return bool(token) and hmac.compare_digest(presented, expected)

    def _adopt(self, descriptors: Sequence[int]) -> list[socket.socket]:
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for one in sockets:
            if one.family == socket.AF_UNIX:
                self.urls.append(f"unix:{self._config.management_unix_socket}")
            else:
                self.urls.append(self._url(one))
        self.descriptors = list(descriptors)
        return sockets

    def _url(self, listener: socket.socket) -> str:
        host, _ = _host_and_port(self._config.management_address or "")
        scheme = "https" if self._config.management_certificate else "http"
        shown = f"[{host}]" if ":" in host else host
        return f"{scheme}://{shown}:{listener.getsockname()[1]}"

    def _listen(self) -> list[socket.socket]:
        config, sockets, urls = self._config, [], []
        with contextlib.ExitStack() as opened:
            if config.management_address is not None:
                host, port = _host_and_port(config.management_address)
                listener = listening(host, int(port), "management", backlog=BACKLOG)
                sockets.append(opened.enter_context(listener))
                urls.append(self._url(listener))
            if config.management_unix_socket is not None:
                path = Path(config.management_unix_socket)
                sockets.append(listening_at(path, "management_unix_socket", backlog=BACKLOG))
                urls.append(f"unix:{config.management_unix_socket}")
            opened.pop_all()
        self.urls += urls
        self.descriptors = [one.fileno() for one in sockets]
        return sockets


def _host_and_port(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return {"*": "0.0.0.0"}.get(host, host.strip("[]")), port
