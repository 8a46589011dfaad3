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
#: Timeouts: idle connections at a stop, requests in progress at a stop, and the whole stop.
_IDLE_S = 5.0
_GRACE_S = 4.0
_STOP_S = 5.0
#: Interval between checks for a free slot, and pause after running out of descriptors.
_POLL_INTERVAL_S, _NO_DESCRIPTORS_DELAY_S = 0.01, 1.0


class ServerLimits(NamedTuple):
    """The limits of connections.

    Attributes:
        headers_s: seconds for a new connection's TLS handshake and first headers
        idle_s: seconds after a response to read it and send another request
        max_connections: maximum number of connections
    """

    headers_s: float = 10.0
    idle_s: float = 60.0
    max_connections: int = 128


class ServerThread:
    """Serves on listening sockets from the moment it is created.

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
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="management", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; wait a limited time for requests in progress. Call it from another thread."""
        self._started.wait(_STOP_S)
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
        app = web.Application(middlewares=[connections.around, _refuse_other_sites])
        app.add_routes(self._routes)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,  # handlers decompress the body after they have authorized the client
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
    """Return the logger for aiohttp's errors, which quote requests and with them tokens."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    logger.handlers[:] = [error_log]
    return logger


class Acceptor:
    """Accepts connections for one server, at most `max_connections` at a time: the process needs descriptors for other purposes.

    When the limit is reached, an idle connection is closed to admit another; if more than half are still in a TLS
    handshake, the oldest of those is closed instead. If none can be closed, new ones wait in the kernel's queue.
    aiohttp's own sites have no limit, and do not see a connection until its handshake is complete.

    Args:
        server: receives the connections
        connections: closes idle ones
        max_connections: maximum number of connections
        tls: None for plain HTTP
        handshake_s: time limit of a handshake
        report: reports problems for the operator
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
        """Accept connections from a listening socket."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            await self._wait_for_slot()
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # the client has disconnected already
                continue
            except OSError as error:  # for example, no descriptors are left
                self._report(f"cannot accept connections: {error.strerror}")
                await asyncio.sleep(_NO_DESCRIPTORS_DELAY_S)
                continue
            task = asyncio.ensure_future(self._hand_over(connection))
            self._handshakes[task] = connection
            task.add_done_callback(self._handshake_done)

    def close(self) -> None:
        """Cancel pending handshakes; `run` must have ended."""
        for task in self._handshakes:
            task.cancel()

    async def _wait_for_slot(self) -> None:
        await asyncio.sleep(0)  # yield to other tasks, however fast connections arrive
        while len(self._server.connections) + len(self._handshakes) >= self._max_connections:
            if self._tls is not None and len(self._handshakes) > self._max_connections // 2:
                next(iter(self._handshakes)).cancel()
            else:
                self._connections.make_room(self._server.connections)
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _hand_over(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # the peer has disconnected, or does not speak TLS
            await loop.connect_accepted_socket(
                self._server, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )

    def _handshake_done(self, task: asyncio.Task[None]) -> None:
        connection = self._handshakes.pop(task)
        if task.cancelled():  # possibly before it was handed to the server
            connection.close()
