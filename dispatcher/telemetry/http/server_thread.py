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
from pytriton.dispatcher.http_server.connections import Connections
from pytriton.dispatcher.http_server.error_log import ErrorLog
from pytriton.dispatcher.telemetry.http.accept_limit import Accepting

__all__ = ["BACKLOG", "ServerLimits", "ServerThread"]

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
