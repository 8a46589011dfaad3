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

from pytriton.dispatcher.http_server.browsers import foreign_request
from pytriton.dispatcher.http_server.connections import Connections, ErrorLog

_log = structlog.get_logger(__name__)

BACKLOG = 128
_TOO_SLOW = b'{"error":"the request headers did not arrive in time"}'
#: Timeouts in seconds: for idle connections between requests, for requests in progress at the stop, and for the whole
#: stop.
_IDLE_S = 5.0
_GRACE_S = 4.0
_STOP_S = 5.0
#: Interval between checks for a free slot, and pause after the process has run out of descriptors, in seconds.
_POLL_INTERVAL_S, _NO_DESCRIPTORS_DELAY_S = 0.01, 1.0


class ServerLimits(NamedTuple):
    """Limits on the server's connections.

    Attributes:
        headers_s: time for the TLS handshake and the first headers of a new connection, in seconds
        idle_s: time from a response to the headers of the next request, in seconds
        max_connections: maximum number of connections
    """

    headers_s: float = 10.0
    idle_s: float = 60.0
    max_connections: int = 128


class ServerThread:
    """HTTP server in its own thread. It serves from its creation until `stop` is called.

    Args:
        routes: routes to serve
        sockets: listening sockets; closed when the server stops
        tls: TLS context; None for HTTP
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
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="management", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; give requests in progress a limited time to finish. Call this from another thread."""
        self._started.wait(_STOP_S)
        with suppress(RuntimeError):  # the event loop has ended already
            if self._stop is not None:
                self._stop()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            _log.exception("the management server stopped unexpectedly")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopping: asyncio.Future[None] = loop.create_future()
        self._stop = partial(loop.call_soon_threadsafe, stopping.cancel)
        self._started.set()
        limits = self._limits
        error_log = ErrorLog(
            lambda text: _log.warning("error in the management server", reason=text)
        )
        connections = Connections(lambda: limits, limits.max_connections, _TOO_SLOW)
        app = web.Application(middlewares=[connections.middleware, _refuse_other_sites])
        app.add_routes(self._routes)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,  # handlers decompress bodies after they have authorized the client
            logger=_quiet_logger(error_log),
            keepalive_timeout=_IDLE_S,
            shutdown_timeout=_GRACE_S,
        )
        await runner.setup()
        assert runner.server is not None
        acceptor = Acceptor(
            runner.server,
            connections,
            limits.max_connections,
            self._tls,
            limits.headers_s,
            error_log.count,
        )
        tasks = [asyncio.ensure_future(acceptor.run(one)) for one in self._sockets]
        tasks.append(asyncio.ensure_future(connections.watch(runner.server)))
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        acceptor.close()
        for one in self._sockets:
            one.close()
        await runner.cleanup()
        for result in results:
            if isinstance(result, Exception):
                raise result


@web.middleware
async def _refuse_other_sites(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    local_address = request.get_extra_info("sockname")
    foreign = foreign_request(request.method, request.headers, local_address)
    if foreign is not None:
        return web.json_response({"error": foreign.value}, status=403)
    return await handler(request)


def _quiet_logger(error_log: ErrorLog) -> logging.Logger:
    """Return the logger for aiohttp's errors. It only counts them, because they quote requests and tokens."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    logger.handlers[:] = [error_log]
    return logger


class Acceptor:
    """Accepts connections for a server, but limits their number, because the process also needs descriptors for other
    purposes.

    When the limit is reached, an idle connection is closed to make room. If the TLS handshakes in progress exceed half
    of the limit, the oldest of those is closed instead. If none can be closed, new connections wait in the backlog.
    (aiohttp's own sites have no limit, and ignore connections in their handshake.)

    Args:
        server: receives the connections
        connections: closes idle connections
        max_connections: maximum number of connections
        tls: TLS context; None for HTTP
        handshake_s: time limit of a TLS handshake, in seconds
        report: called with a description of each problem
    """

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        max_connections: int,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        report: Callable[[str], None],
    ) -> None:
        self._server = server
        self._connections = connections
        self._max_connections = max_connections
        self._tls = tls
        self._handshake_s = handshake_s if tls is not None else None
        self._report = report
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}  #: oldest first

    async def run(self, listener: socket.socket) -> None:
        """Accept connections from a listening socket, until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            await self._wait_for_slot()
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # the client has already disconnected
                continue
            except OSError as error:  # for example, too many open files
                self._report(f"cannot accept connections: {error.strerror}")
                await asyncio.sleep(_NO_DESCRIPTORS_DELAY_S)
                continue
            task = asyncio.ensure_future(self._hand_over(connection))
            self._handshakes[task] = connection
            task.add_done_callback(self._handshake_done)

    def close(self) -> None:
        """Cancel pending handshakes. `run` must have ended."""
        for task in self._handshakes:
            task.cancel()

    async def _wait_for_slot(self) -> None:
        await asyncio.sleep(0)  # let other tasks run, however fast connections arrive
        while len(self._server.connections) + len(self._handshakes) >= self._max_connections:
            if self._tls is not None and len(self._handshakes) > self._max_connections // 2:
                next(iter(self._handshakes)).cancel()
            else:
                self._connections.make_room(self._server.connections)
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _hand_over(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # the client has disconnected, or does not speak TLS
            await loop.connect_accepted_socket(
                self._server, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
            self._connections.opened()

    def _handshake_done(self, task: asyncio.Task[None]) -> None:
        connection = self._handshakes.pop(task)
        if task.cancelled():  # possibly before the server had it
            connection.close()
