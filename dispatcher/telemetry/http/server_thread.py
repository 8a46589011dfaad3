"""An HTTP server in its own thread with its own event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog
from aiohttp import web

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.http_server.browsers import foreign_request
from pytriton.dispatcher.http_server.connections import Connections, ErrorLog

__all__ = ["BACKLOG", "Accepting", "ServerLimits", "ServerThread"]

_log = structlog.get_logger(__name__)

BACKLOG = 128
_TOO_SLOW = b'{"error":"the request headers did not arrive in time"}'
#: Timeouts: grace for idle connections, grace for requests in progress at a stop, and the whole stop.
_IDLE_S = 5.0
_GRACE_S = 4.0
_STOP_S = 5.0


class ServerLimits(NamedTuple):
    """The limits of connections.

    Attributes:
        headers_s: seconds for a new connection's TLS handshake and first headers
        idle_s: seconds after a response to read it and send another request
        most: maximum number of connections
    """

    headers_s: float = 10.0
    idle_s: float = 60.0
    most: int = 128


class ServerThread:
    """Serves on listening sockets from its creation on.

    Args:
        routes: the routes to serve
        sockets: closed at the stop
        tls: None for plain HTTP
        limits: limits of connections
    """

    def __init__(
        self,
        routes: Sequence[web.RouteDef],
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self._routes = routes
        self._sockets = sockets
        self._tls = tls
        self._limits = limits or ServerLimits()
        self._stop: Callable[[], object] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="management", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; wait a limited time for requests in progress. Call it from another thread."""
        self._begun.wait(_STOP_S)
        with suppress(RuntimeError):  # its loop has ended already
            if self._stop is not None:
                self._stop()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            _log.exception("the management server stopped unexpectedly")
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopping: asyncio.Future[None] = loop.create_future()
        self._stop = partial(loop.call_soon_threadsafe, stopping.cancel)
        self._begun.set()
        limits = self._limits
        complaints = ErrorLog(lambda text: _log.warning("management server", said=text))
        connections = Connections(lambda: limits, limits.most, _TOO_SLOW)
        app = web.Application(middlewares=[connections.around, _refuse_other_sites])
        app.add_routes(self._routes)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,  # handlers decompress the body after they have authorized the client
            logger=_quiet_logger(complaints),
            keepalive_timeout=_IDLE_S,
            shutdown_timeout=_GRACE_S,
        )
        await runner.setup()
        assert runner.server is not None
        accepting = Accepting(
            runner.server, connections, limits.most, self._tls, limits.headers_s, complaints.count
        )
        tasks = [asyncio.ensure_future(accepting.run(one)) for one in self._sockets]
        tasks.append(asyncio.ensure_future(connections.watch(runner.server)))
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        accepting.close()
        for one in self._sockets:
            one.close()
        await runner.cleanup()
        for end in ends:
            if isinstance(end, Exception):
                raise end


@web.middleware
async def _refuse_other_sites(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    local_address = request.get_extra_info("sockname")
    foreign = foreign_request(request.method, request.headers, local_address)
    if foreign is not None:
        return web.json_response({"error": foreign.value}, status=403)
    return await handler(request)


def _quiet_logger(complaints: ErrorLog) -> logging.Logger:
    """Return the logger for aiohttp's errors, which quote requests and with them tokens."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    logger.handlers[:] = [complaints]
    return logger


# ── Accepts connections up to a limit, because the process needs descriptors for other purposes ──


#: Interval between checks for a free slot, and pause after running out of descriptors.
_POLL_INTERVAL_S, _SCARCE_S = 0.01, 1.0


class Accepting:
    """Accepts connections for one server, at most `most` at a time.

    When the limit is reached, an idle connection is closed to admit another; if more than half are still in a TLS
    handshake, the oldest of those is closed instead. If none can be closed, new ones wait in the kernel's queue.
    aiohttp's own sites have no limit, and do not know a connection before its handshake is complete.

    Args:
        server: receives the connections
        connections: closes idle ones
        most: maximum number of connections
        tls: None for plain HTTP
        handshake_s: time limit of a handshake
        say: reports problems for the operator
    """

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        most: int,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._server = server
        self._connections = connections
        self._most = most
        self._tls = tls
        self._handshake_s = handshake_s if tls is not None else None
        self._say = say
        self._beginning: dict[asyncio.Task[None], socket.socket] = {}  #: oldest first

    async def run(self, listener: socket.socket) -> None:
        """Accept connections from a listening socket."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            await self._room()
            try:
                taken, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # the client has disconnected already
                continue
            except OSError as error:  # for example, no descriptors are left
                self._say(f"cannot accept connections: {error.strerror}")
                await asyncio.sleep(_SCARCE_S)
                continue
            task = asyncio.ensure_future(self._begin(taken))
            self._beginning[task] = taken
            task.add_done_callback(self._begun)

    def close(self) -> None:
        """Cancel pending handshakes; `run` must have ended."""
        for task in self._beginning:
            task.cancel()

    async def _room(self) -> None:
        await asyncio.sleep(0)  # yield to other tasks, however fast connections arrive
        while len(self._server.connections) + len(self._beginning) >= self._most:
            if self._tls is not None and len(self._beginning) > self._most // 2:
                next(iter(self._beginning)).cancel()
            else:
                self._connections.make_room(self._server.connections)
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _begin(self, taken: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # the peer has disconnected, or does not speak TLS
            await loop.connect_accepted_socket(
                self._server, taken, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )

    def _begun(self, task: asyncio.Task[None]) -> None:
        taken = self._beginning.pop(task)
        if task.cancelled():  # possibly before it was handed to the server
            taken.close()


# ── The TLS certificate of the management server ──

#: For TLS 1.2, the same as in the native frontend (`proxy_backend/frontend/net/tls.c`).
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class CertificateError(Exception):
    """The certificate cannot be used; the text says which one and why."""


def tls_context(config: DaemonConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the management server; None if it does not use TLS.

    Raises:
        CertificateError: a file is unreadable or invalid, or certificate and key do not match.
    """
    certificate, key = config.management_certificate, config.management_key
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ciphers(_CIPHERS)
    try:
        # Reject an encrypted key: without a password, OpenSSL would prompt at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            why = "they are not a matching certificate and key (PEM), or the key is encrypted"
        text = f"management_certificate = {certificate}, management_key = {key}: {why}"
        raise CertificateError(text) from error
    return context
